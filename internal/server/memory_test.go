package server

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestCollectorPercent(t *testing.T) {
	for _, test := range []struct {
		live uint64
		want int
	}{
		{0, 800},
		{4 << 20, 800},
		{32 << 20, 106},
		{320 << 20, 16},
		{32 << 30, 6},
	} {
		if got := collectorPercent(test.live); got != test.want {
			t.Errorf("%d for %d bytes, want %d", got, test.live, test.want)
		}
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
	ballast := make([]byte, 256<<20)
	runtime.GC()
	for percent := range adjusted {
		if percent < small/2 {
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
