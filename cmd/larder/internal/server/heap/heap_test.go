package heap

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestCollectorPercent(t *testing.T) {
	for _, test := range []struct {
		live  uint64
		times float64
		want  int
	}{
		{0, startTimes, 800},
		{2 << 20, 1, 401},
		{32 << 20, 1, 53},
		{32 << 20, startTimes, 212},
		{32 << 20, maxTimes, 318},
		{320 << 20, 1, 8},
		{320 << 20, maxTimes, 48},
		{32 << 30, 1, 3},
	} {
		if got := collectorPercent(test.live, test.times); got != test.want {
			t.Errorf("%d for %d bytes, want %d", got, test.live, test.want)
		}
	}
}

// TestALargeHeapMayDouble checks that a small heap may grow by more than its size, and no heap by less than six times
// its headroom.
func TestALargeHeapMayDouble(t *testing.T) {
	for live, want := range map[uint64]int{32 << 20: 318, 96 << 20: 118, 320 << 20: 100, 4 << 30: 100} {
		// A percentage is cut to a whole number.
		if got := collectorPercent(live, maxFactor(live)); got != want && got != want-1 {
			t.Errorf("%d percent at most for %d bytes, want %d", got, live, want)
		}
	}
}

// TestHeadroomFollowsWhatCollectionsCost checks that expensive collections get more headroom until they take no more
// than their share of the CPU, and only then.
func TestHeadroomFollowsWhatCollectionsCost(t *testing.T) {
	const live = 320 << 20
	least := float64(headroom(live))
	for name, load := range map[string]struct {
		cost, other   time.Duration // of a collection, and of the allocation of the least headroom
		every         time.Duration // the least headroom is allocated
		least, most   float64       // times the headroom, in the end
		share, nearly float64       // of the collector's CPU time, if it is bounded by neither
	}{
		"idle":              {200 * time.Millisecond, time.Millisecond, time.Minute, 1, 1, 0, 0},
		"lists":             {20 * time.Millisecond, 2 * time.Second, 500 * time.Millisecond, 1, 1, 0, 0},
		"events":            {170 * time.Millisecond, 95 * time.Millisecond, time.Second, maxFactor(live) - 0.1, maxFactor(live), 0, 0},
		"writes":            {100 * time.Millisecond, 600 * time.Millisecond, time.Second, 3.1, 3.2, 1. / collectorShare, 0.005},
		"a flood of writes": {100 * time.Millisecond, 600 * time.Millisecond, 100 * time.Millisecond, 3.1, 3.2, 1. / collectorShare, 0.005},
	} {
		before := debug.SetGCPercent(123)
		g, now, used := &governor{settled: true, times: 1, live: live, setPercent: debug.SetGCPercent}, time.Unix(100, 0), usage{}
		for range 12 {
			room := g.times * least
			used.collector += load.cost
			used.other += time.Duration(float64(load.other) * g.times)
			used.allocated += uint64(room)
			now = now.Add(time.Duration(float64(load.every) * g.times))
			g.percent = 0 // whatever it was, it is set
			if g.adjust(live, used, now); g.percent != collectorPercent(live, g.times) {
				t.Errorf("%s: %d percent for %v times the headroom", name, g.percent, g.times)
			}
		}
		if g.times < load.least || g.times > load.most {
			t.Errorf("%s: %v times the headroom", name, g.times)
		}
		if share := float64(load.cost) / (float64(load.cost) + float64(load.other)*g.times); load.share > 0 && (share < load.share-load.nearly || share > load.share+load.nearly) {
			t.Errorf("%s: the collector takes %v", name, share)
		}
		grown, times := g.live+uint64(least), g.times
		used.collector, used.allocated = used.collector+time.Second, used.allocated+uint64(least)
		if g.adjust(grown, used, now.Add(time.Millisecond)); g.times > times {
			t.Errorf("%s: more room for what stays", name)
		}
		debug.SetGCPercent(before)
	}
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	g := &governor{live: live, setPercent: debug.SetGCPercent}
	for size, want := range map[uint64]float64{startLive - 1: 1, startLive: startTimes} {
		if g.adjust(size, usage{time.Minute, time.Second, 1 << 40}, time.Unix(100, 0)); g.times != want {
			t.Errorf("%v times the headroom during the start, with %d bytes", g.times, size)
		}
	}
}

// TestTheGovernorFollowsTheHeap checks that the percentage follows the heap with each collection, and is restored
// when the governor ends.
func TestTheGovernorFollowsTheHeap(t *testing.T) {
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	settled := make(chan struct{})
	close(settled)
	adjusted := make(chan int, 64)
	g := &governor{measure: runtimeUsage, free: debug.FreeOSMemory, setPercent: func(percent int) int {
		adjusted <- percent
		return debug.SetGCPercent(percent)
	}}
	go func() { ended <- g.run(ctx, settled) }()
	small := <-adjusted
	ballast := make([]byte, 512<<20)
	runtime.GC()
	for percent := range adjusted {
		if percent < small/4 {
			break
		}
		runtime.GC()
	}
	runtime.KeepAlive(ballast)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if after := debug.SetGCPercent(before); after != 123 {
		t.Errorf("GOGC is %d afterwards, was 123", after)
	}
}

// process is one that allocates at a steady rate.
type process struct {
	mu   sync.Mutex
	rate float64   // guarded by mu: bytes a second
	used usage     // guarded by mu: until at
	at   time.Time // guarded by mu
}

// usage returns the usage of the process until now.
func (p *process) usage() usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used.allocated += uint64(p.rate * time.Since(p.at).Seconds())
	p.at = time.Now()
	return p.used
}

// allocate sets the rate.
func (p *process) allocate(rate float64) {
	p.usage()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

// collect adds the cost of a collection.
func (p *process) collect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used.collector += 200 * time.Millisecond
	p.used.other += 100 * time.Millisecond
}

// TestGovernorReturnsUnneededHeadroom checks that the governor gives back headroom once, as soon as the headroom does
// not pay, and not before, however rare collections are.
func TestGovernorReturnsUnneededHeadroom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := debug.SetGCPercent(123)
		defer debug.SetGCPercent(before)
		ctx, cancel := context.WithCancel(t.Context())
		collected := make(chan struct{}, 1)
		given := make(chan time.Time, 10)
		p := &process{at: time.Now()}
		g := &governor{settled: true, times: 1, setPercent: debug.SetGCPercent, measure: p.usage, free: func() {
			given <- time.Now()
			collected <- struct{}{}
		}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			g.govern(ctx, nil, collected)
		}()
		collections := func(n int, apart time.Duration) {
			for range n {
				time.Sleep(apart)
				p.collect()
				collected <- struct{}{}
			}
		}
		collections(3, time.Minute) // in peace
		p.allocate(20 << 20)
		collections(8, time.Second)
		collections(3, 10*calmInterval) // continues, with its present headroom
		synctest.Wait()
		if len(given) != 0 || g.times < maxTimes-1 {
			t.Errorf("gave back %d times, %v times the headroom", len(given), g.times)
		}
		p.allocate(1000)
		start := time.Now()
		time.Sleep(time.Hour)
		cancel()
		<-ended
		if len(given) != 1 {
			t.Fatalf("gave back %d times, want it once", len(given))
		}
		if after := (<-given).Sub(start); after > 2*calmInterval {
			t.Errorf("gave back after %v, want it within %v", after, 2*calmInterval)
		}
	})
}
