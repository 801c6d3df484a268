package streams

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/watch"
)

// noSource is a [cache.Source] that never catches up.
type noSource struct{}

func (noSource) Fresh() int64                      { return math.MaxInt64 }
func (noSource) Wait(context.Context, int64) error { return errors.ErrUnsupported }

// TestBookmarksAreSentEachMinute checks that an idle watch gets its first bookmark after 20 to 60 seconds, the second
// after 30 to 60 more, then one every minute, and one two seconds before its end. A watch without bookmarks gets none.
func TestBookmarksAreSentEachMinute(t *testing.T) {
	configmaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	encoder := registrytest.New(t, nil).Registry.Endpoint(configmaps, "").View.Encoder(encoding.JSON, encoding.Full)
	for _, bookmarks := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ss, c := New(), &timed{}
			m := new(apimetrics.Resources).Of(configmaps, "").Of("watch", "cluster")
			ws := &watchStream{encoder: encoder, bookmarks: bookmarks, observer: observer{sent: m, open: m, began: time.Now()}}
			ws.ends = ws.observer.began.Add(5 * time.Minute)
			ws.watcher = idleWatcher(t, watch.Options{Bookmarks: bookmarks, Wake: ws.wake})
			ss.begin(ws, c, func(func()) {})
			time.Sleep(6 * time.Minute)
			ss.scheduler.close()
			ss.scheduler.running.Wait()

			var got []time.Duration
			for _, at := range c.bookmarks {
				got = append(got, at.Sub(ws.observer.began))
			}
			if !bookmarks {
				if len(got) > 0 {
					t.Errorf("got bookmarks after %v without allowWatchBookmarks", got)
				}
				return
			}
			if len(got) < 5 {
				t.Fatalf("bookmarks after %v, want at least 4 and one before the end", got)
			}
			if got[0] < 20*time.Second || got[0] > time.Minute {
				t.Errorf("the first bookmark came after %v, want 20 to 60 s", got[0])
			}
			if pause := got[1] - got[0]; pause < 30*time.Second || pause > time.Minute {
				t.Errorf("the second came %v after the first, want 30 to 60 s", pause)
			}
			last := len(got) - 1
			for i := 2; i < last; i++ {
				if pause := got[i] - got[i-1]; pause != time.Minute {
					t.Errorf("%v between bookmarks, want a minute", pause)
				}
			}
			if left := 5*time.Minute - got[last]; left != 2*time.Second {
				t.Errorf("the last bookmark came %v before the end, want 2s", left)
			}
		})
	}
}

// TestLastBookmarkAfterSlowInitialEvents checks that a watch whose initial events take until a second before its end
// gets its last bookmark then.
func TestLastBookmarkAfterSlowInitialEvents(t *testing.T) {
	configmaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	encoder := registrytest.New(t, nil).Registry.Endpoint(configmaps, "").View.Encoder(encoding.JSON, encoding.Full)
	synctest.Test(t, func(t *testing.T) {
		ss, c := New(), &timed{}
		m := new(apimetrics.Resources).Of(configmaps, "").Of("watch", "cluster")
		began := time.Now()
		ws := &watchStream{encoder: encoder, bookmarks: true, ends: began.Add(5 * time.Second), observer: observer{sent: m, open: m, began: began}}
		ws.watcher = idleWatcher(t, watch.Options{Bookmarks: true, Wake: ws.wake})
		time.Sleep(4 * time.Second)
		ss.begin(ws, c, func(func()) {})
		time.Sleep(time.Minute)
		ss.scheduler.close()
		ss.scheduler.running.Wait()
		if len(c.bookmarks) != 1 {
			t.Errorf("bookmarks at %v, want one", c.bookmarks)
		}
	})
}

// TestBookmarksOfAConnectionAreDueTogether checks that watches which share a connection get their bookmarks at the
// same time, whenever they began, and watches of other connections at other times.
func TestBookmarksOfAConnectionAreDueTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss, shared := New(), new(group)
		due := make(map[socket.Group][]time.Time)
		for i := range 100 {
			time.Sleep(7 * time.Second)
			for _, g := range []socket.Group{shared, &group{number: i}, nil} {
				ws := &watchStream{streams: ss, response: response{group: g}}
				first := time.Now().Add(ws.bookmarkPause(time.Now()))
				second := first.Add(ws.bookmarkPause(first))
				due[g] = append(due[g], second)
				if pause := ws.bookmarkPause(second); pause != time.Minute {
					t.Errorf("%v after the second bookmark, want a minute", pause)
				}
			}
		}
		times := make(map[time.Duration]bool)
		for g, all := range due {
			for _, at := range all {
				if g == shared && at.Sub(all[0])%time.Minute != 0 {
					t.Errorf("one watch's bookmark is due %v after another's", at.Sub(all[0]))
				}
				times[at.Sub(ss.bookmarkEpoch)%time.Minute] = true
			}
		}
		if len(times) < 190 { // offsets are nanoseconds, so two are hardly equal
			t.Errorf("%d times for 201 connections", len(times))
		}
	})
}

// group is a connection of several streams.
type group struct{ number int }

func (*group) Flush(*socket.Waiter) {}

// TestTimeoutsBeforeTheBookmark checks that a watch ends at its timeout even while it sends its initial events. A
// watch whose format carries no events ends when its first bookmark is due.
func TestTimeoutsBeforeTheBookmark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := getBatch()
		defer b.release()
		ws := &watchStream{streams: New(), ends: time.Now()}
		time.Sleep(time.Nanosecond)
		b.clock = time.Now()
		if _, err := ws.step(b); err != errEnd {
			t.Errorf("initial events go on: %v", err)
		}
		ws = &watchStream{bookmarks: true, unencodable: true, ends: time.Now().Add(time.Hour), nextBookmark: time.Now()}
		if err := ws.bookmark(b, time.Now()); err != errEnd {
			t.Errorf("a bookmark in a format without events: %v", err)
		}
	})
}

// idleWatcher watches an empty cache that never changes.
func idleWatcher(t *testing.T, options watch.Options) *watch.Watcher {
	t.Helper()
	_, hub := runningHub(t, cache.NewResourceSchema("configmaps", nil), noSource{})
	options.After = 7
	synctest.Wait()
	w, err := hub.Watch(options)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// timed is a connection that records the times of bookmarks.
type timed struct {
	closing
	bookmarks []time.Time
}

func (t *timed) SetWriteDeadline(time.Time) error { return nil }

func (t *timed) Write(p []byte) (int, error) {
	for range bytes.Count(p, []byte(`"BOOKMARK"`)) {
		t.bookmarks = append(t.bookmarks, time.Now())
	}
	return len(p), nil
}

// runningHub returns an empty cache at revision 7 and its hub, which runs until the test ends. source may be nil.
func runningHub(t testing.TB, objects *cache.ResourceSchema, source cache.Source) (*cache.Cache, *watch.Hub) {
	t.Helper()
	var hub *watch.Hub
	kept, err := cache.New(cache.Config{Schema: objects, Source: source, OnAppend: func() { hub.Notify() }})
	if err != nil {
		t.Fatal(err)
	}
	if hub, err = watch.New(watch.Config{Cache: kept}); err != nil {
		t.Fatal(err)
	}
	kept.Reset(nil, 7)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = hub.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return kept, hub
}
