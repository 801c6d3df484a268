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
	// smallHeadroom and headroomShare are what may be allocated between two
	// collections: the first, and one part in so many of what lives. Nearly all that
	// lives is encoded objects, which hold no pointers: collecting is cheap, and the
	// runtime's own habit of letting the heap double would cost as much memory as the
	// objects themselves.
	smallHeadroom = 16 << 20
	headroomShare = 32

	// Collections that follow each other faster than hurry, and find garbage, cost more
	// than memory is worth: the headroom is hurriedTimes as large until they are ease
	// apart. Then what the hurry took is given back: nothing else may come to be
	// collected (B26). During the start, of which most stays, it is startTimes as large.
	hurry        = time.Second
	ease         = 4 * time.Second
	hurriedTimes = 6
	startTimes   = 2

	// runtimeMinimum is the heap below which the runtime takes percentages of this.
	runtimeMinimum = 4 << 20
	maxPercent     = 800
)

// headroom is what may be allocated over a live heap in peace.
func headroom(live uint64) uint64 { return smallHeadroom + live/headroomShare }

// collectorPercent is the GOGC that leaves so many times the headroom for a live heap.
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
	hurried bool
	told    func(int) // what was set, for tests; nil tells nobody
	gave    func()    // does what giveBack does, for tests; nil does it
}

// Govern keeps the percentage fitting until ctx ends, and then restores the one that it
// found. Once settled is closed, it gives back what the start took.
func Govern(ctx context.Context, settled <-chan struct{}) error {
	return new(governor).run(ctx, settled)
}

// run is Govern.
func (g *governor) run(ctx context.Context, settled <-chan struct{}) error {
	before := g.set(collectorPercent(0, startTimes))
	defer debug.SetGCPercent(before)
	collected := make(chan struct{}, 1)
	watchCollections(ctx, collected)
	g.govern(ctx, settled, collected)
	return nil
}

// govern is run with collections that are told of by a channel.
func (g *governor) govern(ctx context.Context, settled, collected <-chan struct{}) {
	calm := time.NewTimer(ease)
	defer calm.Stop()
	for {
		select {
		case <-collected:
			g.adjust(liveBytes(), time.Now())
			if calm.Stop(); g.hurried {
				calm.Reset(ease)
			}
		case <-calm.C:
			if g.hurried {
				g.hurried = false
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

// giveBack collects, and gives the system what is free then.
func (g *governor) giveBack() {
	if g.gave != nil {
		g.gave()
		return
	}
	debug.FreeOSMemory()
}

// adjust sets the percentage for what is live after a collection. It stops the world
// for a moment, so small differences are let be.
func (g *governor) adjust(live uint64, now time.Time) {
	grew := live > g.live+headroom(g.live)/2 // most of what was allocated is in use
	switch apart := now.Sub(g.last); {
	case apart < hurry && g.settled && !grew: // the start is short, and its peak would be the peak
		g.hurried = true
	case apart > ease:
		g.hurried = false
	}
	g.last, g.live = now, live
	want := collectorPercent(live, g.times())
	if math.Abs(float64(want-g.percent)) < 0.05*float64(g.percent) {
		return
	}
	g.set(want)
}

// times is how many times the headroom there is now.
func (g *governor) times() uint64 {
	switch {
	case !g.settled:
		return startTimes
	case g.hurried:
		return hurriedTimes
	}
	return 1
}

func (g *governor) set(percent int) (before int) {
	g.percent = percent
	before = debug.SetGCPercent(percent)
	if g.told != nil {
		g.told(percent)
	}
	return before
}

// sentinel is garbage that tells when it is collected. It has room for a pointer,
// because small objects without may share an allocation that lives on.
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
