package inject

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/watch"
)

var update = RequestOf("manager/v1", "alice", "update", "apps", "deployments", "", "default", "web")

func ask(t *testing.T, f *Faults, method, path, body string) (int, string) {
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

// TestSeedsDecideByRequests: the same requests meet the same faults, in whatever order those of different
// objects come, and another seed gives others.
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

// TestSeedsSkip: a seed also leaves the first requests alone, and those after so many.
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

// TestRulesTakeOver: when a rule is deleted, the next one that holds the same watch does so. Setting it anew
// changes nothing about that, and leaves nothing behind.
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

// TestInitialObjectsAreNotTooMany: only changes count.
func TestInitialObjectsAreNotTooMany(t *testing.T) {
	w := New(1).Plan(update).Watch(func() {})
	defer w.Close()
	if !w.Keep(make([]watch.Delivery, mostHeld+1)) {
		t.Error("a watch of many objects ends")
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
		if code, body := ask(t, f, c.method, faults.Path+c.below, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.below, code, body, c.code, c.want)
		}
	}
}
