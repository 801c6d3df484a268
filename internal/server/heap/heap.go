package heap

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// smallHeadroom bytes, and the live heap divided by headroomShare, may be allocated
	// between two collections.
	smallHeadroom = 16 << 20
	headroomShare = 32

	// Collections less than stormInterval apart that find garbage are a storm, which costs
	// more than the memory that it saves: the headroom is stormTimes as large until
	// collections are calmInterval apart. Then the free memory is returned to the operating
	// system: there may be no further collection that would do it (B26). During the start,
	// when most of what is allocated stays, the headroom is startTimes as large.
	stormInterval = time.Second
	calmInterval  = 4 * time.Second
	stormTimes    = 6
	startTimes    = 2

	// runtimeMinimum is the heap below which the runtime takes percentages of this.
	runtimeMinimum = 4 << 20
	maxPercent     = 800
)

// headroom returns how much may be allocated between two collections when there is no storm.
func headroom(live uint64) uint64 { return smallHeadroom + live/headroomShare }

// collectorPercent returns the GOGC that leaves a live heap so many times its headroom.
func collectorPercent(live, times uint64) int {
	return int(min(times*headroom(live)*100/max(live, runtimeMinimum), maxPercent))
}

// governor keeps the garbage collector's percentage fitting to the heap (E1). A limit set
// by debug.SetMemoryLimit goes on to count.
type governor struct {
	percent int       // last set
	last    time.Time // of a collection
	live    uint64    // at the last collection
	settled bool      // the start is over
	storm   bool
	onSet   func(int) // for tests: called with each percentage that is set; may be nil
	free    func()    // for tests: called instead of debug.FreeOSMemory; may be nil
}

// Govern keeps the percentage fitting until ctx ends, and then restores the one that it
// found. When settled is closed, it returns to the operating system what the start left free.
func Govern(ctx context.Context, settled <-chan struct{}) error {
	return new(governor).run(ctx, settled)
}

// run does what Govern says.
func (g *governor) run(ctx context.Context, settled <-chan struct{}) error {
	before := g.set(collectorPercent(0, startTimes))
	defer debug.SetGCPercent(before)
	collected := make(chan struct{}, 1)
	watchCollections(ctx, collected)
	g.govern(ctx, settled, collected)
	return nil
}

// govern adjusts the percentage after each collection, of which collected is told, until ctx
// ends.
func (g *governor) govern(ctx context.Context, settled, collected <-chan struct{}) {
	calm := time.NewTimer(calmInterval)
	defer calm.Stop()
	for {
		select {
		case <-collected:
			g.adjust(liveBytes(), time.Now())
			if calm.Stop(); g.storm {
				calm.Reset(calmInterval)
			}
		case <-calm.C:
			if g.storm {
				g.storm = false
				g.giveBack()
			}
		case <-settled:
			g.giveBack()
			settled, g.settled, g.last = nil, true, time.Time{}
		case <-ctx.Done():
			return
		}
	}
}

// giveBack collects garbage and returns the free memory to the operating system.
func (g *governor) giveBack() {
	if g.free != nil {
		g.free()
		return
	}
	debug.FreeOSMemory()
}

// adjust sets the percentage for the live heap after a collection. It leaves small
// differences alone, because setting it stops the world for a moment.
func (g *governor) adjust(live uint64, now time.Time) {
	grew := live > g.live+headroom(g.live)/2 // most of what was allocated is in use
	switch apart := now.Sub(g.last); {
	case apart < stormInterval && g.settled && !grew: // the start is short, and its peak would be the peak
		g.storm = true
	case apart > calmInterval:
		g.storm = false
	}
	g.last, g.live = now, live
	want := collectorPercent(live, g.times())
	if math.Abs(float64(want-g.percent)) < 0.05*float64(g.percent) {
		return
	}
	g.set(want)
}

// times returns by how much the headroom is multiplied now.
func (g *governor) times() uint64 {
	switch {
	case !g.settled:
		return startTimes
	case g.storm:
		return stormTimes
	}
	return 1
}

func (g *governor) set(percent int) (before int) {
	g.percent = percent
	before = debug.SetGCPercent(percent)
	if g.onSet != nil {
		g.onSet(percent)
	}
	return before
}

// sentinel is garbage whose cleanup runs after a collection. It has a pointer, because the
// runtime may put small objects without pointers into one allocation with others that live on.
type sentinel struct{ _ *byte }

// watchCollections sends to collected after each collection, until ctx ends.
func watchCollections(ctx context.Context, collected chan<- struct{}) {
	runtime.AddCleanup(new(sentinel), func(ctx context.Context) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		watchCollections(ctx, collected)
	}, ctx)
}

// liveBytes is what the last collection found alive, with what it scans besides.
func liveBytes() uint64 {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(samples)
	var sum uint64
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
