package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/larder-io/larder/kv"
)

// stored returns the value of a key in the store, with some of its text replaced.
func (p *pair) stored(t testing.TB, key string, replace ...string) []byte {
	t.Helper()
	item, found, _, err := p.store.Get(t.Context(), key)
	if err != nil || !found {
		t.Fatalf("%s: got found %v and error %v", key, found, err)
	}
	value := item.Value
	for i := 0; i < len(replace); i += 2 {
		if len(replace[i]) != len(replace[i+1]) {
			t.Fatalf("%q and %q differ in length", replace[i], replace[i+1])
		}
		value = bytes.ReplaceAll(value, []byte(replace[i]), []byte(replace[i+1]))
	}
	return value
}

// TestWatchOfOneTransaction writes several objects in one transaction, as other programs on the same etcd may. A
// watch must deliver all of them or, resumed from their revision, none.
func TestWatchOfOneTransaction(t *testing.T) {
	p := newPair(t)
	for _, name := range []string{"nsa", "nsb"} {
		p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`))
	}
	p.ours.must(t, post("/api/v1/namespaces/nsa/configmaps", configmap("seed", "", "")))
	const seed = "/registry/configmaps/nsa/seed"
	_, all := p.openWatch(t, "/api/v1/configmaps?watch=1&labelSelector=!other", "application/json")
	_, one := p.openWatch(t, "/api/v1/namespaces/nsb/configmaps?watch=1", "application/json")
	expect(t, all, "ADDED seed")
	before := fmt.Sprint(p.store.PutAll(map[string][]byte{seed: p.stored(t, seed)}))
	revision := p.store.PutAll(map[string][]byte{
		"/registry/configmaps/nsa/aaaa": p.stored(t, seed, "seed", "aaaa"),
		"/registry/configmaps/nsb/bbbb": p.stored(t, seed, "seed", "bbbb", "nsa", "nsb"),
		seed:                            nil,
	})
	p.ours.must(t, post("/api/v1/namespaces/nsb/configmaps", configmap("last", "", "")))
	transaction := func(in *bufio.Reader) {
		t.Helper()
		seen := make(map[string]bool)
		for range 3 {
			e, raw := nextEvent(t, in)
			seen[e.String()] = true
			if e.Object.Metadata.ResourceVersion != fmt.Sprint(revision) {
				t.Errorf("want revision %d: %s", revision, raw)
			}
		}
		for _, want := range []string{"ADDED aaaa", "ADDED bbbb", "DELETED seed"} {
			if !seen[want] {
				t.Errorf("got events %v, want %s, too", seen, want)
			}
		}
		expect(t, in, "ADDED last")
	}
	expect(t, all, "MODIFIED seed")
	transaction(all)
	expect(t, one, "ADDED bbbb", "ADDED last")
	_, resumed := p.openWatch(t, "/api/v1/configmaps?watch=1&resourceVersion="+before, "application/json")
	transaction(resumed)
	_, after := p.openWatch(t, fmt.Sprintf("/api/v1/configmaps?watch=1&resourceVersion=%d", revision), "application/json")
	expect(t, after, "ADDED last")
}

// TestWatchOfOneNode checks that a pod that moves to another node is deleted from the first node's watch and added to
// the second's.
func TestWatchOfOneNode(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post("/api/v1/namespaces/a/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`))
	watch := func(selector string) *bufio.Reader {
		_, in := p.openWatch(t, "/api/v1/pods?watch=1&fieldSelector="+selector, "application/json")
		return in
	}
	nowhere, first, second := watch("spec.nodeName%3D"), watch("spec.nodeName%3Dnode-1"), watch("spec.nodeName%3Dnode-2")
	notSecond := watch("spec.nodeName!%3Dnode-2,metadata.namespace%3Da")
	expect(t, nowhere, "ADDED p")
	expect(t, notSecond, "ADDED p")
	p.ours.must(t, post("/api/v1/namespaces/a/pods/p/binding", `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node-1"}}`))
	expect(t, nowhere, "DELETED p")
	expect(t, first, "ADDED p")
	expect(t, notSecond, "MODIFIED p")
	const key = "/registry/pods/a/p"
	p.store.PutAll(map[string][]byte{key: p.stored(t, key, "node-1", "node-2")})
	expect(t, first, "DELETED p")
	expect(t, second, "ADDED p")
	expect(t, notSecond, "DELETED p")
	p.store.PutAll(map[string][]byte{key: nil})
	expect(t, second, "DELETED p")
}

// TestWatchOfAReplacedStore checks that watches end when the store is replaced, and cannot resume.
func TestWatchOfAReplacedStore(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	p.ours.must(t, post(configmaps, configmap("one", "", "")))
	_, in := p.openWatch(t, configmaps+"?watch=1", "application/json")
	e, _ := nextEvent(t, in)
	p.ours.must(t, post(configmaps, configmap("mid", "", "")))
	expect(t, in, "ADDED mid")
	p.store.EndWatches(kv.ErrReplaced)
	// The watch gets an ERROR event, or just ends if it was reading at the moment of the reset.
	rest, err := io.ReadAll(in)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if len(rest) > 0 && (bytes.Count(rest, []byte("\n")) != 1 || !bytes.Contains(rest, []byte(`"reason":"Expired","code":410`))) {
		t.Errorf("got %q, want nothing or one ERROR event with code 410", rest)
	}
	p.ours.must(t, post(configmaps, configmap("two", "", "")))
	p.ours.must(t, get(configmaps)) // returns after the cache has been loaded again
	_, in = p.openWatch(t, configmaps+"?watch=1&resourceVersion="+e.Object.Metadata.ResourceVersion, "application/json")
	line, err := in.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var refusal struct {
		Type   string
		Object struct{ Code int }
	}
	if err := json.Unmarshal(line, &refusal); err != nil || refusal.Type != "ERROR" || refusal.Object.Code != http.StatusGone {
		t.Errorf("got %s and error %v, want an ERROR event with code 410", line, err)
	}
}
