package storage

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch"
)

// names returns the names of the listed objects.
func (f *fixture) names(q ListRequest) ([]string, error) {
	listing, err := f.list(q)
	var names []string
	for _, o := range listing.Objects {
		names = append(names, o.Key())
	}
	return names, err
}

// follow opens a watch after a revision.
func (f *fixture) follow(after int64) (*watch.Watcher, error) {
	w, err := f.resource.Watch(context.Background(), WatchRequest{ResourceVersion: strconv.FormatInt(after, 10)})
	if w != nil {
		f.t.Cleanup(w.Close)
	}
	return w, err
}

func expired(err error) bool {
	var inStream *StreamError
	return errors.As(err, &inStream) && apierrors.IsResourceExpired(inStream.Err) || apierrors.IsResourceExpired(err)
}

// restore replaces the store by its state at a revision. Loads wait until the returned function is called.
func (f *fixture) restore(revision int64) (load func()) {
	loading := make(chan struct{})
	f.memory.SetHook(func(op, _ string) error {
		if op == "list" {
			<-loading
		}
		return nil
	})
	f.memory.Restore(revision, false)
	return func() { close(loading) }
}

// TestReadsOfAReplacedStore checks that no read returns lost objects after a response has shown that the store was
// replaced. The first consistent read shows that. The reload may take long.
func TestReadsOfAReplacedStore(t *testing.T) {
	one := Scope{Namespace: "a", Name: "lost"}
	get := func(resourceVersion string) func(*fixture) (int, error) {
		return func(f *fixture) (int, error) {
			o, err := f.resource.Get(context.Background(), one, resourceVersion)
			if storage.IsNotFound(err) {
				return 0, nil
			}
			if o != nil {
				return 2, err
			}
			return 0, err
		}
	}
	list := func(q ListRequest) func(*fixture) (int, error) {
		return func(f *fixture) (int, error) {
			names, err := f.names(q)
			return len(names), err
		}
	}
	for name, c := range map[string]struct {
		read     func(*fixture) (int, error)
		afterGet bool // only once a response has shown that the store was replaced
	}{
		"get":              {get(""), false},
		"get RV=0":         {get("0"), true},
		"get RV=N":         {get("3"), true},
		"list":             {list(ListRequest{}), false},
		"list one":         {list(ListRequest{Scope: one}), false},
		"list pages":       {list(ListRequest{Limit: 5}), false},
		"list RV=0":        {list(ListRequest{ResourceVersion: "0"}), true},
		"list RV=N":        {list(ListRequest{ResourceVersion: "2"}), true},
		"list RV=N, later": {list(ListRequest{ResourceVersion: "3"}), true},
		"watch from now": {func(f *fixture) (int, error) {
			yes := true
			w, err := f.resource.Watch(context.Background(), WatchRequest{SendInitialEvents: &yes, Bookmarks: true})
			if err != nil {
				return 0, err
			}
			defer w.Close()
			deliveries, err := w.Poll(nil)
			return len(deliveries) - 1, err // the last ends the initial ones
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, runtime.ContentTypeProtobuf)
				kept := revisionOf(t, f.create(examplePod("a", "kept")).ResourceVersion)
				f.create(examplePod("a", "lost"))
				if names, err := f.names(ListRequest{}); err != nil || len(names) != 2 {
					t.Fatal(names, err)
				}
				load := f.restore(kept)
				if c.afterGet {
					if _, err := f.memory.Revision(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if n, err := c.read(f); n > 0 || !apierrors.IsTooManyRequests(errorOf(err)) && !expired(err) {
					t.Errorf("during the reload: got %d objects and error %v, want none and a refusal", n, err)
				}
				load()
				synctest.Wait()
				time.Sleep(10 * time.Second)
				if n, err := c.read(f); n > 1 || err != nil && !expired(err) {
					t.Errorf("after the reload: got %d objects and error %v, want at most the kept one", n, err)
				}
			})
		})
	}
}

// errorOf returns the error that a client receives, in the stream or before it.
func errorOf(err error) error {
	var inStream *StreamError
	if errors.As(err, &inStream) {
		return inStream.Err
	}
	return err
}

// TestReadOfAReplacedStoreCountsOneWait checks that a read counts one wait even if the store is replaced while it
// waits.
func TestReadOfAReplacedStoreCountsOneWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		now := revisionOf(t, f.create(examplePod("a", "one")).ResourceVersion)
		value, _, _, err := f.memory.Get(t.Context(), "/pods/a/one")
		if err != nil {
			t.Fatal(err)
		}
		waits := func() uint64 {
			var m dto.Metric
			of := f.resource.GroupResource
			if err := f.resource.reads.waited.WithLabelValues(of.Group, of.Resource).(prometheus.Histogram).Write(&m); err != nil {
				t.Fatal(err)
			}
			return m.GetHistogram().GetSampleCount()
		}
		before := waits()
		done := make(chan error)
		go func() {
			_, err := f.list(ListRequest{ResourceVersion: strconv.FormatInt(now+1, 10)})
			done <- err
		}()
		synctest.Wait()
		f.memory.Hold() // the cache does not receive the write
		write := sync.OnceFunc(func() { f.plant("/pods/a/two", string(value.Value)) })
		f.memory.SetHook(func(op, _ string) error {
			if op == "revision" { // the read checks whether the new history has reached its revision
				write()
			}
			return nil
		})
		f.memory.EndWatches(kv.ErrReplaced)
		synctest.Wait()
		f.memory.Release()
		if err := <-done; err != nil || waits() != before+1 {
			t.Errorf("got error %v and %d waits, want 1", err, waits()-before)
		}
	})
}

// TestRevisionsOfAReplacedStore checks that a revision is too old if the store has not reached it, or if only the
// lost history may have issued it. Revisions of lists since the replacement are accepted.
func TestRevisionsOfAReplacedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		kept := revisionOf(t, f.create(examplePod("a", "kept")).ResourceVersion)
		for i := range 10 {
			f.create(examplePod("a", "lost"+strconv.Itoa(i)))
		}
		open, err := f.follow(kept + 10)
		if err != nil {
			t.Fatal(err)
		}
		listing, err := f.list(ListRequest{Limit: 3})
		if err != nil || listing.Meta.Continue == "" {
			t.Fatal(err)
		}
		load := f.restore(kept)
		load()
		f.create(examplePod("a", "new")) // has the revision that the first lost one had
		synctest.Wait()
		time.Sleep(10 * time.Second)
		if _, err := open.Poll(nil); !errors.Is(err, watch.ErrReplaced) || WatchStatus(err).Code != 410 {
			t.Errorf("watch of the lost history: got error %v, want ErrReplaced with code 410", err)
		}
		exact := func(revision int64) error {
			_, err := f.list(ListRequest{ResourceVersion: strconv.FormatInt(revision, 10), Match: metav1.ResourceVersionMatchExact})
			return err
		}
		for _, revision := range []int64{kept + 1, kept + 5, kept + 10, kept + 1000} {
			if _, err := f.follow(revision); !expired(err) {
				t.Errorf("watch after %d: got error %v, want expired", revision, err)
			}
			if err := exact(revision); !expired(err) {
				t.Errorf("list at %d: got error %v, want expired", revision, err)
			}
		}
		began := time.Now()
		if _, err := f.list(ListRequest{ResourceVersion: strconv.FormatInt(kept+10, 10)}); !expired(err) || time.Since(began) > 0 {
			t.Errorf("list at a revision not reached: got error %v after %v, want expired at once", err, time.Since(began))
		}
		if _, err := f.list(ListRequest{Limit: 3, Continue: listing.Meta.Continue}); !expired(err) {
			t.Errorf("next page of a list of the lost history: got error %v, want expired", err)
		}

		f.create(examplePod("a", "new2"))
		now, err := f.list(ListRequest{})
		if err != nil || now.Meta.Revision != kept+2 || len(now.Objects) != 3 {
			t.Fatalf("got %d objects at %d and error %v, want 3 at %d", len(now.Objects), now.Meta.Revision, err, kept+2)
		}
		if _, err := f.follow(kept + 2); err != nil {
			t.Errorf("watch after the revision of a list: %v", err)
		}
		if err := exact(kept + 2); err != nil {
			t.Errorf("list at the revision of a list: %v", err)
		}
		for i := range 20 {
			f.create(examplePod("b", "new"+strconv.Itoa(i)))
		}
		if _, err := f.list(ListRequest{}); err != nil {
			t.Fatal(err)
		}
		for revision, want := range map[int64]bool{kept + 1: true, kept + 10: true, kept + 11: false, kept + 20: false} {
			if _, err := f.follow(revision); expired(err) != want || !want && err != nil {
				t.Errorf("watch after %d: got error %v, want expired: %v", revision, err, want)
			}
		}
	})
}

// TestWatchesOfAReplacedStore checks that a watch can resume where another ended that was opened after the store was
// replaced: at an event, a bookmark or the end of the initial events. It cannot resume at an earlier revision, nor
// where a watch of the lost history ended.
func TestWatchesOfAReplacedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		kept := revisionOf(t, f.create(examplePod("a", "kept")).ResourceVersion)
		lost, err := f.follow(kept)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			f.create(examplePod("a", "lost"+strconv.Itoa(i)))
		}
		lastRevision := func(w *watch.Watcher) int64 {
			t.Helper()
			synctest.Wait()
			deliveries, err := w.Poll(nil)
			if err != nil || len(deliveries) == 0 {
				t.Fatal(deliveries, err)
			}
			return deliveries[len(deliveries)-1].Revision
		}
		if got := lastRevision(lost); got != kept+20 {
			t.Fatalf("got last event at %d, want %d", got, kept+20)
		}
		f.restore(kept)()
		synctest.Wait()
		time.Sleep(10 * time.Second)
		lost.Close()
		open := func(q WatchRequest) *watch.Watcher {
			t.Helper()
			q.Bookmarks = true
			w, err := f.resource.Watch(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			return w
		}
		checkResume := func(what string, revision int64, want bool) {
			t.Helper()
			w, err := f.follow(revision)
			if expired(err) == want || want && err != nil {
				t.Errorf("watch after %s, at %d: got error %v, want resumed: %v", what, revision, err, want)
			}
			if w != nil {
				w.Close()
			}
		}
		yes := true
		f.create(examplePod("b", "new1"))
		f.create(examplePod("b", "new2"))
		synctest.Wait()
		w := open(WatchRequest{SendInitialEvents: &yes, ResourceVersion: "0"})
		if got := lastRevision(w); got != kept+2 {
			t.Fatalf("got the end of the initial events at %d, want %d", got, kept+2)
		}
		checkResume("the initial events of an open watch", kept+2, false)
		w.Close()
		checkResume("initial events", kept+2, true)
		w = open(WatchRequest{ResourceVersion: strconv.FormatInt(kept+2, 10)})
		f.create(examplePod("b", "new3"))
		lastRevision(w)
		f.create(examplePod("b", "new4"))
		lastRevision(w)
		w.Close()
		checkResume("an event", kept+4, true)
		checkResume("an event that was not the last", kept+3, false)
		w = open(WatchRequest{ResourceVersion: strconv.FormatInt(kept+4, 10), Scope: Scope{Namespace: "z"}})
		f.create(examplePod("b", "new5"))
		f.create(examplePod("b", "new6"))
		synctest.Wait()
		if d, err := w.Poll(nil); len(d) > 0 || err != nil {
			t.Fatal(d, err)
		}
		if b, ok := w.Bookmark(); !ok || b.Revision != kept+6 {
			t.Fatal(b, ok)
		}
		w.Close()
		checkResume("a bookmark", kept+6, true)
		checkResume("nothing", kept+5, false)
		for i := 7; i <= 20; i++ {
			f.create(examplePod("b", "new"+strconv.Itoa(i)))
		}
		synctest.Wait()
		checkResume("an event of the lost history", kept+20, false)
	})
}

// TestWatchesOfRevisionsNotReached checks that a watch of a revision that the store has not reached fails, because no replica can
// have issued it. If only the cache has not reached the revision, the watch waits.
func TestWatchesOfRevisionsNotReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		now := revisionOf(t, f.create(examplePod("a", "one")).ResourceVersion)
		if _, err := f.follow(now + 1); !expired(err) {
			t.Errorf("watch after a revision that the store has not reached: got error %v, want expired", err)
		}
		f.memory.Hold() // a sibling is ahead
		value, _, _, err := f.memory.Get(t.Context(), "/pods/a/one")
		if err != nil {
			t.Fatal(err)
		}
		revision := f.plant("/pods/a/two", string(value.Value))
		w, err := f.follow(revision)
		if err != nil {
			t.Fatalf("watch after a revision that only the cache has not reached: %v", err)
		}
		f.memory.Release()
		next := f.plant("/pods/a/three", string(value.Value))
		synctest.Wait()
		if deliveries, err := w.Poll(nil); err != nil || len(deliveries) != 1 || deliveries[0].Revision != next {
			t.Errorf("got %v and error %v, want the event at %d", deliveries, err, next)
		}
	})
}

// TestResumes checks that Resumes accepts only a revision of the store's current history that the cache has, which at
// most 256 changes follow.
func TestResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		first := revisionOf(t, f.create(examplePod("a", "first")).ResourceVersion)
		last := first
		for i := range fewEvents {
			last = revisionOf(t, f.create(examplePod("b", strconv.Itoa(i))).ResourceVersion)
		}
		check := func(revision string, want bool) {
			t.Helper()
			if got := f.resource.Resumes(revision); got != want {
				t.Errorf("Resumes(%q): got %v, want %v", revision, got, want)
			}
		}
		synctest.Wait()
		for revision, want := range map[int64]bool{first - 1: false, first: true, last: true, last + 1: false, 1: false} {
			check(strconv.FormatInt(revision, 10), want)
		}
		for _, revision := range []string{"", "0", "-1", "x", "18446744073709551615"} {
			check(revision, false)
		}
		load := f.restore(last - 1)
		load()
		f.create(examplePod("a", "new"))
		now := f.create(examplePod("a", "newer")).ResourceVersion
		synctest.Wait()
		time.Sleep(10 * time.Second)
		check(strconv.FormatInt(first, 10), false)
		check(now, true)
	})
}
