package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/mirror"
)

// step is one step of a scenario; n selects what it acts on.
type step struct {
	name string
	n    int
}

var steps = []string{
	"put", "put", "put", "remove", "elsewhere", "cut", "bookmark", "compact", "restore", "refuse",
	"lag", "catch up", "fresh", "wait a little", "wait", "wait long",
}

// world is an upstream and a mirror of it.
type world struct {
	*upstream
	t      *testing.T
	mirror *mirror.Mirror
	fresh  sync.WaitGroup // readers
	writes int

	// informer has the deliveries of a watcher of the mirror since it began at a revision.
	watcher  *watch.Watcher
	informer map[string]int64
	began    int64
	told     []string
	epoch    uint64
	shown    int64 // by the mirror, in this history
	history  uint64
}

// TestMirrorOfUpstream runs random scenarios. A mirror must show a state that upstream had, never go back, and its
// watchers must get every event. At the end it must show upstream's state.
func TestMirrorOfUpstream(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		isProtobuf := rapid.Bool().Draw(r, "protobuf")
		var scenario []step
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			scenario = append(scenario, step{rapid.SampledFrom(steps).Draw(r, "step"), rapid.IntRange(0, 1000).Draw(r, "n")})
		}
		var failure error
		synctest.Test(t, func(t *testing.T) {
			w := &world{upstream: newUpstream("configmaps", isProtobuf), t: t}
			failure = w.play(scenario)
		})
		if failure != nil {
			r.Fatal(failure)
		}
	})
}

func (w *world) play(scenario []step) error {
	store := w.open(w.t)
	m, err := mirror.New(mirror.Config{Store: store, Prefix: prefix})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	defer func() {
		cancel()
		if w.watcher != nil {
			w.watcher.Close()
		}
		w.fresh.Wait()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}()
	w.mirror = m
	for i, s := range scenario {
		w.do(ctx, s)
		synctest.Wait()
		if err := w.check(); err != nil {
			return fmt.Errorf("step %d, %s %d: %w", i, s.name, s.n, err)
		}
	}
	return w.settle(ctx)
}

func (w *world) key(n int) string { return []string{"a/x", "a/y", "b/x", "b/z", "c/x"}[n%5] }

func (w *world) do(ctx context.Context, s step) {
	switch s.name {
	case "put":
		w.writes++
		w.put(w.key(s.n), strconv.Itoa(w.writes))
	case "remove":
		if keys := w.present(); len(keys) > 0 {
			w.remove(keys[s.n%len(keys)])
		}
	case "elsewhere":
		w.elsewhere()
	case "cut":
		w.cut()
	case "bookmark":
		w.bookmark()
	case "compact":
		w.locked(func() { w.compacted = max(w.compacted, w.revision-int64(s.n%4)) })
	case "restore": // and long enough that the mirror notices
		w.locked(func() { w.answer, w.served = nil, 0 })
		w.restore(max(w.compacted, w.revision-int64(s.n%6), 1))
		time.Sleep(15 * time.Second)
	case "refuse":
		refused := s.n % 20
		w.locked(func() {
			w.answer = func(*http.Request) *http.Response {
				w.mu.Lock()
				defer w.mu.Unlock()
				if refused--; refused < 0 {
					return nil
				}
				return w.status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			}
			w.cuts++
		})
	case "lag":
		w.locked(func() { w.served, w.lagging = max(w.revision-int64(s.n%3), 1), s.n%4 })
	case "catch up":
		w.serve(0)
	case "fresh":
		w.fresh.Go(func() { w.readFresh(ctx) })
	case "wait a little":
		time.Sleep(time.Duration(s.n) * time.Millisecond / 10)
	case "wait":
		time.Sleep(time.Duration(s.n) * 10 * time.Millisecond)
	case "wait long":
		time.Sleep(time.Duration(s.n) * 100 * time.Millisecond)
	}
}

// present returns the keys of all objects.
func (w *world) present() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.stateLocked(w.revision)))
}

// readFresh reads consistently: the result must include all earlier writes.
func (w *world) readFresh(ctx context.Context) {
	w.mu.Lock()
	before, cuts, revision := w.stateLocked(w.revision), w.cuts, w.revision
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	snapshot, err := w.mirror.Fresh(ctx)
	if err != nil {
		return // upstream or its watch does not come so far
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cuts != cuts {
		return // it may have been restored
	}
	for key, c := range before {
		o := snapshot.Get(key)
		switch {
		case o == nil && slices.ContainsFunc(w.log, func(later change) bool { return later.key == key && later.revision > revision }):
		case o == nil || o.Revision() < c.revision:
			w.t.Errorf("a consistent read does not show %s of revision %d", key, c.revision)
		}
	}
}

// check compares the mirror and its watcher with upstream's history.
func (w *world) check() error {
	snapshot := w.mirror.Snapshot()
	if !w.mirror.Cache.Ready() || w.mirror.Outdated() {
		return nil
	}
	if snapshot.History() != w.history {
		w.history, w.shown = snapshot.History(), 0
	}
	if snapshot.Revision() < w.shown {
		return fmt.Errorf("the mirror goes back from %d to %d", w.shown, snapshot.Revision())
	}
	w.shown = snapshot.Revision()
	if err := w.checkWatcher(snapshot); err != nil {
		return err
	}
	return w.compare(snapshot, snapshot.Revision())
}

// compare compares a snapshot with upstream at a revision.
func (w *world) compare(snapshot cache.Snapshot, revision int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := w.stateLocked(revision)
	for o := range snapshot.All() {
		if c := want[o.Key()]; string(o.Body()) != w.value(c) {
			return fmt.Errorf("at %d the mirror shows %s of %d: %q, want %+v", revision, o.Key(), o.Revision(), o.Body(), c)
		}
	}
	if snapshot.Len() != len(want) {
		return fmt.Errorf("at %d the mirror shows %d objects, want %d", revision, snapshot.Len(), len(want))
	}
	return nil
}

// checkWatcher compares a watcher's deliveries with upstream's log.
func (w *world) checkWatcher(snapshot cache.Snapshot) error {
	if w.watcher == nil || w.epoch != snapshot.Epoch() {
		return w.beginWatcher(snapshot)
	}
	deliveries, err := w.watcher.Poll(nil)
	if errors.Is(err, io.EOF) || errors.Is(err, watch.ErrReplaced) {
		return w.beginWatcher(snapshot)
	}
	if err != nil {
		return err
	}
	for _, d := range deliveries {
		w.told = append(w.told, fmt.Sprintf("%06d %s", d.Revision, d.Object.Key()))
		w.informer[d.Object.Key()] = d.Revision
		if d.Type == watch.Deleted {
			delete(w.informer, d.Object.Key())
		}
	}
	if len(w.informer) != snapshot.Len() {
		return fmt.Errorf("the watcher knows %v of %d objects", w.informer, snapshot.Len())
	}
	var want []string
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.log {
		if c.revision > w.began && c.revision <= snapshot.Revision() {
			want = append(want, fmt.Sprintf("%06d %s", c.revision, c.key))
		}
	}
	slices.Sort(w.told)
	slices.Sort(want)
	if !slices.Equal(w.told, want) {
		return fmt.Errorf("the watcher told %q since %d, want %q", w.told, w.began, want)
	}
	return nil
}

func (w *world) beginWatcher(snapshot cache.Snapshot) (err error) {
	if w.watcher != nil {
		w.watcher.Close()
	}
	w.informer, w.told, w.began, w.epoch = make(map[string]int64), nil, snapshot.Revision(), snapshot.Epoch()
	for o := range snapshot.All() {
		w.informer[o.Key()] = o.Revision()
	}
	w.watcher, err = w.mirror.Watch(watch.Options{After: snapshot.Revision()})
	return err
}

// settle ends all faults. Then the mirror must show upstream's state.
func (w *world) settle(ctx context.Context) error {
	w.locked(func() { w.answer, w.served = nil, 0 })
	time.Sleep(30 * time.Second) // longer than any pause between attempts
	last := w.put("z/last", "1")
	snapshot, err := w.mirror.Fresh(ctx)
	if err != nil {
		return err
	}
	synctest.Wait() // until the watcher has delivered everything
	if snapshot.Revision() != last {
		return fmt.Errorf("the mirror shows revision %d, want %d", snapshot.Revision(), last)
	}
	if err := w.compare(snapshot, last); err != nil {
		return err
	}
	return w.check()
}
