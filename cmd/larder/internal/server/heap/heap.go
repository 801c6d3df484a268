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
	// The headroom is the memory that may be allocated between two collections. While collections cost
	// little, it is smallHeadroom bytes plus the live heap divided by headroomShare.
	smallHeadroom = 16 << 20
	headroomShare = 32

	// If collections would keep more than 1/cheapShare of a processor busy, the headroom grows until
	// they take 1/collectorShare of the process's CPU time. It grows to at most maxTimes its size, or
	// to the size of the live heap. During the start, when most allocated memory stays live, it is
	// startTimes as large from a live heap of startLive on. Without objects, fewer collections would only leave
	// more gaps in the heap (T5).
	cheapShare     = 50
	collectorShare = 20
	maxTimes       = 6
	startTimes     = 4
	startLive      = 32 << 20

	// calmInterval is the time after a collection at which the governor checks whether a large headroom
	// still saves enough. If not, the governor returns free memory to the operating system, because a process
	// that allocates little may have no further collection (B26).
	calmInterval = 4 * time.Second

	// runtimeMinimum is the smallest heap size to which the runtime applies GOGC.
	runtimeMinimum = 4 << 20
	maxPercent     = 800
)

// headroom returns the least memory that may be allocated between two collections.
func headroom(live uint64) uint64 { return smallHeadroom + live/headroomShare }

// maxFactor returns the largest factor for the headroom of a live heap. The heap may at least double, as in any
// Go program. A large heap that is costly to collect has many pointers, such as thousands of decoded CRDs
// (X13).
func maxFactor(live uint64) float64 {
	return max(maxTimes, float64(live)/float64(headroom(live)))
}

// collectorPercent returns the GOGC that gives a live heap its headroom, multiplied by times.
func collectorPercent(live uint64, times float64) int {
	return int(min(times*float64(headroom(live))*100/float64(max(live, runtimeMinimum)), maxPercent))
}

// usage is the process's resource usage. The runtime updates its times at each collection.
type usage struct {
	collector time.Duration // CPU time of collections
	other     time.Duration // CPU time of everything else
	allocated uint64        // bytes
}

// since returns the usage since before.
func (u usage) since(before usage) usage {
	return usage{u.collector - before.collector, u.other - before.other, u.allocated - before.allocated}
}

// governor adjusts the garbage collector's percentage to the heap (E1). A limit set by
// debug.SetMemoryLimit still applies.
type governor struct {
	percent int           // current percentage
	last    time.Time     // time of the last collection
	live    uint64        // live heap at the last collection
	used    usage         // usage at the last collection
	cost    time.Duration // CPU time of the last collection
	settled bool          // whether the start is over
	times   float64       // factor of the headroom

	setPercent func(percent int) (before int)
	free       func() // collects garbage and returns free memory to the operating system
	measure    func() usage
}

// Govern adjusts the percentage until ctx ends, and then restores the original one. When settled is closed,
// it returns the start's free memory to the operating system. If settled is nil, there is no start phase.
func Govern(ctx context.Context, settled <-chan struct{}) error {
	return (&governor{setPercent: debug.SetGCPercent, free: debug.FreeOSMemory, measure: runtimeUsage}).run(ctx, settled)
}

// run implements Govern.
func (g *governor) run(ctx context.Context, settled <-chan struct{}) error {
	g.settled = settled == nil
	before := g.set(collectorPercent(0, 1))
	defer g.setPercent(before)
	collected := make(chan struct{}, 1)
	watchCollections(ctx, collected)
	g.govern(ctx, settled, collected)
	return nil
}

// govern adjusts the percentage after each collection, which collected announces, until ctx ends.
func (g *governor) govern(ctx context.Context, settled, collected <-chan struct{}) {
	calm := time.NewTimer(calmInterval)
	defer calm.Stop()
	for {
		select {
		case <-collected:
			g.adjust(liveBytes(), g.measure(), time.Now())
			calm.Reset(calmInterval)
		case <-calm.C:
			if g.times > 1 && !g.pays(g.measure().allocated-g.used.allocated, time.Since(g.last)) {
				g.times = 1
				g.free()
			}
			calm.Reset(calmInterval)
		case <-settled:
			g.free()
			settled, g.settled, g.last = nil, true, time.Time{}
		case <-ctx.Done():
			return
		}
	}
}

// adjust sets the percentage for the live heap after a collection. It ignores small
// differences, because setting the percentage stops the world for a moment.
func (g *governor) adjust(live uint64, used usage, now time.Time) {
	grew := live > g.live+headroom(g.live)/2 // most of the newly allocated memory is in use
	recent, elapsed := used.since(g.used), now.Sub(g.last)
	g.last, g.live, g.used, g.cost = now, live, used, recent.collector
	switch {
	case !g.settled && live < startLive:
		g.times = 1
	case !g.settled:
		g.times = startTimes
	case !g.pays(recent.allocated, elapsed):
		g.times = 1
	case !grew: // a growing heap with a larger headroom would raise the peak
		g.times = (g.times + g.wanted(recent)) / 2 // the average with earlier collections, because a single one may mislead
	}
	want := collectorPercent(live, g.times)
	if math.Abs(float64(want-g.percent)) < 0.05*float64(g.percent) {
		return
	}
	g.set(want)
}

// pays reports whether a larger headroom saves enough CPU time, if this many bytes are allocated in the time
// elapsed.
func (g *governor) pays(allocated uint64, elapsed time.Duration) bool {
	collections := float64(allocated) / float64(headroom(g.live))
	return collections*g.cost.Seconds() > elapsed.Seconds()/cheapShare
}

// wanted returns the factor for the headroom at which collections take their share of the process's CPU
// time.
func (g *governor) wanted(recent usage) float64 {
	other := max(recent.other.Seconds(), 1e-6)
	room := (collectorShare - 1) * recent.collector.Seconds() / other * float64(recent.allocated)
	return min(max(room/float64(headroom(g.live)), 1), maxFactor(g.live))
}

func (g *governor) set(percent int) (before int) {
	g.percent = percent
	return g.setPercent(percent)
}

// sentinel is garbage whose cleanup runs after a collection. It has a pointer, because the runtime may put small
// objects without pointers into one allocation with others that are still in use.
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

// runtimeUsage returns the process's resource usage.
func runtimeUsage() usage {
	all := read("/cpu/classes/gc/total:cpu-seconds", "/cpu/classes/user:cpu-seconds", "/gc/heap/allocs:bytes")
	seconds := func(v metrics.Value) time.Duration { return time.Duration(v.Float64() * float64(time.Second)) }
	return usage{seconds(all[0].Value), seconds(all[1].Value), all[2].Value.Uint64()}
}

// liveBytes returns the live heap of the last collection, with the stacks and globals that it scanned.
func liveBytes() (sum uint64) {
	for _, s := range read("/gc/heap/live:bytes", "/gc/scan/stack:bytes", "/gc/scan/globals:bytes") {
		sum += s.Value.Uint64()
	}
	return sum
}

// read reads metrics of the runtime.
func read(names ...string) []metrics.Sample {
	samples := make([]metrics.Sample, len(names))
	for i, name := range names {
		samples[i].Name = name
	}
	metrics.Read(samples)
	return samples
}
