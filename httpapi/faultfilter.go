package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/faults"
	"github.com/larder-io/larder/httpapi/faults/inject"
)

// faultFilter injects faults into requests from outside of the process.
type faultFilter struct{ faults *inject.Faults } // nil injects none

// route has next serve the request, unless a fault refuses it. The answer may be lost.
func (g *faultFilter) route(x *apiCall, next *router) {
	if g.faults == nil || g.faults.Idle() && x.Verb != "watch" || !x.IsResourceRequest || x.Carrier.Internal() {
		next.route(x)
		return
	}
	plan := g.faults.Plan(inject.RequestOf(string(x.Peek("User-Agent")), x.User.GetName(), x.Verb, x.Group, x.Resource, x.Subresource, x.Namespace, x.Name))
	if status, retryAfter := plan.Refusal(); status != 0 {
		refuseAs(x, status, retryAfter)
		return
	}
	x.reading.Faults = plan
	next.route(x)
	if x.Streamed || x.Hijack != nil {
		return
	}
	switch plan.Lost(x.StatusCode()) {
	case faults.LoseCut:
		x.Cut = true
	case faults.LoseTimeout:
		x.Audit.Answer(http.StatusGatewayTimeout)
		x.Reset()
		x.Fail(exchange.ErrTimeout)
	}
}

// refuseAs refuses the request with a status, as kube-apiserver does: for a conflict, too many requests, an
// etcd without a leader, a server that is not ready, and a deadline.
func refuseAs(x *apiCall, status, retryAfter int) {
	switch status {
	case http.StatusConflict:
		x.Fail(apierrors.NewConflict(schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Name, errors.New(registry.OptimisticLockErrorMsg)))
	case http.StatusTooManyRequests:
		tooMany(x, strconv.Itoa(retryAfter))
	case http.StatusServiceUnavailable: // apiserver pkg/util/notfoundhandler/not_found_handler.go
		err := apierrors.NewServiceUnavailable("the request has been made before all known HTTP paths have been installed, please try again")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)}
		x.Fail(err)
	case http.StatusGatewayTimeout:
		x.Fail(exchange.ErrTimeout)
	default:
		x.Fail(errors.New("etcdserver: leader changed"))
	}
}
