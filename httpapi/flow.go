package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/server/mux"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/auth"
)

// gaugeOf returns what counts the request, and how many of its kind are served at once if
// nothing but their number bounds them; 0 sets no bound.
func (x *chain) gaugeOf() (*exchange.Gauge, int) {
	switch x.Verb {
	case "get", "list", "watch":
		return &x.s.inflight.ReadOnly, x.s.config.MaxInFlight
	}
	return &x.s.inflight.Mutating, x.s.config.MaxMutatingInFlight
}

// acquireSeat waits until the request may be served, or refuses it: apiserver
// pkg/server/filters, priority-and-fairness.go and maxinflight.go.
func (x *chain) acquireSeat() bool {
	watch, long := x.Verb == "watch", x.LongRunning()
	switch {
	case x.s.config.Flow != nil && (watch || !long):
		return x.acquireFromFlow()
	case x.s.config.Flow == nil && !long:
		return x.acquireByCount()
	}
	return true
}

// The header fields that tell how flow control took a request, written as net/http writes
// the names that k8s.io/api/flowcontrol/v1 has for them.
const (
	schemaHeader = "X-Kubernetes-Pf-Flowschema-Uid"
	levelHeader  = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// acquireFromFlow lets priority and fairness decide.
func (x *chain) acquireFromFlow() bool {
	flow := x.s.config.Flow
	class, ok := flow.Acquire(x.Trail.Context(x.Base()), x.attributes(), &x.Request, x.patience(), &x.Place.Seat)
	x.Set(levelHeader, class.LevelUID)
	x.Set(schemaHeader, class.SchemaUID)
	if !ok {
		x.tooMany(strconv.FormatInt(flow.RetryAfter(class), 10))
		return false
	}
	counts, _ := x.gaugeOf()
	counts.Add(1)
	x.Place.Counts = counts
	return true
}

// acquireByCount lets so many requests be served at once, and the super-user in any case.
func (x *chain) acquireByCount() bool {
	counts, most := x.gaugeOf()
	if now := counts.Add(1); most == 0 || now <= int64(most) {
		x.Place.Counts = counts
		return true
	}
	counts.Add(-1)
	if slices.Contains(x.User.GetGroups(), user.SystemPrivilegedGroup) {
		return true
	}
	x.tooMany("1")
	return false
}

// patience is until when the request may wait: for a fourth of the time it has.
func (x *chain) patience() time.Time {
	limit := x.s.config.RequestTimeout
	if !x.Deadline.IsZero() {
		limit = x.Deadline.Sub(x.Received)
	}
	return x.Received.Add(min(limit/4, time.Minute))
}

// tooMany refuses a request that cannot be served now.
func (x *chain) tooMany(retryAfter string) {
	info, req := x.RequestInfo(), x.HTTP()
	mutating := x.Verb != "get" && x.Verb != "list" && x.Verb != "watch"
	metrics.RecordDroppedRequest(req, info, metrics.APIServerComponent, mutating)
	metrics.RecordRequestTermination(req, info, metrics.APIServerComponent, http.StatusTooManyRequests)
	x.Set("Retry-After", retryAfter)
	x.Text(http.StatusTooManyRequests, "Too many requests, please try again later.")
}

// serveFlow adds the pages that show what waits for what.
func serveFlow(t *routes.Table, flow *auth.Flow) {
	pages := mux.NewPathRecorderMux("flow control")
	flow.Install(pages)
	t.HandlePrefix("/debug/api_priority_and_fairness/", pages)
}
