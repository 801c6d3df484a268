package exchange

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/metrics"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/larder-io/larder/internal/auth"
)

// Place is what a request has while it counts as one of those that are served at once.
// It is handed on with the request, to whoever knows when it has been served. The zero
// place is none.
type Place struct {
	Seat   auth.Seat
	Counts *Gauge
}

// Release gives the place up. Further calls do nothing.
func (p *Place) Release() {
	p.Seat.Release()
	if p.Counts != nil {
		p.Counts.Add(-1)
		p.Counts = nil
	}
}

// Gauge counts requests, and how many there were at most.
type Gauge struct{ now, peak atomic.Int64 }

// Add counts delta more requests, and returns how many there are.
func (g *Gauge) Add(delta int64) int64 {
	now := g.now.Add(delta)
	if peak := g.peak.Load(); delta > 0 && now > peak {
		g.peak.CompareAndSwap(peak, now)
	}
	return now
}

// InFlight counts the requests that are being served.
type InFlight struct{ ReadOnly, Mutating Gauge }

// inflightInterval is how often upstream's metric learns how many there were at most.
const inflightInterval = time.Second

// Report tells upstream's metric until ctx ends.
func (i *InFlight) Report(ctx context.Context) {
	ticker := time.NewTicker(inflightInterval)
	defer ticker.Stop()
	var last [2]int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if peaks := [2]int64{i.ReadOnly.peak.Swap(0), i.Mutating.peak.Swap(0)}; peaks != last {
				metrics.UpdateInflightRequestMetrics(metrics.ExecutingPhase, int(peaks[0]), int(peaks[1]))
				last = peaks
			}
		}
	}
}

// StreamPlace is what flow control has of a request that has a connection to itself: the
// place that it has until it ends or, if it is a watch, until it is initialized; and the
// share of a watch in what writes cost, until it ends.
//
// It implements the signal by which upstream's code says that a watch is initialized.
type StreamPlace struct {
	watch  bool
	forget func() // may be nil

	mu    sync.Mutex
	place Place // guarded by mu
}

// NewStreamPlace returns that of a request that is no watch.
func NewStreamPlace(p Place) *StreamPlace { return &StreamPlace{place: p} }

// NewWatchPlace returns that of a watch. forget ends what flow control knows of it, and may
// be nil.
func NewWatchPlace(p Place, forget func()) *StreamPlace {
	return &StreamPlace{watch: true, forget: forget, place: p}
}

// Context returns one by which who serves a watch says that it is initialized.
func (p *StreamPlace) Context(ctx context.Context) context.Context {
	if !p.watch {
		return ctx
	}
	return utilflowcontrol.WithInitializationSignal(ctx, p)
}

// Signal gives the place up. Further calls do nothing.
func (p *StreamPlace) Signal() {
	p.mu.Lock()
	taken := p.place
	p.place = Place{}
	p.mu.Unlock()
	taken.Release()
}

// Wait returns at once: nobody here waits for a watch.
func (p *StreamPlace) Wait() {}

// Leave ends what flow control has of the request.
func (p *StreamPlace) Leave() {
	p.Signal()
	if p.forget != nil {
		p.forget()
	}
}
