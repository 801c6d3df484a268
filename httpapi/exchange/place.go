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

// Place is what a request holds while it counts as one of those that are served at once: its
// seat and its count in a gauge. It is handed on with the request to the code that sees when
// the request has been served. The zero place is none.
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

// inflightInterval is how often Report sets upstream's metric to the peaks since the last time.
const inflightInterval = time.Second

// Report sets upstream's metrics, at once and then until ctx ends. waiting returns how many
// requests waited at most since its last call; nil says that none ever waits.
func (i *InFlight) Report(ctx context.Context, waiting func() (reading, mutating int)) {
	ticker := time.NewTicker(inflightInterval)
	defer ticker.Stop()
	for {
		metrics.UpdateInflightRequestMetrics(metrics.ExecutingPhase, int(i.ReadOnly.peak.Swap(0)), int(i.Mutating.peak.Swap(0)))
		if waiting != nil {
			reading, mutating := waiting()
			metrics.UpdateInflightRequestMetrics(metrics.WaitingPhase, reading, mutating)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// StreamPlace is what flow control counts for a request that has a connection to itself: its
// place, until it ends or, if it is a watch, is initialized; and for a watch its share in the
// cost of writes, until it ends.
//
// It implements the signal by which upstream's code says that a watch is initialized.
type StreamPlace struct {
	watch  bool
	forget func() // may be nil

	mu    sync.Mutex
	place Place // guarded by mu
}

// NewStreamPlace returns the StreamPlace of a request that is no watch.
func NewStreamPlace(p Place) *StreamPlace { return &StreamPlace{place: p} }

// NewWatchPlace returns the StreamPlace of a watch. forget takes the watch out of flow
// control, and may be nil.
func NewWatchPlace(p Place, forget func()) *StreamPlace {
	return &StreamPlace{watch: true, forget: forget, place: p}
}

// Context returns a context by which the handler of a watch signals that it is initialized.
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

// Wait returns at once: no code of this server waits for a watch to be initialized.
func (p *StreamPlace) Wait() {}

// Leave takes the request out of flow control.
func (p *StreamPlace) Leave() {
	p.Signal()
	if p.forget != nil {
		p.forget()
	}
}
