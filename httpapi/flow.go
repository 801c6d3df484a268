package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/mux"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/larder-io/larder/internal/auth"
)

// place is what a request has while it counts as one of those that are served at once.
// It is handed on with the request, to whoever knows when it has been served. The zero
// place is none.
type place struct {
	seat   auth.Seat
	counts *gauge
}

// release gives the place up. Further calls do nothing.
func (p *place) release() {
	p.seat.Release()
	if p.counts != nil {
		p.counts.add(-1)
		p.counts = nil
	}
}

// gauge counts requests, and how many there were at most.
type gauge struct{ now, peak atomic.Int64 }

func (g *gauge) add(delta int64) int64 {
	now := g.now.Add(delta)
	if peak := g.peak.Load(); delta > 0 && now > peak {
		g.peak.CompareAndSwap(peak, now)
	}
	return now
}

// inflight counts the requests that are being served.
type inflight struct{ readOnly, mutating gauge }

// inflightInterval is how often upstream's metric learns how many there were at most.
const inflightInterval = time.Second

// report tells upstream's metric until ctx ends.
func (i *inflight) report(ctx context.Context) {
	ticker := time.NewTicker(inflightInterval)
	defer ticker.Stop()
	var last [2]int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if peaks := [2]int64{i.readOnly.peak.Swap(0), i.mutating.peak.Swap(0)}; peaks != last {
				metrics.UpdateInflightRequestMetrics(metrics.ExecutingPhase, int(peaks[0]), int(peaks[1]))
				last = peaks
			}
		}
	}
}

// gaugeOf returns what counts the request, and how many of its kind are served at once if
// nothing but their number bounds them; 0 sets no bound.
func (x *exchange) gaugeOf() (*gauge, int) {
	switch x.Verb {
	case "get", "list", "watch":
		return &x.s.inflight.readOnly, x.s.config.MaxInFlight
	}
	return &x.s.inflight.mutating, x.s.config.MaxMutatingInFlight
}

// admit waits until the request may be served, or refuses it: apiserver
// pkg/server/filters, priority-and-fairness.go and maxinflight.go.
func (x *exchange) admit() bool {
	watch, long := x.Verb == "watch", x.LongRunning()
	switch {
	case x.s.config.Flow != nil && (watch || !long):
		return x.admitByFlow()
	case x.s.config.Flow == nil && !long:
		return x.admitByNumber()
	}
	return true
}

// admitByFlow lets priority and fairness decide.
func (x *exchange) admitByFlow() bool {
	flow := x.s.config.Flow
	class, ok := flow.Admit(x.trail.context(x.s.base), x.attributes(), x.Request, x.patience(), &x.place.seat)
	x.class = class
	x.set(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID, class.LevelUID)
	x.set(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID, class.SchemaUID)
	if !ok {
		x.tooMany(strconv.FormatInt(flow.RetryAfter(class), 10))
		return false
	}
	x.place.counts, _ = x.gaugeOf()
	x.place.counts.add(1)
	return true
}

// admitByNumber lets so many requests be served at once, and the super-user in any case.
func (x *exchange) admitByNumber() bool {
	counts, most := x.gaugeOf()
	if now := counts.add(1); most == 0 || now <= int64(most) {
		x.place.counts = counts
		return true
	}
	counts.add(-1)
	if slices.Contains(x.user.GetGroups(), user.SystemPrivilegedGroup) {
		return true
	}
	x.tooMany("1")
	return false
}

// patience is until when the request may wait: for a fourth of the time it has.
func (x *exchange) patience() time.Time {
	limit := x.s.config.RequestTimeout
	if !x.deadline.IsZero() {
		limit = x.deadline.Sub(x.received)
	}
	return x.received.Add(min(limit/4, time.Minute))
}

// tooMany refuses a request that cannot be served now.
func (x *exchange) tooMany(retryAfter string) {
	info, req := x.RequestInfo(), x.http()
	mutating := x.Verb != "get" && x.Verb != "list" && x.Verb != "watch"
	metrics.RecordDroppedRequest(req, info, metrics.APIServerComponent, mutating)
	metrics.RecordRequestTermination(req, info, metrics.APIServerComponent, http.StatusTooManyRequests)
	x.set("Retry-After", retryAfter)
	x.text(http.StatusTooManyRequests, "Too many requests, please try again later.")
}

// takePlace hands the place to who serves the request from here on.
func (x *exchange) takePlace() place {
	p := x.place
	x.place = place{}
	return p
}

// streamPlace is what flow control has of a request that has a connection to itself: the
// place that it has until it ends or, if it is a watch, until it is initialized; and the
// share of a watch in what writes cost, until it ends.
//
// It implements the signal by which upstream's code says that a watch is initialized.
type streamPlace struct {
	watch  bool
	forget func() // may be nil

	mu    sync.Mutex
	place place // guarded by mu
}

// takeStreamPlace hands the place, and what flow control knows of a watch, to who serves
// the request from here on.
func (x *exchange) takeStreamPlace() *streamPlace {
	p := &streamPlace{place: x.takePlace(), watch: x.Verb == "watch"}
	if flow := x.s.config.Flow; flow != nil && p.watch {
		p.forget = flow.RegisterWatch(x.RequestInfo(), x.RawQuery)
	}
	return p
}

// context returns one by which who serves a watch says that it is initialized.
func (p *streamPlace) context(ctx context.Context) context.Context {
	if !p.watch {
		return ctx
	}
	return utilflowcontrol.WithInitializationSignal(ctx, p)
}

// Signal gives the place up. Further calls do nothing.
func (p *streamPlace) Signal() {
	p.mu.Lock()
	taken := p.place
	p.place = place{}
	p.mu.Unlock()
	taken.release()
}

// Wait returns at once: nobody here waits for a watch.
func (p *streamPlace) Wait() {}

// leave ends what flow control has of the request.
func (p *streamPlace) leave() {
	p.Signal()
	if p.forget != nil {
		p.forget()
	}
}

// serveFlow adds the pages that show what waits for what.
func serveFlow(t *table, flow *auth.Flow) {
	pages := mux.NewPathRecorderMux("flow control")
	flow.Install(pages)
	t.handlePrefix("/debug/api_priority_and_fairness/", pages)
}
