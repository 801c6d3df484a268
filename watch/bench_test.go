package watch_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/watch"
)

// crowd is a set of watchers, each with a goroutine that reads it.
type crowd struct {
	*fixture
	pending sync.WaitGroup // undelivered events
	stop    func()
}

func newCrowd(b *testing.B, options []watch.Options) *crowd {
	c := &crowd{fixture: newFixture(b, config{events: 100_000})}
	c.reset()
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = c.hub.Run(ctx) })
	for _, o := range options {
		o.After = c.last
		w := c.must(b, o)
		all.Go(func() {
			buffer := make([]watch.Delivery, 0, 16)
			for {
				ds, err := w.Next(ctx, buffer)
				if err != nil {
					return
				}
				for _, d := range ds {
					_, _ = d.Frame(1, func(d watch.Delivery) ([]byte, error) { return d.Object.Body(), nil })
				}
				c.pending.Add(-len(ds))
			}
		})
	}
	c.stop = func() {
		cancel()
		all.Wait()
	}
	return c
}

// write applies an update that is not recorded in the fixture's history.
func (c *crowd) write(key, node string) {
	c.last++
	o := cache.NewObject(cache.ObjectConfig{
		Key: key, Revision: c.last, Body: make([]byte, 4800),
		Fields: map[string]string{"spec.nodeName": node},
	}, c.cache.Schema())
	c.cache.Apply(cache.Batch{Revision: c.last, Time: time.Unix(c.last, 0), Changes: []cache.Change{{Key: key, Object: o}}})
}

// BenchmarkFanOut delivers each event to 200 watchers of one group, one event at a time.
func BenchmarkFanOut(b *testing.B) {
	const watchers = 200
	c := newCrowd(b, make([]watch.Options, watchers))
	defer c.stop()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.pending.Add(watchers)
		c.write(fmt.Sprintf("default/p%d", i%100), "n")
		c.pending.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/watchers, "ns/delivery")
}

// BenchmarkNodes has 1,000 watchers, each of the objects of one node.
func BenchmarkNodes(b *testing.B) {
	const nodes = 1000
	options := make([]watch.Options, nodes)
	for i := range options {
		options[i] = filter{field: fmt.Sprintf("spec.nodeName=n%d", i)}.options()
	}
	c := newCrowd(b, options)
	defer c.stop()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.pending.Add(1)
		c.write(fmt.Sprintf("default/p%d", i%nodes), fmt.Sprintf("n%d", i%nodes))
		c.pending.Wait()
	}
}

// BenchmarkSelectors has 1,000 watchers with selectors that are not indexed, so the Hub evaluates each for each event.
func BenchmarkSelectors(b *testing.B) {
	options := make([]watch.Options, 1000)
	for i := range options {
		options[i] = filter{field: fmt.Sprintf("spec.nodeName!=n,phase!=p%d", i)}.options()
	}
	c := newCrowd(b, options)
	defer c.stop()
	b.ReportAllocs()
	before := c.hub.Stats().Events
	for i := 0; b.Loop(); i++ {
		c.write(fmt.Sprintf("default/p%d", i%100), "n")
		for c.hub.Stats().Events == before {
			runtime.Gosched()
		}
		before = c.hub.Stats().Events
	}
}

// BenchmarkInitial delivers 10,000 initial objects.
func BenchmarkInitial(b *testing.B) {
	f := newFixture(b, config{events: 100})
	f.reset()
	for i := range 10_000 {
		f.apply(change{key: fmt.Sprintf("default/p%d", i)})
	}
	buffer := make([]watch.Delivery, 0, 128)
	b.ReportAllocs()
	for b.Loop() {
		s := f.cache.Snapshot()
		watcher, err := f.hub.Watch(watch.Options{Initial: &s, Bookmarks: true})
		if err != nil {
			b.Fatal(err)
		}
		for n := 0; n <= 10_000; {
			ds, err := watcher.Next(b.Context(), buffer)
			if err != nil {
				b.Fatal(err)
			}
			n += len(ds)
		}
		watcher.Close()
	}
}

// BenchmarkOpen opens and closes a watch while many are open.
func BenchmarkOpen(b *testing.B) {
	f := newFixture(b, config{events: 100})
	f.reset()
	for i := range 10_000 {
		o := ownGroup(i)
		o.After = f.last
		f.must(b, o)
	}
	o := filter{field: "spec.nodeName=n77"}.options()
	o.After = f.last
	b.ReportAllocs()
	for b.Loop() {
		watcher, err := f.hub.Watch(o)
		if err != nil {
			b.Fatal(err)
		}
		watcher.Close()
	}
}

// idleBytes returns the bytes of heap per watcher that has read everything, of 10,000 watchers with the options.
func idleBytes(t testing.TB, options func(i int) watch.Options) float64 {
	const n = 10_000
	f := newFixture(t, config{events: 100})
	f.reset()
	all := make([]watch.Options, n) // each caller has its own selectors
	for i := range all {
		all[i] = options(i)
		all[i].After = f.last
	}
	watchers := make([]*watch.Watcher, n)
	before := heap()
	for i := range watchers {
		var err error
		if watchers[i], err = f.hub.Watch(all[i]); err != nil {
			t.Fatal(err)
		}
		if ds, err := watchers[i].Poll(nil); len(ds) > 0 || err != nil {
			t.Fatal(ds, err)
		}
	}
	after := heap()
	for _, watcher := range watchers {
		watcher.Close()
	}
	runtime.KeepAlive(all)
	return float64(after-before) / n
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func oneGroup(int) watch.Options { return watch.Options{} }

func ownGroup(i int) watch.Options {
	return filter{field: fmt.Sprintf("spec.nodeName=n%d", i)}.options()
}

func BenchmarkIdle(b *testing.B) {
	b.Run("one group", func(b *testing.B) {
		for b.Loop() {
			b.ReportMetric(idleBytes(b, oneGroup), "B/watch")
		}
	})
	b.Run("own groups", func(b *testing.B) {
		for b.Loop() {
			b.ReportMetric(idleBytes(b, ownGroup), "B/watch")
		}
	})
}

func TestIdleWatchesAreSmall(t *testing.T) {
	if size := idleBytes(t, oneGroup); size > 512 {
		t.Errorf("an idle watch in a group of many takes %.0f bytes, want at most 512", size)
	}
	if size := idleBytes(t, ownGroup); size > 1024 {
		t.Errorf("an idle watch in a group of its own takes %.0f bytes, want at most 1024", size)
	}
}

// parked are watchers without goroutines. Those that were woken are in due.
type parked struct {
	*fixture
	watchers []*watch.Watcher
	due      []int
	room     []watch.Delivery
}

func newParked(t testing.TB, options []watch.Options) *parked {
	r := &parked{fixture: newFixture(t, config{events: 100_000}), room: make([]watch.Delivery, 0, 16)}
	r.reset()
	r.watchers = make([]*watch.Watcher, len(options))
	r.due = make([]int, 0, len(options))
	for i, o := range options {
		o.After = r.last
		o.Wake = func() { r.due = append(r.due, i) }
		r.watchers[i] = r.must(t, o)
		r.due = append(r.due, i)
	}
	r.serve(t)
	return r
}

// serve reads the woken watchers, and returns the number of deliveries.
func (r *parked) serve(t testing.TB) (n int) {
	for _, i := range r.due {
		for {
			ds, err := r.watchers[i].Poll(r.room)
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) == 0 {
				break
			}
			n += len(ds)
		}
	}
	r.due = r.due[:0]
	return n
}

// BenchmarkWake delivers each event to 200 watchers without goroutines.
func BenchmarkWake(b *testing.B) {
	const watchers = 200
	r := newParked(b, make([]watch.Options, watchers))
	c := &crowd{fixture: r.fixture}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.write(fmt.Sprintf("default/p%d", i%100), "n")
		r.publishAll()
		if n := r.serve(b); n != watchers {
			b.Fatalf("%d deliveries", n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/watchers, "ns/delivery")
}

// TestDeliveriesDoNotAllocate compares the allocations of an event with few watchers and with many.
func TestDeliveriesDoNotAllocate(t *testing.T) {
	if invariants.Enabled {
		t.Skip("assertions allocate")
	}
	cost := func(watchers int) float64 {
		r := newParked(t, make([]watch.Options, watchers))
		c := &crowd{fixture: r.fixture}
		return testing.AllocsPerRun(100, func() {
			c.write("default/p", "n")
			r.publishAll()
			if n := r.serve(t); n != watchers {
				t.Fatalf("got %d deliveries, want %d", n, watchers)
			}
		})
	}
	if few, many := cost(1), cost(201); many > few+10 {
		t.Errorf("an event costs %.0f allocations with one watcher and %.0f with 201, want at most 10 more", few, many)
	}
}

// TestInitialObjectsDoNotAllocate reads many initial objects.
func TestInitialObjectsDoNotAllocate(t *testing.T) {
	f := newFixture(t, config{events: 100})
	f.reset()
	const objects = 2000
	for i := range objects {
		f.apply(change{key: fmt.Sprintf("default/p%d", i)})
	}
	room := make([]watch.Delivery, 0, 64)
	allocations := testing.AllocsPerRun(10, func() {
		s := f.cache.Snapshot()
		watcher, err := f.hub.Watch(watch.Options{Initial: &s, Wake: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Close()
		n := 0
		for {
			ds, err := watcher.Poll(room)
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) == 0 {
				break
			}
			n += len(ds)
		}
		if n != objects {
			t.Fatalf("got %d objects, want %d", n, objects)
		}
	})
	if allocations > objects/10 {
		t.Errorf("%d objects cost %.0f allocations, want at most %d", objects, allocations, objects/10)
	}
}
