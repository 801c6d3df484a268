package server

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
		live    uint64
		hurried bool
		want    int
	}{
		{0, false, 800},
		{4 << 20, false, 800},
		{32 << 20, false, 106},
		{32 << 20, true, 318},
		{320 << 20, false, 16},
		{320 << 20, true, 48},
		{32 << 30, false, 6},
	} {
		if got := collectorPercent(test.live, test.hurried); got != test.want {
			t.Errorf("%d for %d bytes, want %d", got, test.live, test.want)
		}
	}
}

// A storm of collections gets more room until it is over.
func TestGovernorHurries(t *testing.T) {
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	const live = 320 << 20
	g, now := &governor{settled: true}, time.Unix(100, 0)
	for i, step := range []struct {
		apart   time.Duration
		hurried bool
	}{
		{time.Minute, false}, {ease, false}, {hurry, false}, {hurry - 1, true}, {hurry, true}, {ease, true}, {ease + 1, false},
	} {
		now = now.Add(step.apart)
		if g.adjust(live, now); g.percent != collectorPercent(live, step.hurried) {
			t.Errorf("step %d: %d percent", i, g.percent)
		}
	}
	g.settled = false
	if g.adjust(live, now); g.hurried {
		t.Error("hurries during the start")
	}
}

// The percentage follows the heap, collection by collection, and is what it was when
// the governor has ended.
func TestGovernor(t *testing.T) {
	before := debug.SetGCPercent(123)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	settled := make(chan struct{})
	close(settled)
	adjusted := make(chan int, 64)
	g := &governor{told: func(percent int) { adjusted <- percent }}
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
		g := &governor{settled: true, gave: func() {
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
		collections(3, 2*ease) // in peace
		start = time.Now()
		collections(5, hurry/2)
		time.Sleep(time.Hour)
		cancel()
		<-ended
		if want := 5*hurry/2 + ease; len(given) != 1 || given[0] != want {
			t.Errorf("gave back after %v, want it once after %v", given, want)
		}
	})
}
