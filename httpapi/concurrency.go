package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/flow"
)

// concurrency limits how many requests are served at once.
type concurrency struct {
	flow                    *flow.Control // nil: maxReading and maxMutating apply instead
	inflight                *exchange.InFlight
	maxReading, maxMutating int           // 0 means no limit
	timeout                 time.Duration // of requests without a deadline
}

// gaugeOf returns the gauge for requests of x's kind, and the limit that applies to them without flow control; 0 means
// no limit.
func (c *concurrency) gaugeOf(x *apiCall) (*flow.Gauge, int) {
	if x.IsReadOnly() {
		return &c.inflight.ReadOnly, c.maxReading
	}
	return &c.inflight.Mutating, c.maxMutating
}

// acquire waits until the request may be served, or rejects it: apiserver pkg/server/filters, priority-and-fairness.go
// and maxinflight.go. A free request takes no seat of flow control.
func (c *concurrency) acquire(x *apiCall, free bool) bool {
	watch, long := x.Verb == "watch", x.LongRunning()
	switch {
	case c.flow != nil && (watch || !long):
		return c.acquireFromFlow(x, free)
	case c.flow == nil && !long:
		return c.acquireByCount(x)
	}
	return true
}

// The header fields of k8s.io/api/flowcontrol/v1 that report the classification of a request, as net/http
// writes them.
const (
	schemaHeader = "X-Kubernetes-Pf-Flowschema-Uid"
	levelHeader  = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// acquireFromFlow lets priority and fairness decide.
func (c *concurrency) acquireFromFlow(x *apiCall, free bool) bool {
	class, ok := c.flow.Acquire(x.Audit.Context(x.Base()), x.attributes(), &x.Request, free, c.queueDeadline(x), &x.Seat.Flow)
	if !ok || x.Seat.Flow.Queued() {
		x.Waited = time.Since(x.Received) // includes negligible work
	}
	x.Set(levelHeader, class.LevelUID)
	x.Set(schemaHeader, class.SchemaUID)
	if !ok {
		tooMany(x, strconv.FormatInt(c.flow.RetryAfter(class), 10))
		return false
	}
	if x.Seat.Flow.Waited >= noWait {
		x.InQueue = x.Seat.Flow.Waited
	}
	if exchange.Lines() {
		c.logClass(x, class)
	}
	counts, _ := c.gaugeOf(x)
	counts.Add(1)
	x.Seat.Gauge = counts
	return true
}

// logClass adds flow control's classification of a request to its log line, with upstream's estimate of its seats.
func (c *concurrency) logClass(x *apiCall, class *flow.Class) {
	work := c.flow.Estimate(x.attributes(), &x.Request, false, class)
	x.LogValues = append(x.LogValues, "apf_pl", class.Level, "apf_fs", class.Schema,
		"apf_iseats", work.InitialSeats, "apf_fseats", work.FinalSeats, "apf_additionalLatency", work.AdditionalLatency)
	x.Seated = time.Now()
}

// noWait is the shortest wait for a seat that is recorded: the smallest bucket of upstream's metric.
const noWait = 100 * time.Microsecond

// acquireByCount rejects the request if the limit of its kind is reached. It never rejects the super-user.
func (c *concurrency) acquireByCount(x *apiCall) bool {
	counts, most := c.gaugeOf(x)
	if now := counts.Add(1); most == 0 || now <= int64(most) {
		x.Seat.Gauge = counts
		return true
	}
	counts.Add(-1)
	if slices.Contains(x.User.GetGroups(), user.SystemPrivilegedGroup) {
		return true
	}
	tooMany(x, "1")
	return false
}

// queueDeadline returns the time until which the request may wait for a seat: a quarter of its timeout, at most a minute.
func (c *concurrency) queueDeadline(x *apiCall) time.Time {
	limit := c.timeout
	if !x.Deadline.IsZero() {
		limit = x.Deadline.Sub(x.Received)
	}
	return x.Received.Add(min(limit/4, time.Minute))
}

// tooMany rejects a request that cannot be served now.
func tooMany(x *apiCall, retryAfter string) {
	info, req := x.RequestInfo(), x.HTTP()
	metrics.RecordDroppedRequest(req, info, metrics.APIServerComponent, !x.IsReadOnly())
	metrics.RecordRequestTermination(req, info, metrics.APIServerComponent, http.StatusTooManyRequests)
	x.Set("Retry-After", retryAfter)
	x.Text(http.StatusTooManyRequests, "Too many requests, please try again later.")
}
