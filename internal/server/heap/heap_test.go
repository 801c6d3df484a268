package heap

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestCollectorPercent(t *testing.T) {
	for _, test := range []struct {
		live, times uint64
		want        int
	}{
		{0, startTimes, 800},
		{2 << 20, 1, 401},
		{32 << 20, 1, 53},
		{32 << 20, startTimes, 106},
		{32 << 20, stormTimes, 318},
		{320 << 20, 1, 8},
		{320 << 20, stormTimes, 48},
		{32 << 30, 1, 3},
	} {
		if got := collectorPercent(test.live, test.times); got != test.want {
			t.Errorf("%d for %d bytes, want %d", got, test.live, test.want)
		}
	}
}

// A storm of collections gets more room until it is over.
func TestStormsOfCollectionsGetMoreRoom(t *testing.T) {
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	live := uint64(320 << 20)
	g, now := &governor{settled: true}, time.Unix(100, 0)
	for i, step := range []struct {
		apart time.Duration
		grown uint64
		times uint64
	}{
		{time.Minute, 0, 1}, {calmInterval, 0, 1}, {stormInterval, 0, 1}, {stormInterval - 1, headroom(live) * 9 / 10, 1},
		{stormInterval - 1, 1 << 20, stormTimes}, {stormInterval, 0, stormTimes}, {calmInterval, 0, stormTimes}, {calmInterval + 1, 0, 1},
	} {
		now, live = now.Add(step.apart), live+step.grown
		g.percent = 0 // whatever it was, it is set
		if g.adjust(live, now); g.percent != collectorPercent(live, step.times) {
			t.Errorf("step %d: %d percent", i, g.percent)
		}
	}
	g.settled = false
	if g.adjust(live, now); g.storm {
		t.Error("hurries during the start")
	}
}

// The percentage follows the heap, collection by collection, and is what it was when
// the governor has ended.
func TestTheGovernorFollowsTheHeap(t *testing.T) {
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	settled := make(chan struct{})
	close(settled)
	adjusted := make(chan int, 64)
	g := &governor{onSet: func(percent int) { adjusted <- percent }}
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

// What a storm of collections took is given back once, when it is over.
func TestGovernorGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := debug.SetGCPercent(123)
		defer debug.SetGCPercent(before)
		ctx, cancel := context.WithCancel(t.Context())
		collected := make(chan struct{}, 1)
		var given []time.Duration
		start := time.Now()
		g := &governor{settled: true, free: func() {
			given = append(given, time.Since(start))
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
				collected <- struct{}{}
			}
		}
		collections(3, 2*calmInterval) // in peace
		start = time.Now()
		collections(5, stormInterval/2)
		time.Sleep(time.Hour)
		cancel()
		<-ended
		if want := 5*stormInterval/2 + calmInterval; len(given) != 1 || given[0] != want {
			t.Errorf("gave back after %v, want it once after %v", given, want)
		}
	})
}
