package storage

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/larder-io/larder/internal/proctest"
)

// fill creates a number of pods, and waits until the cache has them.
func (f *fixture) fill(pods int) {
	f.t.Helper()
	for i := range pods {
		name := fmt.Sprintf("pod-%03d", i)
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
		if err := f.Create(f.t.Context(), "/pods/a/"+name, pod, &example.Pod{}, 0); err != nil {
			f.t.Fatal(err)
		}
	}
	var all example.PodList
	if err := (retryingStorage{f}).GetList(f.t.Context(), "/pods/", everything(), &all); err != nil || len(all.Items) != pods {
		f.t.Fatalf("got %d pods and error %v, want %d", len(all.Items), err, pods)
	}
}

// next returns the next event of w; ok is false if w has ended.
func next(t *testing.T, w apiwatch.Interface) (event apiwatch.Event, ok bool) {
	t.Helper()
	select {
	case event, ok = <-w.ResultChan():
		return event, ok
	case <-time.After(proctest.Patience):
		t.Fatal("timed out waiting for an event or the end of the watch")
		return
	}
}

func everything() storage.ListOptions {
	return storage.ListOptions{Recursive: true, Predicate: storage.Everything}
}

// TestPanicEndsOneWatch checks that a panic while the events of one watch are built ends only that watch, with an
// error.
func TestPanicEndsOneWatch(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeJSON)
	f.fill(1)
	broken := &adapter{Resource: f.resource} // without a codec
	bad, err := broken.Watch(t.Context(), "/pods/", everything())
	if err != nil {
		t.Fatal(err)
	}
	good, err := f.Watch(t.Context(), "/pods/", everything())
	if err != nil {
		t.Fatal(err)
	}
	defer good.Stop()
	event, ok := next(t, bad)
	if status, is := event.Object.(*metav1.Status); !ok || event.Type != apiwatch.Error || !is || status.Code != http.StatusInternalServerError {
		t.Errorf("got %+v, open %v, want an ERROR event with code 500", event, ok)
	}
	if event, ok := next(t, bad); ok {
		t.Errorf("got %+v after the error, want the end of the watch", event)
	}
	if event, _ := next(t, good); event.Type != apiwatch.Added {
		t.Errorf("got %+v from another watch, want ADDED", event)
	}
}

// once is the signal by which flow control learns that a watch has been initialized.
type once struct {
	given chan struct{}
	close func()
}

func newOnce() *once {
	o := &once{given: make(chan struct{})}
	o.close = sync.OnceFunc(func() { close(o.given) })
	return o
}

// Signal implements InitializationSignal.
func (o *once) Signal() { o.close() }

// Wait implements InitializationSignal.
func (o *once) Wait() { <-o.given }

// TestWatchSignalsItsInitialization checks that a watch signals flow control to release its seat when it has sent the
// initial events, or has ended.
func TestWatchSignalsItsInitialization(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeJSON)
	const pods = storeWatchBuffer + 20
	f.fill(pods)
	signal := newOnce()
	w, err := f.Watch(utilflowcontrol.WithInitializationSignal(t.Context(), signal), "/pods/", everything())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range pods {
		if event, _ := next(t, w); event.Type != apiwatch.Added {
			t.Fatalf("got %+v, want ADDED", event)
		}
		if i > 10 {
			continue
		}
		select { // more are left than the channel holds
		case <-signal.given:
			t.Fatalf("got the signal after %d of %d objects, want it after all", i+1, pods)
		default:
		}
	}
	awaitSignal(t, signal)

	signal = newOnce()
	ctx, cancel := context.WithCancel(utilflowcontrol.WithInitializationSignal(t.Context(), signal))
	if _, err := f.Watch(ctx, "/pods/", everything()); err != nil {
		t.Fatal(err)
	}
	cancel()
	awaitSignal(t, signal)
}

func awaitSignal(t *testing.T, signal *once) {
	t.Helper()
	select {
	case <-signal.given:
	case <-time.After(proctest.Patience):
		t.Error("timed out waiting for the initialization signal")
	}
}

// TestTimesOfBookmarks checks that an idle watch gets a bookmark each minute, and each five seconds if it requests
// progress notifications. A watch with a deadline gets one two seconds before it.
func TestTimesOfBookmarks(t *testing.T) {
	for name, c := range map[string]struct {
		progress, bookmarks bool
		want                []time.Duration
	}{
		"none":      {},
		"bookmarks": {bookmarks: true, want: []time.Duration{60 * time.Second, 120 * time.Second, 148 * time.Second}},
		"progress":  {progress: true, want: []time.Duration{5 * time.Second, 10 * time.Second, 15 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, runtime.ContentTypeProtobuf)
				f.fill(1)
				ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
				defer cancel()
				opts := everything()
				opts.ProgressNotify, opts.Predicate.AllowWatchBookmarks = c.progress, c.bookmarks
				began := time.Now()
				w, err := f.Watch(ctx, "/pods/", opts)
				if err != nil {
					t.Fatal(err)
				}
				var got []time.Duration
				for event := range w.ResultChan() {
					if event.Type == apiwatch.Bookmark {
						got = append(got, time.Since(began))
					}
				}
				if c.progress { // until the deadline
					got = got[:min(len(got), len(c.want))]
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("bookmarks after %v, want %v", got, c.want)
				}
			})
		})
	}
}
