package httpapi

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/internal/auth"
)

// authentication authenticates clients and lets them impersonate other users.
type authentication struct {
	identity      *identity.Authentication
	impersonation *identity.Impersonation // nil: there is no authorizer that could decide
	auditor       *auditor
}

// authenticate sets the request's user, or answers the request if that is not possible.
func (i *authentication) authenticate(x *apiCall) bool {
	switch err := i.identity.Authenticate(&x.Call, x.foreign); err {
	case nil:
		closeAnonymous(x)
		return true
	case identity.ErrTimeout:
		i.auditor.timedOut(x)
	default:
		i.unauthorized(x)
	}
	return false
}

// closeAnonymous makes an anonymous or unauthenticated client leave its HTTP/2 connection after the
// request, so that it cannot send more than over HTTP/1.1 (apiserver
// pkg/endpoints/filters/authentication.go).
func closeAnonymous(x *apiCall) {
	known := x.User != nil && x.User.GetName() != user.Anonymous && !slices.Contains(x.User.GetGroups(), user.AllUnauthenticated)
	if !known && x.Carrier.Major() == 2 && utilfeature.DefaultFeatureGate.Enabled(features.UnauthenticatedHTTP2DOSMitigation) {
		x.LeaveAfter()
	}
}

// unauthorized answers a client that was not authenticated.
func (i *authentication) unauthorized(x *apiCall) {
	if x.Audit != nil {
		i.auditor.refuse(x, attempted(x))
	}
	closeAnonymous(x)
	x.Fail(apierrors.NewUnauthorized("Unauthorized"))
}

// impersonate replaces the user by the impersonated one if the requester may do so, and otherwise answers
// the request.
func (i *authentication) impersonate(x *apiCall) bool {
	if !x.impersonates || x.Carrier.Internal() {
		return true
	}
	if i.impersonation == nil {
		x.Deny(apierrors.NewForbidden(schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Name, errors.New("nobody can say who may impersonate")))
		return false
	}
	began := time.Now()
	w := nethttp.NewRecorder()
	bound, cancel := x.Prepared()
	defer cancel()
	ctx := exchange.Context(x.Audit.Context(bound), x.RequestInfo(), x.User, x.Received)
	asked := time.Now()
	as, err := i.impersonation.Admit(w, x.HTTP().WithContext(ctx))
	x.Decided(time.Since(asked))
	switch {
	case as != nil:
		requester := x.User
		x.User, _ = apirequest.UserFrom(as.Context())
		if exchange.Lines() {
			x.Info = lineUser(requester) + " is impersonating " + lineUser(x.User)
		}
		x.Replace(as)
		x.impersonated = time.Since(began)
		return true
	case errors.Is(err, auth.ErrNotSynced):
		x.Fail(unsynced())
	case bound.Err() != nil:
		i.auditor.timedOut(x)
	default:
		w.SendTo(&x.Response)
	}
	return false
}

// lineUser is how lines of the log name u (apiserver
// pkg/endpoints/filters/impersonation/impersonation.go).
func lineUser(u user.Info) string {
	name := cmp.Or(u.GetName(), "<empty>")
	if groups := u.GetGroups(); len(groups) > 0 {
		name += "[" + strings.Join(groups, ",") + "]"
	}
	return name
}
