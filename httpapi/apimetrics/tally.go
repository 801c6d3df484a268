package apimetrics

import (
	"sync/atomic"
	"time"
)

// tally counts answers of one kind under upstream's metrics. Upstream finds each of its
// five metrics by nine labels, which costs a tenth of a small request (B10); so answers are
// counted here and added to its metrics when they are asked for.
type tally struct {
	nanos     atomic.Int64
	bytes     atomic.Int64
	durations [len(durationBounds) + 1]atomic.Int64 // by bound, not cumulative
	sizes     [len(sizeBounds) + 1]atomic.Int64
}

// The bounds of upstream's buckets, of which some metrics have but a part (apiserver
// pkg/endpoints/metrics/metrics.go).
var (
	durationBounds = [...]float64{
		0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
	}
	sizeBounds    = [...]float64{1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}
	frameBounds   = [...]float64{1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10}
	initialBounds = [...]float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 15, 20, 30, 45, 60}
)

// add counts one answer.
func (t *tally) add(a Answer) {
	t.nanos.Add(int64(a.Took))
	t.durations[bucketOf(durationBounds[:], a.Took.Seconds())].Add(1)
	if !a.Unsized {
		t.bytes.Add(int64(a.Size))
		t.sizes[bucketOf(sizeBounds[:], float64(a.Size))].Add(1)
	}
}

// bucketOf returns the first bound that v does not exceed.
func bucketOf(bounds []float64, v float64) int {
	for i, bound := range bounds {
		if v <= bound {
			return i
		}
	}
	return len(bounds)
}

func (t *tally) reset() {
	t.nanos.Store(0)
	t.bytes.Store(0)
	for i := range t.durations {
		t.durations[i].Store(0)
	}
	for i := range t.sizes {
		t.sizes[i].Store(0)
	}
}

// Frames counts frames of watches by their size, for one goroutine at a time. It is given to
// [Monitor.Sent] now and then.
type Frames struct {
	count, bytes int64
	sizes        [len(frameBounds) + 1]int64
}

// Add counts a frame.
func (f *Frames) Add(size int) {
	f.count++
	f.bytes += int64(size)
	at := 0
	for size > 1<<10<<at && at < len(frameBounds) {
		at++
	}
	f.sizes[at]++
}

// frameTally counts the frames of all watches of a resource.
type frameTally struct {
	bytes atomic.Int64
	sizes [len(frameBounds) + 1]atomic.Int64
}

func (t *frameTally) add(f *Frames) {
	if f.count == 0 {
		return
	}
	t.bytes.Add(f.bytes)
	for i, n := range f.sizes {
		if n > 0 {
			t.sizes[i].Add(n)
		}
	}
}

func (t *frameTally) reset() {
	t.bytes.Store(0)
	for i := range t.sizes {
		t.sizes[i].Store(0)
	}
}

// initialTally counts how long the initial objects of watches took that asked to be told where
// they end.
type initialTally struct {
	nanos  atomic.Int64
	counts [len(initialBounds) + 1]atomic.Int64
}

func (t *initialTally) reset() {
	t.nanos.Store(0)
	for i := range t.counts {
		t.counts[i].Store(0)
	}
}

// buckets returns the counts by bound, each with those below it, and their sum. Every bound is
// one of those that counts are by; a bound that it has not adds up what is below.
func buckets(bounds, by []float64, counts []atomic.Int64) (map[float64]uint64, uint64) {
	made, total, at := make(map[float64]uint64, len(bounds)), uint64(0), 0
	for i := range counts {
		total += uint64(counts[i].Load())
		if i < len(by) && at < len(bounds) && bounds[at] == by[i] {
			made[bounds[at]] = total
			at++
		}
	}
	return made, total
}

func seconds(nanos int64) float64 { return time.Duration(nanos).Seconds() }
