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

// TestTailFindsThePast checks at which revision a Tail begins, how many requests it needs to find it, and that
// later subscriptions begin there too.
func TestTailFindsThePast(t *testing.T) {
	const present = 1001
	for _, c := range []struct {
		name                string
		replay              int64
		compacted, recorded int64  // by the compaction protocol
		fail                string // the first three times
		forbidden           bool   // to read the record of the compaction protocol
		past                int64
		requests            int // at most
	}{
		{name: "no replay", past: 0},
		{name: "all", replay: 5000, past: 1, requests: 2},
		{name: "bounded", replay: 100, past: present - 100, requests: 2},
		{name: "compacted", replay: 5000, compacted: 700, recorded: 700, past: 700, requests: 2},
		{name: "compacted by hand", replay: 5000, compacted: 700, past: 700, requests: 13},
		{name: "protocol is behind", replay: 5000, compacted: 700, recorded: 300, past: 700, requests: 13},
		{name: "compacted before the bound", replay: 100, compacted: 700, recorded: 700, past: present - 100, requests: 2},
		{name: "compacted up to the present", replay: 100, compacted: present, past: 0, requests: 10},
		{name: "get is forbidden", replay: 5000, compacted: 700, recorded: 700, forbidden: true, past: 700, requests: 13},
		{name: "get fails", replay: 100, fail: "get", past: present - 100, requests: 5},
		{name: "list fails", replay: 5000, compacted: 700, fail: "list", past: 700, requests: 16},
		{name: "revision fails", replay: 100, fail: "revision", past: present - 100, requests: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := kvtest.NewMemory()
				if c.recorded > 0 {
					kvtest.Put(t, store, "compact_rev_key", strconv.FormatInt(c.recorded, 10))
				}
				for i := 0; ; i++ {
					if kvtest.Put(t, store, "/registry/pods/a", strconv.Itoa(i)) == present {
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
						return errors.New("no answer")
					}
					return nil
				})
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: c.replay})
				sub := tail.Subscribe("/registry/pods/")
				kvtest.RunUntilEnd(t, tail.Run)
				past, until := begin(t, sub, 0)
				if past != c.past || past > 0 && until != present {
					t.Errorf("from %d to %d, want from %d", past, until, c.past)
				}
				if requests > c.requests {
					t.Errorf("%d requests, want %d at most", requests, c.requests)
				}
				synctest.Wait() // until the past was delivered
				late := tail.Subscribe("/registry/pods/")
				if past, until := begin(t, late, 0); past != c.past || past > 0 && until != present {
					t.Errorf("a late subscription replays from %d to %d", past, until)
				}
			})
		})
	}
}

// TestClockLengthensThePast checks that a past with too few ticks is extended, as far as the limit and the store
// allow.
func TestClockLengthensThePast(t *testing.T) {
	const prefix = "/registry/leases/kube-system/apiserver-"
	for _, c := range []struct {
		name      string
		every     int // a tick in so many revisions
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
				const present = 1000
				store := kvtest.NewMemory()
				kvtest.Put(t, store, prefix+"ended", "1")
				for i := int64(3); i <= present; i++ {
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
				if past, _ := begin(t, sub, 0); past != present-c.reach {
					t.Errorf("begins at %d, want %d", past, present-c.reach)
				}
				synctest.Wait()
				late := tail.Subscribe("/registry/configmaps/")
				if past, _ := begin(t, late, 0); past != present-c.reach {
					t.Errorf("a late subscription begins at %d, want %d", past, present-c.reach)
				}
			})
		})
	}
}

// TestBeginWaitsForTheFirstRevision checks that Begin does not return before the Tail has found where it begins.
func TestBeginWaitsForTheFirstRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := kvtest.NewMemory()
		kvtest.Put(t, store, "/registry/pods/a", "1")
		tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 10})
		sub, closed := tail.Subscribe("/registry/pods/"), tail.Subscribe("/registry/nodes/")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := sub.Begin(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before Run: %v", err)
		}
		closed.Close()
		if past, _ := begin(t, closed, 0); past != 0 {
			t.Errorf("closed: %d", past)
		}
		kvtest.RunUntilEnd(t, tail.Run)
		if past, present := begin(t, sub, 0); past != 1 || present != 2 {
			t.Errorf("from %d to %d", past, present)
		}
		sub.Loaded(1)
		if past, _ := begin(t, sub, 0); past != 0 {
			t.Errorf("loaded: %d", past)
		}
	})
}

// TestBeginReturnsARevisionThatExists checks that an owner that cannot load where the Tail began gets a later revision
// that still exists. After a loss, the revision is one of the new past.
func TestBeginReturnsARevisionThatExists(t *testing.T) {
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
			if past, present := begin(t, sub, least); past != want || past > 0 && present != 21 {
				t.Errorf("from %d on: %d to %d, want %d", least, past, present, want)
			}
		}
		var once sync.Once
		store.SetHook(func(op, key string) error {
			if op == "list" && key == "/registry/health/" {
				once.Do(func() {
					store.SetHook(nil)
					kvtest.Put(t, store, "/registry/pods/a", "x") // first, because the Tail reads the present at once
					store.EndWatches(kv.ErrCompacted)
					time.Sleep(time.Second)
				})
			}
			return nil
		})
		begin(t, sub, 12)
		sub.Loaded(15)
		if _, err := sub.Next(t.Context()); !errors.Is(err, kv.ErrLost) {
			t.Errorf("lost meanwhile: %v", err)
		}
		if past, present := begin(t, sub, 12); past != 15 || present != 22 {
			t.Errorf("after the loss: %d to %d", past, present)
		}
		sub.Loaded(15)
		for want := int64(16); want <= 22; {
			batches, err := sub.Next(t.Context())
			if err != nil {
				t.Fatal(err) // of the loss it knows
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

// TestCompactionAfterTheTailBegan checks that an owner has no past if the store was compacted beyond the revision at
// which the Tail began.
func TestCompactionAfterTheTailBegan(t *testing.T) {
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
		if past, present := begin(t, sub, 15); past != 0 {
			t.Errorf("from %d to %d", past, present)
		}
	})
}

// TestBeginEndsWithItsContext checks that Begin, whose context ends while it looks for a readable revision, does not
// report that there is no past.
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
			if past, present, err := sub.Begin(ctx, 15); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: from %d to %d, %v", at, past, present, err)
			}
		})
	}
}

// begin calls Begin with a timeout.
func begin(t *testing.T, sub *kv.Subscription, least int64) (past, present int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	past, present, err := sub.Begin(ctx, least)
	if err != nil {
		t.Fatal(err)
	}
	return past, present
}

// TestPastAfterLoss checks that compacted revisions are a gap, but that an owner that begins after the gap gets
// all later ones. A replaced store has no past, even if it is compacted later.
func TestPastAfterLoss(t *testing.T) {
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
	replaceInSilence := func(_ *testing.T, store *kvtest.Memory) { store.Restore(5, false) }
	// before calls do before the Tail reads the present for the nth time.
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
	replaceInSilenceMeanwhile := func(_ *testing.T, store *kvtest.Memory) {
		before(1, store, func() { store.Restore(5, false) })
		store.EndWatches(kv.ErrCompacted)
	}
	replaceAndWrite := func(t *testing.T, store *kvtest.Memory) {
		store.Restore(5, false)
		before(2, store, func() { compact(6)(t, store) }) // the first is a heartbeat's
	}
	for name, c := range map[string]struct {
		replay int64
		faults []fault
		past   int64
	}{
		"compacted":                      {5, []fault{compact(18)}, 18},
		"compacted long ago":             {2, []fault{compact(14)}, 19},
		"compacted up to the present":    {5, []fault{compact(21)}, 0},
		"compacted twice":                {50, []fault{compact(14), compact(24)}, 24},
		"replaced":                       {5, []fault{replace}, 0},
		"replaced in silence":            {5, []fault{replaceInSilence}, 0},
		"replaced, then compacted":       {50, []fault{replace, compact(8)}, 8},
		"replaced, then lost":            {50, []fault{replace, lose}, 5},
		"replaced in silence, then lost": {50, []fault{replaceInSilence, lose}, 5},
		"replaced while it was lost":     {50, []fault{replaceMeanwhile}, 0},
		"in silence while it was lost":   {50, []fault{replaceInSilenceMeanwhile}, 0},
		"replaced and written to":        {50, []fault{replaceAndWrite}, 0},
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
					time.Sleep(10 * time.Second) // a heartbeat finds out
				}
				past, present := begin(t, sub, 0)
				if past != c.past {
					t.Errorf("from %d, want %d", past, c.past)
				}
				newest, err := store.Revision(t.Context())
				if err != nil || past > 0 && present != newest {
					t.Errorf("up to %d, %v; want %d", present, err, newest)
				}
			})
		})
	}
}

// TestReplaysHaveNoGapAndNothingTwice replays a long past while the store fails in various ways. Nothing may be
// missing or come twice.
func TestReplaysHaveNoGapAndNothingTwice(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(store *kvtest.Memory)
		lost  bool
	}{
		"nothing happens": {fault: func(*kvtest.Memory) {}},
		"watches end":     {fault: func(store *kvtest.Memory) { store.EndWatches(errors.New("connection lost")) }},
		"compacted":       {fault: func(store *kvtest.Memory) { store.EndWatches(kv.ErrCompacted) }, lost: true},
		"replaced":        {fault: func(store *kvtest.Memory) { store.Restore(500, true) }, lost: true},
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
					t.Fatalf("from %d, %v", past, err)
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
					t.Errorf("got %d revisions, want lost %v or %d", len(got), c.lost, len(want))
				}
				if err := sub.Wait(t.Context(), 20_001); err != nil || sub.Fresh() < 20_001 {
					t.Errorf("fresh up to %d, %v", sub.Fresh(), err)
				}
			})
		})
	}
}

// TestLateSubscriptionHasItsPast checks that a subscription created long after the Tail began gets the past of its
// prefix once and in order. It gets as much as the store and the Tail still have.
func TestLateSubscriptionHasItsPast(t *testing.T) {
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
		{name: "nothing is replayed", replay: 0},
		{name: "nothing is left", replay: 5000, least: 41},
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
				past, present := begin(t, sub, c.least)
				if past != c.past || past > 0 && present != 41 {
					t.Fatalf("from %d to %d, want from %d", past, present, c.past)
				}
				if again, to := begin(t, sub, c.least); again != past || to != present { // its owner could not load
					t.Fatalf("from %d to %d, and then from %d to %d", past, present, again, to)
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
					t.Errorf("got %d, want %d, %v", got, want, err)
				}
				synctest.Wait()
				if n := store.Watches(); n != 1 {
					t.Errorf("%d watches are open", n)
				}
			})
		})
	}
}

// TestReadersOfThePastShareProgressRequests checks that concurrent readers of quiet pasts share requests for progress,
// because each request causes a response in every watch.
func TestReadersOfThePastShareProgressRequests(t *testing.T) {
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
		var asked atomic.Int64
		store.SetHook(func(op, _ string) error {
			if op == "progress" {
				asked.Add(1)
			}
			return nil
		})
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				sub := tail.Subscribe(fmt.Sprintf("/registry/kinds%d/", i))
				if past, present, err := sub.Begin(t.Context(), 0); past == 0 || present != 101 || err != nil {
					t.Errorf("from %d to %d, %v", past, present, err)
				}
			})
		}
		all.Wait()
		if n := asked.Load(); n == 0 || n > 10 {
			t.Errorf("progress was requested %d times", n)
		}
	})
}

// TestQuietPrefixesBeginAtOnce checks that the past of a prefix is not read if the Tail knows that it has no
// events.
func TestQuietPrefixesBeginAtOnce(t *testing.T) {
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
			if past, present, err := sub.Begin(t.Context(), 0); past != 1 || present != revision || err != nil {
				t.Errorf("%s: from %d to %d, %v", c.prefix, past, present, err)
			}
			sub.Loaded(1)
			if fresh := sub.Fresh(); fresh == 0 || c.quiet && fresh != revision {
				t.Errorf("%s: fresh at %d", c.prefix, fresh)
			}
			if quiet := opened.Load() == 0; quiet != c.quiet {
				t.Errorf("%s: no watch of the past: %v", c.prefix, quiet)
			}
		}
	})
}

// TestPastThatOthersReceived checks that a subscription gets the past that only another one has received, or none, and
// that it does not take the prefix for a quiet one.
func TestPastThatOthersReceived(t *testing.T) {
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
					t.Errorf("it begins at %d and is fresh at %d without the change at %d", past, fresh, revision)
				}
			})
		})
	}
}

// TestPastThatWasDropped checks that a subscription whose queue became too long before its owner loaded does not take
// what was dropped for nothing.
func TestPastThatWasDropped(t *testing.T) {
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
			t.Errorf("it begins at %d without the later changes", past)
		}
	})
}

// TestPositionIsLostWhileThePastIsRead checks that a late subscription misses nothing, and gets nothing twice, if the
// Tail loses its position while the past is read.
func TestPositionIsLostWhileThePastIsRead(t *testing.T) {
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
		loadAgain := func() {
			if reached, _ = begin(t, sub, reached); reached == 0 {
				reached = load(t, store, sub, "/registry/pods/")
			} else {
				sub.Loaded(reached)
			}
		}
		loadAgain()
		kvtest.Put(t, store, "/registry/pods/a", "23")
		for reached < 23 {
			batches, err := sub.Next(t.Context())
			if errors.Is(err, kv.ErrLost) {
				loadAgain()
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
			t.Errorf("fresh at %d", fresh)
		}
	})
}

// TestRestoredWhileTheTailBegins checks that a Tail follows a store that is restored to an older state before the Tail has
// found its first position.
func TestRestoredWhileTheTailBegins(t *testing.T) {
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
			t.Errorf("it has seen %d", seen)
		}
	})
}
