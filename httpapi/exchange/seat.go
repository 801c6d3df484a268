package exchange

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/larder-io/larder/internal/flow"
)

// Seat is held by a request that is being served: a seat of flow control and a count in a gauge. The zero Seat is none.
type Seat struct {
	Flow  flow.Seat
	Gauge *flow.Gauge
}

// Release releases the seat. Further calls do nothing.
func (s *Seat) Release() {
	s.Flow.Release()
	if s.Gauge != nil {
		s.Gauge.Add(-1)
		s.Gauge = nil
	}
}

// InFlight counts the requests that are being served.
type InFlight struct{ ReadOnly, Mutating flow.Gauge }

// inflightInterval is how often Report sets upstream's metrics to the peaks since the last time.
const inflightInterval = time.Second

// Report sets upstream's metrics at once, and then every second until ctx ends. waiting returns the maximum number of
// waiting requests since its last call; nil means that requests never wait.
func (i *InFlight) Report(ctx context.Context, waiting func() (reading, mutating int)) {
	wait.UntilWithContext(ctx, func(context.Context) {
		metrics.UpdateInflightRequestMetrics(metrics.ExecutingPhase, i.ReadOnly.Peak(), i.Mutating.Peak())
		if waiting != nil {
			reading, mutating := waiting()
			metrics.UpdateInflightRequestMetrics(metrics.WaitingPhase, reading, mutating)
		}
	}, inflightInterval)
}

// StreamSeat is the flow control seat of a request that takes over its connection. It is held until the request ends
// or, for a watch, until the watch is initialized. Flow control counts a watch until it ends.
//
// It implements the signal by which upstream's code says that a watch is initialized.
type StreamSeat struct {
	watch  bool
	forget func()

	mu   sync.Mutex
	seat Seat // guarded by mu
}

// NewStreamSeat returns the StreamSeat of a request. forget removes a watch from flow control.
func NewStreamSeat(p Seat, watch bool, forget func()) *StreamSeat {
	return &StreamSeat{watch: watch, forget: forget, seat: p}
}

// Context returns a context by which the handler of a watch signals that it is initialized.
func (s *StreamSeat) Context(ctx context.Context) context.Context {
	if !s.watch {
		return ctx
	}
	return utilflowcontrol.WithInitializationSignal(ctx, s)
}

// Signal releases the seat. Further calls do nothing.
func (s *StreamSeat) Signal() {
	s.mu.Lock()
	seat := s.seat
	s.seat = Seat{}
	s.mu.Unlock()
	seat.Release()
}

// Wait returns at once: no code of this server waits for a watch to be initialized.
func (s *StreamSeat) Wait() {}

// Leave removes the request from flow control.
func (s *StreamSeat) Leave() {
	s.Signal()
	s.forget()
}
