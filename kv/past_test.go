package kv_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestReplayBeginsAtAnExistingRevision checks at which revision a Tail begins to replay, how many requests it needs to
// find it, and that later subscriptions begin there, too.
func TestReplayBeginsAtAnExistingRevision(t *testing.T) {
	const current = 1001
	for _, c := range []struct {
		name                string
		replay              int64
		compacted, recorded int64  // by the compaction protocol
		fail                string // operation that fails three times
		forbidden           bool   // get of the compaction protocol's key fails
		past                int64
		requests            int // at most
	}{
		{name: "no replay", past: 0},
		{name: "all", replay: 5000, past: 1, requests: 2},
		{name: "bounded", replay: 100, past: current - 100, requests: 2},
		{name: "compacted", replay: 5000, compacted: 700, recorded: 700, past: 700, requests: 2},
		{name: "compacted without the protocol", replay: 5000, compacted: 700, past: 700, requests: 13},
		{name: "protocol is behind", replay: 5000, compacted: 700, recorded: 300, past: 700, requests: 13},
		{name: "compacted before the bound", replay: 100, compacted: 700, recorded: 700, past: current - 100, requests: 2},
		{name: "compacted up to the current revision", replay: 100, compacted: current, past: 0, requests: 10},
		{name: "get is forbidden", replay: 5000, compacted: 700, recorded: 700, forbidden: true, past: 700, requests: 13},
		{name: "get fails", replay: 100, fail: "get", past: current - 100, requests: 5},
		{name: "list fails", replay: 5000, compacted: 700, fail: "list", past: 700, requests: 16},
		{name: "revision fails", replay: 100, fail: "revision", past: current - 100, requests: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				if c.recorded > 0 {
					kvtest.Put(t, store, "compact_rev_key", strconv.FormatInt(c.recorded, 10))
				}
				for i := 0; ; i++ {
					if kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i)) == current {
						break
					}
				}
				if c.compacted > 0 {
					if err := store.Compact(c.compacted); err != nil {
						t.Fatal(err)
					}
				}
				requests, failures := 0, 0
				store.SetHook(func(op, key string) error {
					if key == "compact_rev_key" || key == "/registry/health/" {
						requests++
					}
					if op == "get" && c.forbidden {
						return rpctypes.ErrPermissionDenied
					}
					if op == c.fail && failures < 3 {
						failures++
						return errors.New("no response")
					}
					return nil
				})
				clock := kv.Clock{Prefix: "/registry/pods/", Ticks: 8, Limit: 50} // extends none of the replays
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: c.replay, Clock: clock})
				sub := tail.Subscribe("/registry/pods/")
				kvtest.RunUntilEnd(t, tail.Run)
				past, until := begin(t, sub, 0)
				if past != c.past || past > 0 && until != current {
					t.Errorf("the replay is from %d to %d, want from %d to %d", past, until, c.past, current)
				}
				synctest.Wait() // until the past events were delivered
				if requests > c.requests {
					t.Errorf("%d requests, want at most %d", requests, c.requests)
				}
				late := tail.Subscribe("/registry/pods/")
				if past, until := begin(t, late, 0); past != c.past || past > 0 && until != current {
					t.Errorf("a late subscription replays from %d to %d, want from %d to %d", past, until, c.past, current)
				}
			})
		})
	}
}

// TestClockExtendsTheReplay checks that a replay with too few ticks is extended, as far as the limit and the store allow.
func TestClockExtendsTheReplay(t *testing.T) {
	const prefix = "/registry/leases/kube-system/apiserver-"
	for _, c := range []struct {
		name      string
		every     int // revisions between two ticks
		clock     kv.Clock
		compacted int64
		reach     int64
	}{
		{name: "no clock", every: 40, reach: 100},
		{name: "ticks enough", every: 10, clock: kv.Clock{Ticks: 8, Limit: 500}, reach: 100},
		{name: "ticks too far apart", every: 40, clock: kv.Clock{Ticks: 8, Limit: 500}, reach: 8*40 + 1},
		{name: "longer than the limit", every: 80, clock: kv.Clock{Ticks: 8, Limit: 500}, reach: 500},
		{name: "fewer ticks than wanted", every: 400, clock: kv.Clock{Ticks: 8, Limit: 900}, reach: 601},
		{name: "the last tick is long ago", every: 5000, clock: kv.Clock{Ticks: 8, Limit: 500}, reach: 500},
		{name: "no such keys", every: 40, clock: kv.Clock{Prefix: "/registry/none/", Ticks: 8, Limit: 500}, reach: 100},
		{name: "compacted", every: 40, clock: kv.Clock{Ticks: 8, Limit: 500}, compacted: 800, reach: 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const current = 1000
				store := kvtest.NewMemory()
				kvtest.Put(t, store, prefix+"ended", "1")
				for i := int64(3); i <= current; i++ {
					key := "/registry/pods/a"
					if i%int64(c.every) == 0 {
						key = prefix + "alive"
					}
					if at := kvtest.Put(t, store, key, strconv.FormatInt(i, 10)); at != i {
						t.Fatalf("wrote %d, want %d", at, i)
					}
				}
				if c.compacted > 0 {
					if err := store.Compact(c.compacted); err != nil {
						t.Fatal(err)
					}
				}
				c.clock.Prefix = cmp.Or(c.clock.Prefix, prefix)
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 100, Clock: c.clock})
				sub := tail.Subscribe("/registry/pods/")
				kvtest.RunUntilEnd(t, tail.Run)
				if past, _ := begin(t, sub, 0); past != current-c.reach {
					t.Errorf("the replay begins at %d, want %d", past, current-c.reach)
				}
				synctest.Wait()
				late := tail.Subscribe("/registry/configmaps/")
				if past, _ := begin(t, late, 0); past != current-c.reach {
					t.Errorf("the replay of a late subscription begins at %d, want %d", past, current-c.reach)
				}
			})
		})
	}
}

// TestBeginWaitsForTheTail checks that Begin does not return before the Tail has found its first revision.
func TestBeginWaitsForTheTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		kvtest.Put(t, store, "/registry/pods/a", "1")
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		sub, closed := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/nodes/")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := sub.Begin(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Begin before Run: got error %v, want DeadlineExceeded", err)
		}
		closed.Close()
		if past, _ := begin(t, closed, 0); past != 0 {
			t.Errorf("a closed subscription begins at %d, want 0", past)
		}
		kvtest.RunUntilEnd(t, tail.Run)
		if past, until := begin(t, sub, 0); past != 1 || until != 2 {
			t.Errorf("the replay is from %d to %d, want from 1 to 2", past, until)
		}
		sub.Loaded(1)
		if past, _ := begin(t, sub, 0); past != 0 {
			t.Errorf("a loaded subscription begins at %d, want 0", past)
		}
	})
}

// TestBeginReturnsAnExistingRevision checks that an owner that cannot load at the Tail's first revision gets a later one
// that still exists, also after a loss.
func TestBeginReturnsAnExistingRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for i := range 20 { // revisions 2 to 21
			kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i))
		}
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		sub := tail.Subscribe("/registry/pods/")
		kvtest.RunUntilEnd(t, tail.Run)
		if err := errors.Join(tail.Wait(t.Context(), 21), store.Compact(15)); err != nil {
			t.Fatal(err)
		}
		for least, want := range map[int64]int64{0: 11, 11: 11, 12: 15, 15: 15, 18: 18, 20: 20, 21: 0, 30: 0} {
			if past, until := begin(t, sub, least); past != want || past > 0 && until != 21 {
				t.Errorf("from %d on: the replay is from %d to %d, want from %d to 21", least, past, until, want)
			}
		}
		var once sync.Once
		store.SetHook(func(op, key string) error {
			if op == "list" && key == "/registry/health/" {
				once.Do(func() {
					store.SetHook(nil)
					kvtest.Put(t, store, "/registry/pods/a", "x") // first, because the Tail reads the revision at once
					store.EndWatches(kv.ErrCompacted)
					time.Sleep(time.Second)
				})
			}
			return nil
		})
		begin(t, sub, 12)
		sub.Loaded(15)
		if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
			t.Errorf("Next after the loss: got error %v, want ErrLost", err)
		}
		if past, until := begin(t, sub, 12); past != 15 || until != 22 {
			t.Errorf("after the loss: the replay is from %d to %d, want from 15 to 22", past, until)
		}
		sub.Loaded(15)
		for want := int64(16); want <= 22; {
			batches, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err) // the same loss is not reported again
			}
			for _, batch := range batches {
				if batch.Revision != want {
					t.Fatalf("revision %d, want %d", batch.Revision, want)
				}
				want++
			}
		}
	})
}

// TestNoReplayAfterALaterCompaction checks that nothing is replayed if the store was compacted beyond the current
// revision of the Tail's start.
func TestNoReplayAfterALaterCompaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		write := func() {
			for i := range 20 {
				kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i))
			}
		}
		write()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		sub := tail.Subscribe("/registry/pods/")
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		write()
		kvtest.Put(t, store, "compact_rev_key", "28")
		if err := store.Compact(28); err != nil {
			t.Fatal(err)
		}
		if past, until := begin(t, sub, 15); past != 0 {
			t.Errorf("the replay is from %d to %d, want none", past, until)
		}
	})
}

// TestBeginEndsWithItsContext checks that Begin returns the error of its context, and not that there is no past, if the
// context ends while it looks for a readable revision.
func TestBeginEndsWithItsContext(t *testing.T) {
	for _, at := range []string{"get", "list"} {
		synctest.Test(t, func(t *testing.T) {
			store := kvtest.NewMemory()
			for i := range 20 {
				kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i))
			}
			tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
			sub := tail.Subscribe("/registry/pods/")
			kvtest.RunUntilEnd(t, tail.Run)
			begin(t, sub, 0)
			ctx, cancel := context.WithCancel(t.Context())
			store.SetHook(func(op, key string) error {
				if op == at && (key == "compact_rev_key" || key == "/registry/health/") {
					cancel()
				}
				return nil
			})
			if past, until, err := sub.Begin(ctx, 15); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %d to %d and error %v, want Canceled", at, past, until, err)
			}
		})
	}
}

// begin calls Begin with a timeout.
func begin(t *testing.T, sub *kv.Subscription, least int64) (past, until int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	past, until, err := sub.Begin(ctx, least)
	if err != nil {
		t.Fatal(err)
	}
	return past, until
}

// TestReplayAfterALoss checks that a replay after a gap begins at the compacted revision, and that nothing is replayed
// from a replaced store, even if it is compacted later.
func TestReplayAfterALoss(t *testing.T) {
	const writes = 10 // revisions 2 to 11
	type fault func(*testing.T, *kvtest.Memory)
	compact := func(to int64) fault {
		return func(t *testing.T, store *kvtest.Memory) {
			store.Hold()
			store.EndWatches(errors.New("connection lost"))
			for i := range writes {
				kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i))
			}
			if err := store.Compact(to); err != nil {
				t.Error(err)
			}
			store.Release()
		}
	}
	lose := func(t *testing.T, store *kvtest.Memory) {
		kvtest.Put(t, store, "/registry/pods/a", "lost")
		store.EndWatches(kv.ErrCompacted)
	}
	replace := func(_ *testing.T, store *kvtest.Memory) { store.Restore(5, true) }
	replaceUnannounced := func(_ *testing.T, store *kvtest.Memory) { store.Restore(5, false) }
	// before calls do before the Tail reads the revision for the nth time.
	before := func(nth int, store *kvtest.Memory, do func()) {
		store.SetHook(func(op, _ string) error {
			if op == "revision" {
				if nth--; nth == 0 {
					store.SetHook(nil)
					do()
				}
			}
			return nil
		})
	}
	replaceMeanwhile := func(t *testing.T, store *kvtest.Memory) {
		before(1, store, func() {
			store.Restore(5, true)
			compact(6)(t, store)
		})
		store.EndWatches(kv.ErrCompacted)
	}
	replaceUnannouncedMeanwhile := func(_ *testing.T, store *kvtest.Memory) {
		before(1, store, func() { store.Restore(5, false) })
		store.EndWatches(kv.ErrCompacted)
	}
	replaceAndWrite := func(t *testing.T, store *kvtest.Memory) {
		store.Restore(5, false)
		before(2, store, func() { compact(6)(t, store) }) // the first read is a heartbeat's
	}
	for name, c := range map[string]struct {
		replay int64
		faults []fault
		past   int64
	}{
		"compacted":                             {5, []fault{compact(18)}, 18},
		"compacted long ago":                    {2, []fault{compact(14)}, 19},
		"compacted up to the last revision":     {5, []fault{compact(21)}, 0},
		"compacted twice":                       {50, []fault{compact(14), compact(24)}, 24},
		"replaced":                              {5, []fault{replace}, 0},
		"replaced unannounced":                  {5, []fault{replaceUnannounced}, 0},
		"replaced, then compacted":              {50, []fault{replace, compact(8)}, 8},
		"replaced, then lost":                   {50, []fault{replace, lose}, 5},
		"replaced unannounced, then lost":       {50, []fault{replaceUnannounced, lose}, 5},
		"replaced after a loss":                 {50, []fault{replaceMeanwhile}, 0},
		"replaced unannounced, after a loss":    {50, []fault{replaceUnannouncedMeanwhile}, 0},
		"replaced unannounced, then written to": {50, []fault{replaceAndWrite}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				for i := range writes {
					kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i))
				}
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: c.replay})
				sub := tail.Subscribe("/registry/pods/")
				kvtest.RunUntilEnd(t, tail.Run)
				for _, fault := range c.faults {
					synctest.Wait()
					fault(t, store)
					time.Sleep(10 * time.Second) // until a heartbeat detects it
				}
				past, until := begin(t, sub, 0)
				if past != c.past {
					t.Errorf("the replay begins at %d, want %d", past, c.past)
				}
				newest, err := store.Revision(t.Context())
				if err != nil || past > 0 && until != newest {
					t.Errorf("the replay ends at %d, error %v; want %d", until, err, newest)
				}
			})
		})
	}
}

// TestReplaysDeliverEachEventOnce replays many revisions while the store fails in various ways.
func TestReplaysDeliverEachEventOnce(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(store *kvtest.Memory)
		lost  bool
	}{
		"no fault":    {fault: func(*kvtest.Memory) {}},
		"watches end": {fault: func(store *kvtest.Memory) { store.EndWatches(errors.New("connection lost")) }},
		"compacted":   {fault: func(store *kvtest.Memory) { store.EndWatches(kv.ErrCompacted) }, lost: true},
		"replaced":    {fault: func(store *kvtest.Memory) { store.Restore(500, true) }, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				var want []int64
				for i := range 20_000 {
					key := "/elsewhere"
					if i < 9_000 || i == 15_500 || i > 19_000 && i < 19_500 {
						key = "/registry/pods/a"
					}
					revision := store.PutAll(map[string][]byte{key: []byte("x")})
					if key != "/elsewhere" {
						want = append(want, revision)
					}
				}
				store.Hold()
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
				sub := tail.Subscribe("/registry/pods/")
				kvtest.RunUntilEnd(t, tail.Run)
				past, _, err := sub.Begin(t.Context(), 0)
				if past != 1 || err != nil {
					t.Fatalf("the replay begins at %d, error %v; want 1", past, err)
				}
				sub.Loaded(past)
				synctest.Wait()
				c.fault(store)
				store.Release()
				var got []int64
				for len(got) < len(want) {
					batches, err := sub.Next(t.Context())
					if errors.Is(err, kv.ErrLost) && c.lost {
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					for _, batch := range batches {
						got = append(got, batch.Revision)
					}
					sub.Applied(len(batches))
				}
				if c.lost || !slices.Equal(got, want) {
					t.Errorf("got %d revisions, want ErrLost: %v, otherwise %d revisions", len(got), c.lost, len(want))
				}
				if err := sub.Wait(t.Context(), 20_001); err != nil || sub.Fresh() < 20_001 {
					t.Errorf("Fresh = %d, Wait: %v; want 20001", sub.Fresh(), err)
				}
			})
		})
	}
}

// TestLateSubscriptionsReplay checks that a subscription created long after the Tail started gets the past events of its
// prefix once and in order, as far as the store and the Tail still have them.
func TestLateSubscriptionsReplay(t *testing.T) {
	for _, c := range []struct {
		name      string
		replay    int64
		compacted int64
		least     int64
		queue     int64
		past      int64
	}{
		{name: "all", replay: 5000, past: 1},
		{name: "bounded", replay: 20, past: 41 - 20},
		{name: "from a revision on", replay: 5000, least: 30, past: 30},
		{name: "compacted", replay: 5000, compacted: 25, past: 25},
		{name: "too much for the queue", replay: 5000, queue: 300},
		{name: "no replay", replay: 0},
		{name: "no later revision", replay: 5000, least: 41},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				for i := range 20 { // revisions 2 to 21
					kvtest.Put(t, store, fmt.Sprintf("/registry/%s/a", []string{"pods", "nodes"}[i%2]), strconv.Itoa(i))
				}
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: c.replay, QueueBytes: c.queue})
				kvtest.RunUntilEnd(t, tail.Run)
				synctest.Wait()
				for i := range 20 { // revisions 22 to 41
					kvtest.Put(t, store, fmt.Sprintf("/registry/%s/a", []string{"pods", "nodes"}[i%2]), strconv.Itoa(i))
				}
				if err := tail.Wait(t.Context(), 41); err != nil {
					t.Fatal(err)
				}
				if c.compacted > 0 {
					if err := store.Compact(c.compacted); err != nil {
						t.Fatal(err)
					}
				}
				sub := tail.Subscribe("/registry/pods/")
				kvtest.Put(t, store, "/registry/pods/a", "new") // revision 42
				synctest.Wait()                                 // it is in the queue
				past, until := begin(t, sub, c.least)
				if past != c.past || past > 0 && until != 41 {
					t.Fatalf("the replay is from %d to %d, want from %d to 41", past, until, c.past)
				}
				if again, to := begin(t, sub, c.least); again != past || to != until { // as after a failed load
					t.Fatalf("the replay is from %d to %d, and after a second Begin from %d to %d", past, until, again, to)
				}
				if past == 0 {
					past = 41
				}
				sub.Loaded(past)
				var want, got []int64
				for revision := past + 1; revision <= 42; revision++ {
					if revision%2 == 0 {
						want = append(want, revision)
					}
				}
				for len(got) < len(want) {
					batches, err := sub.Next(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					for _, batch := range batches {
						got = append(got, batch.Revision)
						sub.Applied(1)
					}
				}
				if err := sub.Wait(t.Context(), 42); err != nil || !slices.Equal(got, want) {
					t.Errorf("got revisions %d, want %d; Wait: %v", got, want, err)
				}
				synctest.Wait()
				if n := store.Watches(); n != 1 {
					t.Errorf("%d watches are open, want 1", n)
				}
			})
		})
	}
}

// TestConcurrentReplaysShareProgressRequests checks that replays of many prefixes with few events share requests for
// progress, because each request causes a response in every watch.
func TestConcurrentReplaysShareProgressRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 5000})
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		for i := range 100 {
			kvtest.Put(t, store, fmt.Sprintf("/registry/kinds%d/a", i), "1")
		}
		if err := tail.Wait(t.Context(), 101); err != nil {
			t.Fatal(err)
		}
		var requests atomic.Int64
		store.SetHook(func(op, _ string) error {
			if op == "progress" {
				requests.Add(1)
			}
			return nil
		})
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				sub := tail.Subscribe(fmt.Sprintf("/registry/kinds%d/", i))
				if past, until, err := sub.Begin(t.Context(), 0); past == 0 || until != 101 || err != nil {
					t.Errorf("the replay is from %d to %d, error %v; want one to 101", past, until, err)
				}
			})
		}
		all.Wait()
		if n := requests.Load(); n == 0 || n > 10 {
			t.Errorf("progress was requested %d times, want 1 to 10", n)
		}
	})
}

// TestPrefixesWithoutEventsAreNotReplayed checks that past events of a prefix are not read if the Tail knows that there
// are none.
func TestPrefixesWithoutEventsAreNotReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 5000})
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		kvtest.Put(t, store, "/registry/example.com/busy/ns/a", "1")
		revision := kvtest.Put(t, store, "/registry/example.com/closed/ns/a", "1")
		if err := tail.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		tail.Subscribe("/registry/example.com/closed/").Close()
		for _, c := range []struct {
			prefix string
			quiet  bool
		}{
			{"/registry/example.com/quiet/", true},
			{"/registry/example.com/busy/", false},
			{"/registry/example.com/closed/", false},
			{"/registry/quiet/", true},
			{"/registry/too/deep/quiet/", false},
		} {
			opened := countWatches(store)
			sub := tail.Subscribe(c.prefix)
			if past, until, err := sub.Begin(t.Context(), 0); past != 1 || until != revision || err != nil {
				t.Errorf("%s: the replay is from %d to %d, error %v; want from 1 to %d", c.prefix, past, until, err, revision)
			}
			sub.Loaded(1)
			if fresh := sub.Fresh(); fresh == 0 || c.quiet && fresh != revision {
				t.Errorf("%s: Fresh = %d, want more than 0, and %d if quiet", c.prefix, fresh, revision)
			}
			if quiet := opened.Load() == 0; quiet != c.quiet {
				t.Errorf("%s: past events were not read: %v, want %v", c.prefix, quiet, c.quiet)
			}
		}
	})
}

// TestEventsDeliveredToOthersAreReplayed checks that a later subscription replays events that were delivered to another
// subscription only, and does not take its prefix for one without events.
func TestEventsDeliveredToOthersAreReplayed(t *testing.T) {
	const long, short = "/registry/example.com/kinds/", "/registry/example.com/"
	for name, c := range map[string]struct {
		first  string
		closed bool // before the later subscription
		fill   int  // changes of other prefixes
		later  string
	}{
		"longer":             {first: long, closed: true, later: short},
		"shorter":            {first: short, closed: true, later: long},
		"open":               {first: long, later: long},
		"the whole prefix":   {first: "/registry/other/", later: "/registry/"},
		"too many to record": {first: "/registry/other/", fill: 20_000, later: long},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 5000})
				kvtest.RunUntilEnd(t, tail.Run)
				synctest.Wait()
				first := tail.Subscribe(c.first)
				revision := kvtest.Put(t, store, long+"a", "1")
				values := map[string][]byte{"/registry/other/a": nil}
				for i := range c.fill {
					values[fmt.Sprintf("/registry/filler/%d/a", i)] = []byte("1")
				}
				if err := tail.Wait(t.Context(), store.PutAll(values)); err != nil {
					t.Fatal(err)
				}
				if c.closed || c.later == "/registry/" {
					first.Close()
				}
				sub := tail.Subscribe(c.later)
				past, _ := begin(t, sub, 0)
				sub.Loaded(past)
				if fresh := sub.Fresh(); past != 1 || fresh >= revision {
					t.Errorf("the replay begins at %d and Fresh = %d before the event of %d; want 1 and less", past, fresh, revision)
				}
			})
		})
	}
}

// TestNoReplayAfterAnOverflow checks a subscription whose queue overflowed before its owner loaded. Begin must not return
// a revision whose later events were dropped.
func TestNoReplayAfterAnOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 5000, QueueBytes: 300})
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		sub := tail.Subscribe("/registry/pods/")
		for range 3 {
			kvtest.Put(t, store, "/registry/pods/a", strings.Repeat("x", 100))
		}
		synctest.Wait()
		if past, _ := begin(t, sub, 0); past != 0 {
			t.Errorf("the replay begins at %d, although later events were dropped; want 0", past)
		}
	})
}

// TestLossDuringALateReplay checks that a late subscription gets each event once if the Tail loses its position while
// past events are read.
func TestLossDuringALateReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		kvtest.RunUntilEnd(t, tail.Run)
		synctest.Wait()
		for range 20 { // revisions 2 to 21
			kvtest.Put(t, store, "/registry/pods/a", "1")
		}
		if err := tail.Wait(t.Context(), 21); err != nil {
			t.Fatal(err)
		}
		sub := tail.Subscribe("/registry/pods/")
		store.SetHook(func(op, key string) error {
			if op == "watch" && key == "/registry/pods/" {
				store.SetHook(nil)
				kvtest.Put(t, store, "/registry/pods/a", "22")
				store.EndWatches(kv.ErrCompacted)
				time.Sleep(time.Second)
			}
			return nil
		})
		var reached int64
		reload := func() {
			if reached, _ = begin(t, sub, reached); reached == 0 {
				reached = load(t, store, sub, "/registry/pods/")
			} else {
				sub.Loaded(reached)
			}
		}
		reload()
		kvtest.Put(t, store, "/registry/pods/a", "23")
		for reached < 23 {
			batches, err := sub.Next(t.Context())
			if errors.Is(err, kv.ErrLost) {
				reload()
			} else if err != nil {
				t.Fatal(err)
			}
			for _, batch := range batches {
				if reached++; batch.Revision != reached {
					t.Fatalf("revision %d, want %d", batch.Revision, reached)
				}
			}
			sub.Applied(len(batches))
		}
		synctest.Wait()
		if fresh := sub.Fresh(); fresh != 23 {
			t.Errorf("Fresh = %d, want 23", fresh)
		}
	})
}

// TestReplacementWhileTheTailStarts checks that a Tail follows a store that is restored to an older state before the Tail
// has found its first position.
func TestReplacementWhileTheTailStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		for range 20 {
			kvtest.Put(t, store, "/registry/pods/a", "1")
		}
		store.SetHook(func(op, key string) error {
			if key == "/registry/health/" {
				store.SetHook(nil)
				store.Restore(5, false)
			}
			return nil
		})
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		kvtest.RunUntilEnd(t, tail.Run)
		time.Sleep(time.Minute)
		if seen := tail.Seen(); seen != 5 {
			t.Errorf("Seen = %d, want 5", seen)
		}
	})
}
