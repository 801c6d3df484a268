package httpapi

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/statuspage"
)

// chain passes requests through authentication, audit, impersonation, flow control and authorization to the router.
// Each part responds to the requests that it rejects.
type chain struct {
	handlers *nethttp.Handlers
	base     context.Context // ends with the server

	parser              parser
	shutdown            shutdownFilter
	auditor             *auditor
	timeouts            timeoutFilter
	cors                corsFilter
	authentication      authentication
	tracer              tracer
	concurrency         concurrency
	freeUndecided       *semaphore.Weighted // see maxFreeUndecided
	authorization       authorization
	impersonationFilter string // apimetrics.ImpersonationFilter
	storageVersions     storageVersionFilter
	ledger              *costs.Ledger
	failures            *statuspage.Failures
	faults              faultFilter
	router              router
}

// handle serves one request, whose header has been read. It returns the exchange with the response to
// send. It recovers from panics.
func (c *chain) handle(carrier exchange.Carrier, received time.Time) *exchange.Exchange {
	x := new(apiCall)
	c.handlers.Init(&x.Call, carrier, received, c.base)
	c.run(x)
	return &x.Exchange
}

func (c *chain) run(x *apiCall) {
	defer c.tracer.end(x)
	parsed := false
	defer func() {
		if parsed { // so that unauthenticated clients cannot fill the list of failures
			c.recordFailure(x)
		}
	}()
	defer logLine(x)
	defer recoverPanic(x)
	defer c.shutdown.leave(x)
	if parsed = c.parser.parse(x); parsed && c.shutdown.enter(x) {
		c.pass(x)
	}
}

// logLine logs a request after its response, unless its handler does.
func logLine(x *apiCall) {
	line := x.Line()
	if line != nil && !x.Seated.IsZero() && x.StatusCode() != http.StatusGatewayTimeout {
		held := time.Since(x.Seated)
		if x.Verb == "watch" {
			line.Add("apf_init_latency", held)
		}
		line.Add("apf_execution_time", held)
	}
	line.Write(x.StatusCode(), x.Bytes)
}

// recoverPanic recovers from a panic while x is served, and sends the response.
func recoverPanic(x *apiCall) {
	p := recover()
	if p == nil {
		return
	}
	x.TakeAudit().Panicked(p)
	if exchange.IsAbort(p) {
		x.Abort = true
		metrics.RecordRequestAbort(x.HTTP(), x.RequestInfo())
		return
	}
	klog.ErrorS(nil, "Request panicked", "method", x.Method, "path", x.Path, "auditID", x.AuditID, "panic", p, "stack", exchange.Stack())
	x.Panicked()
	x.Closing = true
}

// pass passes a parsed request from one part to the next.
func (c *chain) pass(x *apiCall) {
	c.auditor.begin(x)
	if c.timeouts.set(x) && c.cors.check(x) && c.authentication.authenticate(x) {
		c.tracer.begin(x)
		c.admit(x)
	}
	c.findAccount(x) // if the request was rejected
	x.EndAudit()
	x.ReleaseSeat()
}

// admit passes an authenticated request to the router, or counts the filter that rejected it.
func (c *chain) admit(x *apiCall) {
	x.Enter("audit")
	if !c.auditor.receive(x) {
		return
	}
	x.Enter(c.impersonationFilter)
	if !c.authentication.impersonate(x) {
		c.authorization.access.Filtered(x.audited)
		return
	}
	through, ok := c.allow(x)
	switch {
	case through:
		x.Audit.Decided(authorizer.DecisionAllow, "", nil, 0) // a relay's upstream decides
		c.findAccount(x)
		c.router.relay.Forward(&x.Call)
	case ok && c.storageVersions.check(x):
		c.findAccount(x)
		c.faults.route(x, &c.router)
	}
}

// maxFreeUndecided limits the free requests, which take no seat, that are being authorized. Otherwise only seats would
// limit the calls to a slow authorization webhook.
const maxFreeUndecided = 256

// allow passes x through flow control and authorization. through says that x must be proxied to the upstream of a
// relay, which authorizes it; otherwise ok says that x may be served.
func (c *chain) allow(x *apiCall) (through, ok bool) {
	if c.concurrency.flow != nil {
		x.Enter("priorityandfairness")
	}
	free := c.router.resumes(x)
	ok = c.concurrency.acquire(x, free)
	if free && ok {
		if c.freeUndecided.TryAcquire(1) {
			defer c.freeUndecided.Release(1)
		} else {
			x.Seat.Release()
			ok = c.concurrency.acquire(x, false)
		}
	}
	if !ok {
		c.authorization.access.Filtered(x.audited, x.impersonated)
		return false, false
	}
	x.Enter("authorization")
	through = c.router.goesThrough(x)
	return through, !through && c.authorization.authorize(x)
}
