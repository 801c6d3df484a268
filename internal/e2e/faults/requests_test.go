package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/internal/proctest"
)

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	boxes      = "/apis/x.io/v1/namespaces/default/boxes"
	protobuf   = "application/vnd.kubernetes.protobuf"
)

const definition = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "boxes.x.io"},
	"spec": {"group": "x.io", "scope": "Namespaced", "names": {"plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList"},
		"versions": [{"name": "v1", "served": true, "storage": true,
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`

// requester sends requests of one kind.
type requester struct {
	t      *testing.T
	s      *server
	http   *http.Client
	path   string // of the collection
	accept string
	agent  string // user agent; "" means test
}

// each runs fn for each protocol, for a built-in and a custom resource, and for both encodings.
func each(t *testing.T, fn func(*testing.T, *server, *requester)) {
	s := serve(t, "serve", "--faults", "true")
	setup := &requester{t: t, s: s, http: s.client(t, 2), accept: "application/json"}
	setup.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
	s.Eventually(t, "boxes are served", func() error {
		if code, body := setup.request("GET", boxes, ""); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	for _, major := range []int{1, 2} {
		for _, of := range []struct{ path, accept string }{{configMaps, "application/json"}, {configMaps, protobuf}, {boxes, "application/json"}} {
			t.Run(fmt.Sprintf("HTTP/%d%s in %s", major, of.path, of.accept), func(t *testing.T) {
				a := &requester{t: t, s: s, http: s.client(t, major), path: of.path, accept: of.accept}
				t.Cleanup(func() {
					if err := s.faults.Clear(setup.t.Context()); err != nil {
						setup.t.Error(err)
					}
					setup.must("DELETE", of.path, "")
				})
				fn(t, s, a)
			})
		}
	}
}

// resource returns the resource as rules name it.
func (a *requester) resource() string {
	if a.path == boxes {
		return "boxes.x.io"
	}
	return "configmaps"
}

// object returns an object whose data contain n.
func (a *requester) object(name string, n int) string {
	if a.path == boxes {
		return fmt.Sprintf(`{"apiVersion": "x.io/v1", "kind": "Box", "metadata": {"name": %q}, "data": {"n": "number %d"}}`, name, n)
	}
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q}, "data": {"n": "number %d"}}`, name, n)
}

// send sends a request and reads the response's header.
func (a *requester) send(method, path, body string) (*http.Response, error) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.s.config.Host+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Accept", a.accept)
	req.Header.Set("Content-Type", "application/json")
	if a.agent != "" {
		req.Header.Set("User-Agent", a.agent)
	}
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	return a.http.Do(req)
}

// request sends a request and reads the response. It returns 0 and the error if there is no complete response.
func (a *requester) request(method, path, body string) (int, string) {
	a.t.Helper()
	resp, err := a.send(method, path, body)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

func (a *requester) must(method, path, body string) string {
	a.t.Helper()
	code, text := a.request(method, path, body)
	if code < 200 || code > 299 {
		a.t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	return text
}

// revision returns the current revision of the collection.
func (a *requester) revision() string {
	a.t.Helper()
	plain := *a
	plain.accept = "application/json"
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal([]byte(plain.must("GET", a.path, "")), &list); err != nil {
		a.t.Fatal(err)
	}
	return list.Metadata.ResourceVersion
}

// resourceVersion returns the resourceVersion of an event's object.
func (a *requester) resourceVersion(event []byte) int64 {
	a.t.Helper()
	var e struct {
		Object struct {
			Metadata struct{ ResourceVersion string }
		}
	}
	if err := json.Unmarshal(event, &e); err != nil {
		a.t.Fatal(err)
	}
	return mustInt(a.t, e.Object.Metadata.ResourceVersion)
}

// bookmarkAge is the age at which a watch may get its first regular bookmark (httpapi/streams/bookmarks.go).
const bookmarkAge = 20 * time.Second

// frames are the events of a watch, as bytes. err is io.EOF if the response is complete.
type frames struct {
	requested time.Time
	events    chan []byte
	err       error // valid when events is closed
}

// regular reports whether an event may be a regular bookmark, which a watch gets on a slow machine.
func (f *frames) regular(event []byte) bool {
	return bytes.Contains(event, []byte("BOOKMARK")) && time.Since(f.requested) >= bookmarkAge
}

func (a *requester) watch(query string) *frames {
	a.t.Helper()
	f := &frames{requested: time.Now(), events: make(chan []byte, 100)}
	resp, err := a.send("GET", a.path+"?watch=1"+query, "")
	if err != nil {
		a.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		a.t.Fatalf("watch: %s", resp.Status)
	}
	a.t.Cleanup(func() { resp.Body.Close() })
	in := bufio.NewReader(resp.Body)
	go func() {
		defer close(f.events)
		for f.err == nil {
			var event []byte
			if a.accept == protobuf {
				var head [4]byte
				if _, f.err = io.ReadFull(in, head[:]); f.err != nil {
					return
				}
				event = make([]byte, int(head[0])<<24|int(head[1])<<16|int(head[2])<<8|int(head[3]))
				_, f.err = io.ReadFull(in, event)
			} else {
				event, f.err = in.ReadBytes('\n')
			}
			if f.err == nil {
				f.events <- event
			}
		}
	}()
	return f
}

// next returns the next event that is no regular bookmark, which must contain all of want. If want has BOOKMARK, a
// regular one will do.
func (a *requester) next(f *frames, want ...string) []byte {
	a.t.Helper()
	for limit := time.After(proctest.Patience); ; {
		select {
		case event, ok := <-f.events:
			missing := slices.IndexFunc(want, func(w string) bool { return !ok || !bytes.Contains(event, []byte(w)) })
			if missing < 0 {
				return event
			}
			if !f.regular(event) {
				a.t.Fatalf("event %q (%v), want one with %q", event, f.err, want[missing])
			}
		case <-limit:
			a.t.Fatalf("no event with %q", want)
		}
	}
}

// TestRejections checks that a rule rejects requests as a failure with its status does, and that nothing is written.
func TestRejections(t *testing.T) {
	each(t, func(t *testing.T, s *server, a *requester) {
		a.must("POST", a.path, a.object("a", 1))
		name, object := a.path+"/a", a.object("a", 2)
		for _, c := range []struct {
			status       int
			method, want string
		}{
			{409, "PUT", fmt.Sprintf(`Operation cannot be fulfilled on %s "a": the object has been modified; please apply your changes to the latest version and try again`, a.resource())},
			{429, "PUT", "Too many requests, please try again later."},
			{500, "PUT", "etcdserver: leader changed"},
			{503, "PUT", "the request has been made before all known HTTP paths have been installed, please try again"},
			{504, "PUT", "request did not complete within the allotted timeout"},
			{500, "GET", "etcdserver: leader changed"},
			{503, "DELETE", "the request has been made"},
		} {
			s.set(t, faults.Rule{Name: "r", Match: faults.Match{UserAgent: "test", Resource: a.resource(), Namespace: "default", Name: "a"}, Refuse: c.status, Times: 1})
			resp, err := a.send(c.method, name, object)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != c.status || !bytes.Contains(bytes.ReplaceAll(body, []byte(`\"`), []byte(`"`)), []byte(c.want)) {
				t.Errorf("%s: got status %s, body %q; want %d, %q", c.method, resp.Status, body, c.status, c.want)
			}
			if retry := resp.Header.Get("Retry-After"); (retry == "1") != (c.status == 429 || c.status == 503) {
				t.Errorf("%d has Retry-After %q", c.status, retry)
			}
			if code, text := a.request("GET", name, ""); code != 200 || !strings.Contains(text, "number 1") {
				t.Errorf("after the rejected %s: GET got status %d %s", c.method, code, text)
			}
		}
	})
}

// TestLostResponses checks that requests whose responses are lost are executed.
func TestLostResponses(t *testing.T) {
	each(t, func(t *testing.T, s *server, a *requester) {
		s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource(), Verbs: []string{"create"}}, Lose: faults.LoseCut, Times: 1},
			faults.Rule{Name: "s", Match: faults.Match{Resource: a.resource(), Verbs: []string{"patch"}}, Lose: faults.LoseTimeout, Times: 1})
		if code, text := a.request("POST", a.path, a.object("a", 1)); code != 0 {
			t.Errorf("request whose response is lost: got status %d %s", code, text)
		}
		if code, text := a.request("POST", a.path, a.object("a", 1)); code != http.StatusConflict || !strings.Contains(text, "already exists") {
			t.Errorf("repeated request: got status %d %s, want 409", code, text)
		}
		if code, text := a.request("PATCH", a.path+"/a", `{"data": {"n": "number 2"}}`); code != 504 || !strings.Contains(text, "allotted timeout") {
			t.Errorf("patch beyond its deadline: got status %d %s, want 504", code, text)
		}
		if text := a.must("GET", a.path+"/a", ""); !strings.Contains(text, "number 2") {
			t.Errorf("the patch was not committed: %s", text)
		}
		state, err := s.faults.State(t.Context())
		if err != nil || len(state.Injected) != 2 || !strings.HasPrefix(state.Injected[0].Fault, "response 201 lost by cut") || !strings.HasPrefix(state.Injected[1].Fault, "response 200 lost by timeout") {
			t.Errorf("injected faults %v, error %v", state, err)
		}
	})
}

// TestStaleReads checks that a stale replica returns what an exact list at a past revision returns, but nothing older
// than the client allows.
func TestStaleReads(t *testing.T) {
	each(t, func(t *testing.T, s *server, a *requester) {
		a.must("POST", a.path, a.object("a", 1))
		past := a.revision()
		a.must("PATCH", a.path+"/a", `{"data": {"n": "number 2"}}`)
		middle := a.revision()
		a.must("POST", a.path, a.object("b", 3))
		a.revision() // the cache now has b; the rule makes reads older
		exact := func(revision string) string {
			return a.must("GET", a.path+"?resourceVersionMatch=Exact&resourceVersion="+revision, "")
		}
		beforeA, beforeB := exact(past), exact(middle)
		s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource()}, Stale: 2})
		// An object that exists, and one that does not yet.
		if got := a.must("GET", a.path+"/a?resourceVersion=0", ""); !strings.Contains(got, "number 1") {
			t.Errorf("stale GET: %q", got)
		}
		if code, got := a.request("GET", a.path+"/b?resourceVersion=0", ""); code != 404 || !strings.Contains(got, "not found") {
			t.Errorf("stale GET of a new object: %d %q", code, got)
		}
		for _, path := range []string{"/a", "/a?resourceVersion=" + middle, "?limit=5", "?resourceVersionMatch=Exact&resourceVersion=" + middle} {
			if got := a.must("GET", a.path+path, ""); !strings.Contains(got, "number 2") {
				t.Errorf("GET %s: %q", path, got)
			}
		}
		s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource()}, StaleAt: mustInt(t, past)})
		if got := a.must("GET", a.path+"?resourceVersion=0", ""); got != beforeA {
			t.Errorf("stale LIST: %q, want %q", got, beforeA)
		}
		for _, query := range []string{"?resourceVersion=", "?resourceVersionMatch=NotOlderThan&resourceVersion="} {
			if got := a.must("GET", a.path+query+middle, ""); got != beforeB {
				t.Errorf("stale LIST not older than %s: %q, want %q", middle, got, beforeB)
			}
		}
		w := a.watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=0")
		a.next(w, "ADDED", "number 1")
		a.next(w, "BOOKMARK", past)
		a.next(w, "MODIFIED", "number 2")
		a.next(w, "ADDED", "number 3")
	})
}

// TestHeldWatches checks that held events are sent, in order, by Step, Release and Clear, and that other resources are
// not held.
func TestHeldWatches(t *testing.T) {
	each(t, func(t *testing.T, s *server, a *requester) {
		a.must("POST", a.path, a.object("old", 0))
		secrets := &requester{t: t, s: s, http: a.http, path: "/api/v1/namespaces/default/secrets", accept: "application/json"}
		initial := "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
		early := a.watch(initial) // opened before the rule is set
		a.next(early, "ADDED", "number 0")
		a.next(early, "BOOKMARK")
		s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource(), UserAgent: "test"}, Hold: faults.HoldChanges})
		late, others := a.watch(initial), secrets.watch(initial+"&fieldSelector=metadata.name%3Dother")
		secrets.next(others, "BOOKMARK")
		a.next(late, "ADDED", "number 0")
		a.next(late, "BOOKMARK")
		for n := range 4 {
			a.must("POST", a.path, a.object(fmt.Sprint("new", n+1), n+1))
		}
		// Events of the other resource are not held.
		secrets.must("POST", secrets.path, `{"metadata": {"name": "other"}}`)
		secrets.next(others, "ADDED", "other")
		secrets.must("DELETE", secrets.path+"/other", "")
		s.awaitHeld(t, a.resource(), 8)
		for n := range 2 {
			if err := s.faults.Step(t.Context(), "r", 1); err != nil {
				t.Fatal(err)
			}
			a.next(early, "ADDED", fmt.Sprint("number ", n+1))
			a.next(late, "ADDED", fmt.Sprint("number ", n+1))
			s.awaitHeld(t, a.resource(), 2*(3-n))
		}
		if err := s.faults.Release(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		for _, w := range []*frames{early, late} {
			a.next(w, "number 3")
			a.next(w, "number 4")
		}
		a.must("POST", a.path, a.object("new5", 5))
		s.awaitHeld(t, a.resource(), 2)
		if err := s.faults.Clear(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		a.next(early, "number 5")
		a.next(late, "number 5")
		// Initial objects are held, too.
		s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource()}, Hold: faults.HoldEverything})
		all := a.watch(initial + "&fieldSelector=metadata.name%3Dold")
		s.awaitHeld(t, a.resource(), 2)
		if err := s.faults.Step(t.Context(), "r", 2); err != nil {
			t.Fatal(err)
		}
		a.next(all, "number 0")
		a.next(all, "BOOKMARK")
	})
}

// TestDelayedWatches checks that events are delayed.
func TestDelayedWatches(t *testing.T) {
	each(t, func(t *testing.T, s *server, a *requester) {
		s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource()}, Delay: "50ms"})
		w := a.watch("&resourceVersion=" + a.revision())
		for n := range 3 {
			began := time.Now()
			a.must("POST", a.path, a.object(fmt.Sprint("a", n), n))
			a.next(w, "ADDED", fmt.Sprint("number ", n))
			if took := time.Since(began); took < 50*time.Millisecond {
				t.Errorf("an event arrived after %v", took)
			}
		}
	})
}

// TestEndedWatches checks each way to end a watch after a number of events.
func TestEndedWatches(t *testing.T) {
	each(t, func(t *testing.T, s *server, a *requester) {
		for i, c := range []struct {
			end      string
			complete bool
			last     string
		}{
			{faults.EndClean, true, ""}, {faults.EndBookmark, true, "BOOKMARK"}, {faults.EndReset, false, ""}, {faults.EndExpired, true, "too old resource version"},
		} {
			s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: a.resource(), UserAgent: "test"}, End: c.end, After: 2, Times: 1})
			from := a.revision()
			w := a.watch("&allowWatchBookmarks=true&resourceVersion=" + from)
			for n := range 3 {
				a.must("POST", a.path, a.object(fmt.Sprint("a", i, "-", n), n))
			}
			a.next(w, "ADDED", "number 0")
			a.next(w, "ADDED", "number 1")
			if c.last != "" {
				a.next(w, c.last)
			}
			for event := range w.events {
				if !w.regular(event) {
					t.Errorf("%s: event %q before the end", c.end, event)
				}
			}
			if errors.Is(w.err, io.EOF) != c.complete {
				t.Errorf("%s: the watch ended with %v", c.end, w.err)
			}
			// The client resumes where it was.
			other := *a
			other.agent = "other"
			again := other.watch("&resourceVersion=" + from)
			for n := range 3 {
				a.next(again, "ADDED", fmt.Sprint("number ", n))
			}
		}
	})
}

// TestLastBookmarksDoNotGoBack checks that a watch that no rule has matched for a while ends with a bookmark that is
// not older than its last event.
func TestLastBookmarksDoNotGoBack(t *testing.T) {
	s := serve(t, "serve", "--faults", "true")
	a := &requester{t: t, s: s, http: s.client(t, 2), path: configMaps, accept: "application/json"}
	w := a.watch("&allowWatchBookmarks=true&resourceVersion=" + a.revision())
	s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: "configmaps"}, Delay: "1ms"})
	a.must("POST", a.path, a.object("a", 1))
	a.next(w, "ADDED", "number 1")
	if err := s.faults.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.must("POST", a.path, a.object("b", 2))
	sent := a.resourceVersion(a.next(w, "ADDED", "number 2"))
	s.set(t, faults.Rule{Name: "r", Match: faults.Match{Resource: "configmaps"}, End: faults.EndBookmark})
	if event := a.next(w, "BOOKMARK"); a.resourceVersion(event) < sent {
		t.Errorf("last bookmark %s, want revision %d or later", event, sent)
	}
}

// TestStaleListsOutliveCompaction checks that the cache of a stale replica still has objects that etcd has compacted.
func TestStaleListsOutliveCompaction(t *testing.T) {
	s := serve(t, "serve", "--faults", "true", "--etcd-compaction-interval", "1s")
	a := &requester{t: t, s: s, http: s.client(t, 2), path: configMaps, accept: "application/json"}
	a.must("POST", a.path, a.object("a", 1))
	var b struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal([]byte(a.must("POST", a.path, a.object("b", 2))), &b); err != nil {
		t.Fatal(err)
	}
	past := fmt.Sprint(mustInt(t, b.Metadata.ResourceVersion) - 1)
	others := 0
	s.Eventually(t, "the revision is compacted", func() error {
		others++
		a.must("POST", "/api/v1/namespaces/default/secrets", fmt.Sprintf(`{"metadata": {"name": "s%d"}}`, others))
		if code, text := a.request("GET", a.path+"?resourceVersionMatch=Exact&resourceVersion="+past, ""); code != http.StatusGone {
			return fmt.Errorf("%d %s", code, text)
		}
		return nil
	})
	s.set(t, faults.Rule{Name: "r", Stale: 1})
	for _, query := range []string{"", "&limit=1", "&fieldSelector=metadata.name%3Da", "&resourceVersionMatch=NotOlderThan"} {
		if got := a.must("GET", a.path+"?resourceVersion=0"+query, ""); !strings.Contains(got, "number 1") || strings.Contains(got, "number 2") || !strings.Contains(got, fmt.Sprintf(`"resourceVersion":%q`, past)) {
			t.Errorf("%s: %s", query, got)
		}
	}
	// Events are not cached.
	a.must("POST", "/api/v1/namespaces/default/events", `{"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}`)
	if got := a.must("GET", "/api/v1/namespaces/default/events?resourceVersion=0", ""); !strings.Contains(got, `"name":"e"`) {
		t.Errorf("events: %s", got)
	}
}

func mustInt(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
