package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/httpapi/faults/inject"
	"github.com/larder-io/larder/httpapi/reads"
)

// faultFilter injects faults into requests from the network.
type faultFilter struct{ faults *inject.Faults } // nil injects none

// route lets next serve the request, unless a fault rejects it. A fault may also discard the response.
func (f *faultFilter) route(x *apiCall, next *router) {
	if f.faults == nil || f.faults.Idle() && x.Verb != "watch" || !x.IsResourceRequest || x.Carrier.Internal() {
		next.route(x)
		return
	}
	plan := f.faults.Plan(inject.RequestOf(string(x.Peek("User-Agent")), x.User.GetName(), x.Verb, x.Group, x.Resource, x.Subresource, x.Namespace, x.Name))
	if status, retryAfter := plan.Refusal(); status != 0 {
		refuseAs(x, next, status, retryAfter)
		return
	}
	x.reading.Faults = plan
	next.route(x)
	if x.Streamed || x.Hijack != nil {
		return
	}
	switch plan.Lost(x.StatusCode()) {
	case faults.LoseCut:
		x.Abort = true
	case faults.LoseTimeout: // as if the handler, which has counted its response, had missed the deadline
		x.Audit.RecordStatus(http.StatusGatewayTimeout)
		x.TimeOut()
		metrics.RecordRequestPostTimeout(metrics.PostTimeoutSourceTimeoutHandler, metrics.PostTimeoutHandlerOK)
	}
}

// refuseAs rejects the request with kube-apiserver's response for a status: 409 for a conflict, 429 for too many
// requests, 500 for an etcd without a leader, 503 for a server that is not ready, and 504 for a missed deadline.
func refuseAs(x *apiCall, next *router, status, retryAfter int) {
	switch status {
	case http.StatusTooManyRequests:
		tooMany(x, strconv.Itoa(retryAfter))
		return
	case http.StatusServiceUnavailable: // apiserver pkg/util/notfoundhandler/not_found_handler.go, which counts nothing
		err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)}
		x.Fail(err)
		return
	case http.StatusConflict:
		x.Fail(apierrors.NewConflict(schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Name, errors.New(registry.OptimisticLockErrorMsg)))
	case http.StatusGatewayTimeout:
		x.TimeOut()
	default:
		x.Fail(errors.New("etcdserver: leader changed"))
	}
	next.countFailure(x)
}

// countFailure counts a failed request in upstream's metrics, as the handler of its resource would. It
// ignores resources that this server does not serve.
func (r *router) countFailure(x *apiCall) {
	if r.remote(x) != nil {
		return
	}
	var resource *reads.Resource
	if e, ok := r.table.Load().Lookup(&x.Request); ok {
		resource = &e.Resource
	} else if r.extensions == nil {
		return
	} else if c, done := r.extensions.Custom(&x.Request); c != nil {
		defer done()
		resource = c
	} else {
		return
	}
	if x.IsReadOnly() {
		x.reading.Exchange = &x.Exchange
		x.reading.Observe(resource, x.Length())
		return
	}
	info := *x.RequestInfo()
	if len(x.Parts) < 2 { // a name is from a selector
		info.Name = ""
	}
	req := x.HTTP().WithContext(exchange.Context(x.Audit.Context(x.Base()), &info, x.User, x.Received))
	metrics.MonitorRequest(req, x.Method, x.Group, x.Version, x.Resource, x.Subresource, metrics.CleanScope(&info),
		metrics.APIServerComponent, resource.Life.Deprecated, resource.Life.Removed, x.StatusCode(), x.Length(), time.Since(x.Received))
}
