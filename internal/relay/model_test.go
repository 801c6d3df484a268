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

// fixture is an upstream and a mirror of it.
type fixture struct {
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
			f := &fixture{upstream: newUpstream("configmaps", isProtobuf), t: t}
			failure = f.play(scenario)
		})
		if failure != nil {
			r.Fatal(failure)
		}
	})
}

func (f *fixture) play(scenario []step) error {
	store := f.open(f.t)
	m, err := mirror.New(mirror.Config{Store: store, Prefix: prefix})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	defer func() {
		cancel()
		if f.watcher != nil {
			f.watcher.Close()
		}
		f.fresh.Wait()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	}()
	f.mirror = m
	for i, s := range scenario {
		f.do(ctx, s)
		synctest.Wait()
		if err := f.check(); err != nil {
			return fmt.Errorf("step %d, %s %d: %w", i, s.name, s.n, err)
		}
	}
	return f.awaitSync(ctx)
}

func (f *fixture) key(n int) string { return []string{"a/x", "a/y", "b/x", "b/z", "c/x"}[n%5] }

func (f *fixture) do(ctx context.Context, s step) {
	switch s.name {
	case "put":
		f.writes++
		f.put(f.key(s.n), strconv.Itoa(f.writes))
	case "remove":
		if keys := f.present(); len(keys) > 0 {
			f.remove(keys[s.n%len(keys)])
		}
	case "elsewhere":
		f.elsewhere()
	case "cut":
		f.cut()
	case "bookmark":
		f.bookmark()
	case "compact":
		f.locked(func() { f.compacted = max(f.compacted, f.revision-int64(s.n%4)) })
	case "restore": // and long enough that the mirror notices
		f.locked(func() { f.respond, f.served = nil, 0 })
		f.restore(max(f.compacted, f.revision-int64(s.n%6), 1))
		time.Sleep(15 * time.Second)
	case "refuse":
		refused := s.n % 20
		f.locked(func() {
			f.respond = func(*http.Request) *http.Response {
				f.mu.Lock()
				defer f.mu.Unlock()
				if refused--; refused < 0 {
					return nil
				}
				return f.status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
			}
			f.cuts++
		})
	case "lag":
		f.locked(func() { f.served, f.lagging = max(f.revision-int64(s.n%3), 1), s.n%4 })
	case "catch up":
		f.serve(0)
	case "fresh":
		f.fresh.Go(func() { f.readFresh(ctx) })
	case "wait a little":
		time.Sleep(time.Duration(s.n) * time.Millisecond / 10)
	case "wait":
		time.Sleep(time.Duration(s.n) * 10 * time.Millisecond)
	case "wait long":
		time.Sleep(time.Duration(s.n) * 100 * time.Millisecond)
	}
}

// present returns the keys of all objects.
func (f *fixture) present() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.stateLocked(f.revision)))
}

// readFresh reads consistently: the result must include all earlier writes.
func (f *fixture) readFresh(ctx context.Context) {
	f.mu.Lock()
	before, cuts, revision := f.stateLocked(f.revision), f.cuts, f.revision
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	snapshot, err := f.mirror.ConsistentSnapshot(ctx)
	if err != nil {
		return // upstream or its watch does not come so far
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cuts != cuts {
		return // it may have been restored
	}
	for key, c := range before {
		o := snapshot.Get(key)
		switch {
		case o == nil && slices.ContainsFunc(f.log, func(later change) bool { return later.key == key && later.revision > revision }):
		case o == nil || o.Revision() < c.revision:
			f.t.Errorf("a consistent read does not show %s of revision %d", key, c.revision)
		}
	}
}

// check compares the mirror and its watcher with upstream's history.
func (f *fixture) check() error {
	snapshot := f.mirror.Snapshot()
	if !f.mirror.Cache.Ready() || f.mirror.Outdated() {
		return nil
	}
	if snapshot.History() != f.history {
		f.history, f.shown = snapshot.History(), 0
	}
	if snapshot.Revision() < f.shown {
		return fmt.Errorf("the mirror goes back from %d to %d", f.shown, snapshot.Revision())
	}
	f.shown = snapshot.Revision()
	if err := f.checkWatcher(snapshot); err != nil {
		return err
	}
	return f.compare(snapshot, snapshot.Revision())
}

// compare compares a snapshot with upstream at a revision.
func (f *fixture) compare(snapshot cache.Snapshot, revision int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := f.stateLocked(revision)
	for o := range snapshot.All() {
		if c := want[o.Key()]; string(o.Body()) != f.value(c) {
			return fmt.Errorf("at %d the mirror shows %s of %d: %q, want %+v", revision, o.Key(), o.Revision(), o.Body(), c)
		}
	}
	if snapshot.Len() != len(want) {
		return fmt.Errorf("at %d the mirror shows %d objects, want %d", revision, snapshot.Len(), len(want))
	}
	return nil
}

// checkWatcher compares a watcher's deliveries with upstream's log.
func (f *fixture) checkWatcher(snapshot cache.Snapshot) error {
	if f.watcher == nil || f.epoch != snapshot.Epoch() {
		return f.beginWatcher(snapshot)
	}
	deliveries, err := f.watcher.Poll(nil)
	if errors.Is(err, io.EOF) || errors.Is(err, watch.ErrReplaced) {
		return f.beginWatcher(snapshot)
	}
	if err != nil {
		return err
	}
	for _, d := range deliveries {
		f.told = append(f.told, fmt.Sprintf("%06d %s", d.Revision, d.Object.Key()))
		f.informer[d.Object.Key()] = d.Revision
		if d.Type == watch.Deleted {
			delete(f.informer, d.Object.Key())
		}
	}
	if len(f.informer) != snapshot.Len() {
		return fmt.Errorf("the watcher knows %v of %d objects", f.informer, snapshot.Len())
	}
	var want []string
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.log {
		if c.revision > f.began && c.revision <= snapshot.Revision() {
			want = append(want, fmt.Sprintf("%06d %s", c.revision, c.key))
		}
	}
	slices.Sort(f.told)
	slices.Sort(want)
	if !slices.Equal(f.told, want) {
		return fmt.Errorf("the watcher told %q since %d, want %q", f.told, f.began, want)
	}
	return nil
}

func (f *fixture) beginWatcher(snapshot cache.Snapshot) (err error) {
	if f.watcher != nil {
		f.watcher.Close()
	}
	f.informer, f.told, f.began, f.epoch = make(map[string]int64), nil, snapshot.Revision(), snapshot.Epoch()
	for o := range snapshot.All() {
		f.informer[o.Key()] = o.Revision()
	}
	f.watcher, err = f.mirror.Watch(watch.Options{After: snapshot.Revision()})
	return err
}

// awaitSync ends all faults. Then the mirror must show upstream's state.
func (f *fixture) awaitSync(ctx context.Context) error {
	f.locked(func() { f.respond, f.served = nil, 0 })
	time.Sleep(30 * time.Second) // longer than any pause between attempts
	last := f.put("z/last", "1")
	snapshot, err := f.mirror.ConsistentSnapshot(ctx)
	if err != nil {
		return err
	}
	synctest.Wait() // until the watcher has delivered everything
	if snapshot.Revision() != last {
		return fmt.Errorf("the mirror shows revision %d, want %d", snapshot.Revision(), last)
	}
	if err := f.compare(snapshot, last); err != nil {
		return err
	}
	return f.check()
}
