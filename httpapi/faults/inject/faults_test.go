package inject

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/watch"
)

var update = RequestOf("manager/v1", "alice", "update", "apps", "deployments", "", "default", "web")

func send(t *testing.T, f *Faults, method, path, body string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func TestSkipAndTimesCountMatchingRequests(t *testing.T) {
	f := New(0)
	if !f.Idle() {
		t.Error("not idle without rules")
	}
	f.set(faults.Rule{Name: "r", Match: faults.Match{Resource: "deployments.apps"}, Refuse: 409, Skip: 1, Times: 2})
	var got []int
	for range 5 {
		get := update
		get.Verb = "get"
		f.Plan(get) // 409 is not for reads
		status, _ := f.Plan(update).Refusal()
		got = append(got, status)
	}
	if want := []int{0, 409, 409, 0, 0}; !reflect.DeepEqual(got, want) {
		t.Errorf("refused with %v, want %v", got, want)
	}
	if s := f.state(); len(s.Injected) != 2 || s.Injected[0].Ordinal != 1 || s.Injected[1].Fault != "refused with 409" {
		t.Errorf("listed %+v", s.Injected)
	}
	f.clear()
	if s := f.state(); !f.Idle() || len(s.Injected) != 0 {
		t.Errorf("after clear: %+v", s)
	}
}

// TestSeedsDecideByRequests checks that the same requests get the same faults, in whatever order requests for
// different objects come, and that another seed gives other faults.
func TestSeedsDecideByRequests(t *testing.T) {
	drawn := func(seed uint64, names ...string) map[string][]string {
		f, got := New(seed), make(map[string][]string)
		for range 50 {
			for _, name := range names {
				q := update
				q.Name = name
				p := f.Plan(q)
				p.Lost(200)
			}
		}
		for _, i := range f.state().Injected {
			got[i.Name] = append(got[i.Name], i.String())
		}
		return got
	}
	one := drawn(7, "a", "b")
	if len(one["a"]) == 0 || len(one["b"]) == 0 || reflect.DeepEqual(one["a"], one["b"]) {
		t.Fatalf("no different faults: %v", one)
	}
	if again := drawn(7, "b", "a"); !reflect.DeepEqual(one, again) {
		t.Errorf("the same seed: %v and then %v", one, again)
	}
	if other := drawn(8, "a", "b"); reflect.DeepEqual(one, other) {
		t.Errorf("another seed: the same %v", other)
	}
	kubectl := update
	kubectl.UserAgent = "kubectl/v1.36.3"
	f := New(7)
	for range 100 {
		f.Plan(kubectl).Lost(200)
	}
	if s := f.state(); len(s.Injected) > 0 {
		t.Errorf("kubectl met %v", s.Injected)
	}
}

// TestSeedsSkip checks that a seed injects nothing into the first requests, and nothing after a number of requests.
func TestSeedsSkip(t *testing.T) {
	met := func(r faults.Rule) int {
		f := New(0)
		r.Name, r.Seed = "r", 7
		f.set(r)
		for range 100 {
			f.Plan(update).Lost(200)
		}
		return len(f.state().Injected)
	}
	all, first, rest := met(faults.Rule{}), met(faults.Rule{Times: 50}), met(faults.Rule{Skip: 50})
	if first == 0 || rest == 0 || first+rest != all {
		t.Errorf("%d faults: %d in the first half, %d in the rest", all, first, rest)
	}
}

// TestRulesTakeOver checks that when a rule is deleted, the next rule that holds the same watch takes over. Setting a
// rule again changes nothing, and leaks nothing.
func TestRulesTakeOver(t *testing.T) {
	f := New(0)
	q := update
	q.Verb = "watch"
	w := f.Plan(q).Watch(func() {})
	defer w.Close()
	for _, name := range []string{"first", "second", "first", "first"} {
		f.set(faults.Rule{Name: name, Hold: faults.HoldChanges})
	}
	for _, want := range []string{"first", "second", ""} {
		f.mu.Lock()
		if by := w.hold; by == nil && want != "" || by != nil && by.Name != want || len(w.ordinal) != len(f.rules) {
			t.Errorf("held by %v, want %q; %d rules are known", by, want, len(w.ordinal))
		}
		f.deleteLocked(want)
		f.mu.Unlock()
	}
}

var pods = cache.NewResourceSchema("pods", nil)

// heldBy returns the bytes that w holds.
func heldBy(w *Watch) (bytes int) {
	for i := range w.queue {
		bytes += w.queue[i].size()
	}
	return bytes
}

// crowd is a set of watches that a rule holds.
type crowd struct {
	f        *Faults
	open     []*Watch
	revision int64
}

// one draws a watch that has not lost events.
func (c *crowd) one(t *rapid.T) *Watch {
	kept := slices.DeleteFunc(slices.Clone(c.open), func(w *Watch) bool { return w.overflowed })
	if len(kept) == 0 {
		t.Skip("no watch is open: rapid takes another action")
	}
	return rapid.SampledFrom(kept).Draw(t, "watch")
}

// keep has a watch hold some events. If they exceed the limit, the watches that hold the most end.
func (c *crowd) keep(t *rapid.T) {
	w := c.one(t)
	var come []watch.Delivery
	for _, size := range rapid.SliceOfN(rapid.IntRange(0, c.f.limit/3), 1, 4).Draw(t, "sizes") {
		c.revision++
		o := cache.NewObject(cache.ObjectConfig{Key: "a", Revision: c.revision, Body: make([]byte, size)}, pods)
		come = append(come, watch.Delivery{Type: watch.Added, Object: o, Revision: c.revision})
	}
	bytes := make(map[*Watch]int)
	for _, o := range c.open {
		bytes[o] = o.bytes
	}
	for _, d := range come {
		bytes[w] += (&held{Delivery: d}).size()
	}
	w.Keep(come)
	least, most := math.MaxInt, 0
	for _, o := range c.open {
		if !o.overflowed {
			most = max(most, bytes[o])
		} else if bytes[o] > 0 {
			least = min(least, bytes[o])
		}
	}
	if least < most {
		t.Fatalf("a watch with %d bytes ended, one with %d did not", least, most)
	}
}

// send sends some of the held events of a watch.
func (c *crowd) send(t *rapid.T) {
	w := c.one(t)
	c.f.letThrough("hold", rapid.IntRange(0, 2).Draw(t, "events"))
	if _, end := w.Next(make([]watch.Delivery, 0, 4), true); end != "" {
		t.Fatalf("ended (%s)", end)
	}
}

// check checks the invariant.
func (c *crowd) check(t *rapid.T) {
	sum := 0
	for _, w := range c.open {
		if heldBy(w) != w.bytes {
			t.Fatalf("a watch holds %d bytes, counted %d", heldBy(w), w.bytes)
		}
		if sum += w.bytes; w.overflowed {
			if _, end := w.Next(nil, false); end != faults.EndExpired || !w.Holding() {
				t.Fatalf("a watch that has lost events ends as %q; a bookmark may come: %v", end, !w.Holding())
			}
		}
	}
	if sum != c.f.held || sum > c.f.limit {
		t.Fatalf("%d bytes are held, counted %d, the limit is %d", sum, c.f.held, c.f.limit)
	}
}

// TestWhatIsHeldHasALimit lets watches start, hold, send and end in any order. Together they must never hold more
// than the limit, the count must be right, and the watches that hold the most must end.
func TestWhatIsHeldHasALimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &crowd{f: New(0)}
		c.f.limit = 64 << 10
		c.f.set(faults.Rule{Name: "hold", Hold: faults.HoldEverything})
		t.Repeat(map[string]func(*rapid.T){
			"open": func(*rapid.T) {
				c.open = append(c.open, c.f.Plan(RequestOf("", "", "watch", "", "pods", "", "", "")).Watch(func() {}))
			},
			"keep": c.keep,
			"send": c.send,
			"close": func(t *rapid.T) {
				if len(c.open) == 0 {
					t.Skip("no watch is open: rapid takes another action")
				}
				w := rapid.SampledFrom(c.open).Draw(t, "watch")
				w.Close()
				c.open = slices.DeleteFunc(c.open, func(o *Watch) bool { return o == w })
			},
			"": c.check,
		})
	})
}

// TestWhatIsKeptOfRequestsHasALimit checks that neither many requests nor long ones make a server keep more than its
// limit.
func TestWhatIsKeptOfRequestsHasALimit(t *testing.T) {
	f := New(7)
	q := RequestOf(strings.Repeat("a", 1<<20), "", "update", "", "pods", "", "", strings.Repeat("n", 1<<20))
	if len(q.UserAgent) != maxTextBytes || len(q.Name) != maxTextBytes {
		t.Errorf("kept %d and %d bytes", len(q.UserAgent), len(q.Name))
	}
	f.set(faults.Rule{Name: "refuse", Refuse: 500})
	for range maxInjected + 1 {
		f.Plan(q)
	}
	if n := len(f.state().Injected); n > maxInjected {
		t.Errorf("%d faults are listed", n)
	}
	f.counted = maxCounted
	other := update
	other.Name = "other"
	if f.Plan(other); len(f.rules[0].ordinals) != 1 {
		t.Errorf("%d kinds of requests are counted beyond the limit", len(f.rules[0].ordinals))
	}
	f.counted = 1
	if f.set(faults.Rule{Name: "seed", Seed: 8}); f.counted != 0 {
		t.Errorf("%d kinds of requests are counted by a new seed", f.counted)
	}
}

// TestThereAreNotTooManyRules checks the limit of rules. Existing rules can be set again.
func TestThereAreNotTooManyRules(t *testing.T) {
	f := New(0)
	put := func(n int) (int, string) {
		return send(t, f, http.MethodPut, fmt.Sprintf("%s/r%d", faults.Path, n), `{"hold":"changes"}`)
	}
	for n := range maxRules {
		if code, body := put(n); code != http.StatusOK {
			t.Fatalf("rule %d: %d %s", n, code, body)
		}
	}
	if code, body := put(maxRules); code != http.StatusForbidden || !strings.Contains(body, `"reason":"Forbidden"`) || !strings.Contains(body, "already 128 rules") {
		t.Errorf("one more: %d %s", code, body)
	}
	if code, body := put(1); code != http.StatusOK {
		t.Errorf("a known one: %d %s", code, body)
	}
}

func TestEndpointAnswersWithStatuses(t *testing.T) {
	f := New(0)
	for _, c := range []struct {
		method, below, body string
		code                int
		want                string
	}{
		{http.MethodGet, "", "", 200, `{"rules":[],"watches":[],"injected":null}`},
		{http.MethodPut, "/r", `{"hold":"changes"}`, 200, `"status":"Success"`},
		{http.MethodGet, "", "", 200, `"rules":[{"name":"r","match":{},"hold":"changes"}]`},
		{http.MethodPut, "/r", `{"hold":"some"}`, 400, `unknown value`},
		{http.MethodPut, "/r", `{"helt":"some"}`, 400, `unknown field`},
		{http.MethodPut, "/r", `{"hold":"changes"}` + strings.Repeat(" ", maxRuleSize), 413, `at most 8192 bytes`},
		{http.MethodPost, "/r/step?events=2", "", 200, `"status":"Success"`},
		{http.MethodPost, "/r/step", "", 400, "positive number"},
		{http.MethodPost, "/r/release", "", 200, `"status":"Success"`},
		{http.MethodPost, "/s/release", "", 404, `faults.larder \"s\" not found`},
		{http.MethodPost, "/r/other", "", 404, `"code":404`},
		{http.MethodGet, "/r", "", 405, `"code":405`},
		{http.MethodDelete, "/r", "", 200, `"status":"Success"`},
		{http.MethodDelete, "/r", "", 404, `not found`},
		{http.MethodDelete, "", "", 200, `"status":"Success"`},
	} {
		if code, body := send(t, f, c.method, faults.Path+c.below, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.below, code, body, c.code, c.want)
		}
	}
}
