package kv_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// action is one step of a scenario; n selects what it acts on.
type action struct {
	name string
	n    int
}

var actions = []string{
	"put", "put", "put", "delete", "txn", "elsewhere", "apply", "apply", "apply", "take", "load", "load",
	"hold", "release", "end watches", "mute", "unmute", "compact", "restore", "restore in silence",
	"wait a little", "wait long", "resubscribe", "reload", "begin",
}

// owner is the owner of a subscription, with the state that it built from loads and events.
type owner struct {
	prefix   string
	sub      *kv.Subscription
	state    map[string]string
	lost     bool  // has seen that it lost its position
	revision int64 // of the last batch applied, or of the load
	held     []kv.Batch
	losses   int
	fresh    int64 // the last result of Fresh
	restores int   // restores of the store when fresh was last set to 0
	seen     int64 // Tail.Seen when the owner subscribed
}

// fixture is a store, a tail and some owners.
type fixture struct {
	t      *testing.T
	store  *kvtest.Memory
	tail   *kv.Tail
	owners []*owner
	writes int

	restores int
}

// TestTailMatchesItsModel runs random scenarios. After every step the state of an owner must equal the store's at the
// revision that Fresh returns, and Fresh must not decrease.
func TestTailMatchesItsModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		replay := rapid.SampledFrom([]int64{0, 3, 1000}).Draw(r, "replay")
		var scenario []action
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			scenario = append(scenario, action{rapid.SampledFrom(actions).Draw(r, "action"), rapid.IntRange(0, 1000).Draw(r, "n")})
		}
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = runScenario(t, replay, scenario) })
		if failure != nil {
			r.Fatal(failure)
		}
	})
}

func runScenario(t *testing.T, replay int64, scenario []action) error {
	f := &fixture{t: t, store: kvtest.NewMemory()}
	f.tail = kv.NewTail(kv.TailConfig{Store: f.store, Prefix: "/registry", QueueBytes: 2000, Replay: replay})
	kvtest.RunUntilEnd(t, f.tail.Run)
	for _, prefix := range []string{"/registry/pods/", "/registry/nodes/", "/registry/apps/sets/", "/registry/pods/"} {
		f.owners = append(f.owners, &owner{prefix: prefix, sub: f.tail.Subscribe(prefix)})
	}
	for i, step := range scenario {
		f.do(step)
		synctest.Wait()
		if err := f.check(); err != nil {
			return fmt.Errorf("step %d, %s %d: %w", i, step.name, step.n, err)
		}
	}
	return f.awaitSync()
}

func (f *fixture) key(n int) string {
	return []string{"/registry/pods/a/x", "/registry/pods/a/y", "/registry/pods/b/x", "/registry/nodes/n", "/registry/apps/sets/a/s"}[n%5]
}

func (f *fixture) value() []byte {
	f.writes++
	return []byte(strconv.Itoa(f.writes))
}

func (f *fixture) do(step action) {
	o := f.owners[step.n%len(f.owners)]
	switch step.name {
	case "put":
		f.store.PutAll(map[string][]byte{f.key(step.n): f.value()})
	case "delete":
		f.store.PutAll(map[string][]byte{f.key(step.n): nil})
	case "txn":
		values := map[string][]byte{"/elsewhere": f.value()}
		for i := range 1 + step.n%5 {
			values[f.key(step.n+i)] = f.value()
		}
		f.store.PutAll(values)
	case "elsewhere":
		f.store.PutAll(map[string][]byte{"/elsewhere": f.value()})
	case "apply":
		o.take()
		o.apply(len(o.held))
	case "take":
		o.take()
		o.apply(min(len(o.held), 1))
	case "load":
		o.load(f)
	case "hold":
		f.store.Hold()
	case "release":
		f.store.Release()
	case "end watches":
		f.store.EndWatches(errors.New("ended"))
	case "mute", "unmute":
		f.store.IgnoreProgressRequests(step.name == "mute")
	case "compact":
		revision, _ := f.store.Revision(f.t.Context())
		f.store.Compact(revision - int64(step.n%5)) // fails if the revision is already compacted
	case "restore", "restore in silence":
		revision, _ := f.store.Revision(f.t.Context())
		f.restores++
		f.store.Restore(max(1, f.store.Compaction(), revision-int64(step.n%8)), step.name == "restore")
		time.Sleep(10 * time.Second) // a heartbeat finds out
	case "wait a little":
		time.Sleep(time.Duration(step.n) * time.Millisecond)
	case "wait long":
		time.Sleep(time.Duration(step.n) * time.Second)
	case "reload":
		o.sub.Reload()
	case "resubscribe":
		o.sub.Close()
		prefix := o.prefix
		if prefix == "/registry/apps/sets/" {
			prefix = "/registry/apps/"
		} else if prefix == "/registry/apps/" {
			prefix = "/registry/apps/sets/"
		}
		*o = owner{prefix: prefix, sub: f.tail.Subscribe(prefix), restores: f.restores, seen: f.tail.Seen()}
	case "begin": // a load that fails
		if o.state == nil || o.lost {
			if _, _, err := o.sub.Begin(f.t.Context(), 0); err != nil {
				panic(err)
			}
			o.lost = true
		}
	}
}

// take takes the available batches, without waiting.
func (o *owner) take() {
	if len(o.held) > 0 {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	batches, err := o.sub.Next(now)
	if errors.Is(err, kv.ErrLost) {
		o.losses++
		o.lost = true
	}
	o.held = batches
}

// apply applies n of the taken batches.
func (o *owner) apply(n int) {
	for _, batch := range o.held[:n] {
		for _, event := range batch.Events {
			if event.Kind == kv.Delete {
				delete(o.state, event.Key)
			} else {
				o.state[event.Key] = string(event.Value)
			}
		}
		o.revision = batch.Revision
	}
	o.held = o.held[n:]
	o.sub.Applied(n)
}

// load loads an owner that is empty or has lost its position, at the revision that Begin returns.
func (o *owner) load(f *fixture) {
	if o.state != nil && !o.lost {
		return
	}
	if o.restores != f.restores {
		o.restores, o.fresh, o.seen = f.restores, 0, 0
	}
	for past := o.fresh - 1; ; {
		o.state, o.held, o.lost = make(map[string]string), nil, false
		var current int64
		var err error
		if past, current, err = o.sub.Begin(f.t.Context(), past+1); err != nil {
			panic(err)
		}
		if past > 0 && current < o.seen {
			panic(fmt.Sprintf("%s replays from %d to %d, although the tail has seen %d", o.prefix, past, current, o.seen))
		}
		o.revision, err = kv.RangeAll(f.t.Context(), f.store, kv.RangeOptions{Prefix: o.prefix, Revision: past, Limit: 2}, func(page kv.Page) error {
			for _, item := range page.Items {
				o.state[item.Key] = string(item.Value)
			}
			return nil
		})
		if err == nil {
			o.sub.Loaded(o.revision)
			return
		}
		if past == 0 || !errors.Is(err, kv.ErrCompacted) {
			panic(err)
		}
	}
}

// check compares the state of each loaded owner with the store's.
func (f *fixture) check() error {
	for _, o := range f.owners {
		fresh := o.sub.Fresh()
		if fresh < o.fresh && o.restores == f.restores {
			return fmt.Errorf("%s: Fresh = %d after %d", o.prefix, fresh, o.fresh)
		}
		if o.fresh = fresh; fresh == 0 || fresh < f.store.Compaction() {
			continue
		}
		want := make(map[string]string)
		page, err := f.store.Range(f.t.Context(), kv.RangeOptions{Prefix: o.prefix, Revision: max(fresh, o.revision)})
		if err != nil {
			return fmt.Errorf("%s: Fresh = %d: %w", o.prefix, fresh, err)
		}
		for _, item := range page.Items {
			want[item.Key] = string(item.Value)
		}
		if !maps.Equal(o.state, want) {
			return fmt.Errorf("%s: the owner has %v at %d, the store %v", o.prefix, o.state, fresh, want)
		}
	}
	return nil
}

// awaitSync ends the faults of the store. Every owner must then catch up.
func (f *fixture) awaitSync() error {
	f.store.Release()
	f.store.IgnoreProgressRequests(false)
	time.Sleep(10 * time.Second)
	for _, o := range f.owners {
		for range 3 { // a loss may be queued behind the taken batches
			o.load(f)
			o.apply(len(o.held))
			o.take()
			o.apply(len(o.held))
			o.load(f)
		}
	}
	f.store.PutAll(map[string][]byte{"/registry/pods/a/x": f.value(), "/registry/nodes/n": f.value()})
	synctest.Wait()
	revision, _ := f.store.Revision(f.t.Context())
	for _, o := range f.owners {
		o.take()
		o.apply(len(o.held))
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
		err := o.sub.Wait(ctx, revision)
		cancel()
		if err != nil || o.sub.Fresh() < revision {
			return fmt.Errorf("%s does not reach %d: Fresh = %d, %w", o.prefix, revision, o.sub.Fresh(), err)
		}
	}
	return f.check()
}

// TestConcurrentFreshIsNotAheadOfApplied has a reader call Fresh while batches are queued and applied. No result may
// exceed the revision that may be applied.
func TestConcurrentFreshIsNotAheadOfApplied(t *testing.T) {
	store := kvtest.NewMemory()
	tail, sub := followPods(t, store)
	var allowed atomic.Int64 // raised before the owner applies
	allowed.Store(1)
	ctx, cancel := context.WithCancel(t.Context())
	var readers errgroup.Group
	readers.Go(func() error {
		for ctx.Err() == nil {
			if fresh := sub.Fresh(); fresh > allowed.Load() {
				return fmt.Errorf("Fresh = %d, want at most %d", fresh, allowed.Load())
			}
		}
		return nil
	})
	for revision := int64(2); revision < 2000; revision++ {
		if revision%3 == 0 {
			allowed.Store(revision)
			store.PutAll(map[string][]byte{"/registry/nodes/n": {1}})
			continue
		}
		store.PutAll(map[string][]byte{"/registry/pods/p": {1}})
		if revision%16 == 1 { // let batches accumulate
			continue
		}
		if err := tail.Wait(ctx, revision); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() { waited <- sub.Wait(ctx, revision) }()
		batches, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		allowed.Store(revision)
		sub.Applied(len(batches))
		if err := <-waited; err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
}
