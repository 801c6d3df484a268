package storage

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/larder-io/larder/watch"
)

// TestListsAreNoOlderThanOnesOfTheStore checks that lists and watches are never older than an earlier list that was
// read from the store before the cache was ready.
func TestListsAreNoOlderThanOnesOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		f.create(examplePod("a", "one"))
		if _, err := f.list(ListRequest{}); err != nil {
			t.Fatal(err)
		}
		f.memory.Hold()
		f.create(examplePod("a", "two"))
		stored, err := f.resource.listStored(t.Context(), wholeList(), nil)
		if err != nil || len(stored.Objects) != 2 {
			t.Fatalf("got %d objects and error %v", len(stored.Objects), err)
		}
		if _, err := f.list(ListRequest{ResourceVersion: "0"}); err == nil {
			t.Error("a list at revision 0 succeeded while the cache is older than a returned list")
		}
		time.AfterFunc(time.Second, f.memory.Release)
		listing, err := f.list(ListRequest{ResourceVersion: "0"})
		if err != nil || listing.Meta.Revision < stored.Meta.Revision {
			t.Errorf("got a list at %d and error %v after one at %d", listing.Meta.Revision, err, stored.Meta.Revision)
		}

		f.memory.Hold()
		f.create(examplePod("a", "three"))
		if stored, err = f.resource.listStored(t.Context(), wholeList(), nil); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, f.memory.Release)
		if end := f.initialEnd(); end < stored.Meta.Revision {
			t.Errorf("the initial events end at %d, after a list at %d", end, stored.Meta.Revision)
		}
		// After a restore, no list of the new history has been returned yet.
		f.memory.Restore(stored.Meta.Revision-1, true)
		f.until("the cache has loaded again", func() bool {
			listing, err = f.list(ListRequest{ResourceVersion: "0"})
			return err == nil && listing.Meta.Revision < stored.Meta.Revision
		})
	})
}

// TestReadsOfUncachedResourcesAreLinearizable checks that reads of events show all writes before them at any
// resourceVersion, as upstream's do, which read the store.
func TestReadsOfUncachedResourcesAreLinearizable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.ResourcePrefix = "/events" })
		create := func(name string) string {
			made := &example.Pod{}
			if err := f.Create(t.Context(), "/events/a/"+name, examplePod("a", name), made, 0); err != nil {
				t.Fatal(err)
			}
			return made.ResourceVersion
		}
		first := create("one")
		if _, err := f.list(ListRequest{}); err != nil {
			t.Fatal(err)
		}
		for i, version := range []string{"0", first} {
			name := fmt.Sprint("later", i)
			f.memory.Hold()
			create(name)
			time.AfterFunc(time.Second, f.memory.Release)
			if _, err := f.resource.Get(t.Context(), Scope{Namespace: "a", Name: name}, version); err != nil {
				t.Errorf("get at resourceVersion %q: %v", version, err)
			}
			f.memory.Hold()
			create(name + "-listed")
			time.AfterFunc(time.Second, f.memory.Release)
			listing, err := f.list(ListRequest{ResourceVersion: version, Match: metav1.ResourceVersionMatchNotOlderThan})
			if want := 3 + 2*i; err != nil || len(listing.Objects) != want {
				t.Errorf("list at %s: %d objects, %v; want %d", version, len(listing.Objects), err, want)
			}
		}
		f.memory.Hold()
		last := create("watched")
		time.AfterFunc(time.Second, f.memory.Release)
		if end := f.initialEnd(); fmt.Sprint(end) != last {
			t.Errorf("the initial events end at %d, after a write at %s", end, last)
		}
		f.memory.Hold()
		f.memory.IgnoreProgressRequests(true)
		create("lagging")
		if listing, err := f.list(ListRequest{ResourceVersion: "0"}); err != nil || len(listing.Objects) != 7 {
			t.Errorf("list while the cache lags: got %d objects and error %v", len(listing.Objects), err)
		}
	})
}

// initialEnd returns the revision at which the initial events of a watch at resourceVersion=0 end.
func (f *fixture) initialEnd() int64 {
	f.t.Helper()
	yes := true
	w, err := f.resource.Watch(f.t.Context(), WatchRequest{ResourceVersion: "0", SendInitialEvents: &yes, Bookmarks: true})
	if err != nil {
		f.t.Fatal(err)
	}
	defer w.Close()
	for {
		deliveries, err := w.Next(f.t.Context(), nil)
		if err != nil {
			f.t.Fatal(err)
		}
		if d := deliveries[len(deliveries)-1]; d.Type == watch.InitialEnd {
			return d.Revision
		}
	}
}

// wholeList is a list of all objects, as List passes it on.
func wholeList() checkedList {
	q := ListRequest{}.withSelectors()
	return checkedList{q: q, prefix: "/pods/"}
}

// TestPagesOfALaggingCacheCanBeRead checks that a list with a minimum revision begins at a revision whose next page
// can be read. Everything up to the minimum may be compacted.
func TestPagesOfALaggingCacheCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		first := f.create(examplePod("a", "one"))
		f.create(examplePod("a", "two"))
		if _, err := f.list(ListRequest{}); err != nil {
			t.Fatal(err)
		}
		f.memory.Hold()
		last := revisionOf(t, f.create(examplePod("a", "three")).ResourceVersion)
		if err := f.memory.Compact(last); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, f.memory.Release)
		request := ListRequest{ResourceVersion: first.ResourceVersion, Match: metav1.ResourceVersionMatchNotOlderThan, Limit: 1}
		for pages := 1; ; pages++ {
			listing, err := f.resource.List(context.Background(), request, nil)
			if err != nil {
				t.Fatalf("page %d: got error %v", pages, err)
			}
			if request = (ListRequest{Limit: 1, Continue: listing.Meta.Continue}); listing.Meta.Continue == "" {
				return
			}
		}
	})
}
