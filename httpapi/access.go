package httpapi

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/httpapi/statuspage"
	"github.com/larder-io/larder/internal/auth"
)

// authentication authenticates clients and lets them impersonate other users.
type authentication struct {
	identity      *identity.Authentication
	impersonation *identity.Impersonation // nil: without an authorizer
	auditor       *auditor
	relayed       bool // a relay's upstream authenticates
}

// authenticate sets the request's user. If that fails, it rejects the request and returns false.
func (a *authentication) authenticate(x *apiCall) bool {
	switch err := a.identity.Authenticate(&x.Call, x.otherCredentials); {
	case err == nil:
		closeAnonymous(x)
		return true
	case err == identity.ErrTimeout:
		a.auditor.timedOut(x)
	case a.relayed && auth.IsUnreachable(err):
		x.Fail(unavailable())
	case errors.Is(err, auth.ErrLookup): // the credential may be valid; clients do not retry a 401
		a.unauthorized(x, unsynced())
	default:
		a.unauthorized(x, apierrors.NewUnauthorized("Unauthorized"))
	}
	return false
}

// closeAnonymous closes the HTTP/2 connection of an anonymous or unauthenticated client after the request (apiserver
// pkg/endpoints/filters/authentication.go).
func closeAnonymous(x *apiCall) {
	known := x.User != nil && x.User.GetName() != user.Anonymous && !slices.Contains(x.User.GetGroups(), user.AllUnauthenticated)
	if !known && x.Carrier.Major() == 2 && utilfeature.DefaultFeatureGate.Enabled(features.UnauthenticatedHTTP2DOSMitigation) {
		x.Set("Connection", "close")
	}
}

// unauthorized rejects the request of an unauthenticated client with err.
func (a *authentication) unauthorized(x *apiCall, err error) {
	if x.Audit != nil {
		a.auditor.recordRejected(x, attempted(x))
	}
	closeAnonymous(x)
	x.Fail(err)
}

// impersonate replaces the user with the impersonated one if that is allowed. Otherwise it rejects the request.
func (a *authentication) impersonate(x *apiCall) bool {
	if !x.impersonates || x.Carrier.Internal() {
		return true
	}
	if a.impersonation == nil {
		x.Deny(apierrors.NewForbidden(schema.GroupResource{Group: x.Group, Resource: x.Resource}, x.Name, errors.New("the server has no authorizer for impersonation")))
		return false
	}
	began := time.Now()
	w := nethttp.NewRecorder()
	bound, cancel := x.PrepareContext()
	defer cancel()
	ctx := exchange.Context(x.Audit.Context(bound), x.RequestInfo(), x.User, x.Received)
	asked := time.Now()
	as, err := a.impersonation.Admit(w, x.HTTP().WithContext(ctx))
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
		a.auditor.timedOut(x)
	case a.relayed && auth.IsUnreachable(err):
		x.Fail(unavailable())
	default:
		w.SendTo(&x.Response)
	}
	return false
}

// lineUser returns the name of u in log lines (apiserver
// pkg/endpoints/filters/impersonation/impersonation.go).
func lineUser(u user.Info) string {
	name := cmp.Or(u.GetName(), "<empty>")
	if groups := u.GetGroups(); len(groups) > 0 {
		name += "[" + strings.Join(groups, ",") + "]"
	}
	return name
}

// authorization authorizes requests.
type authorization struct {
	authorizer authorizer.Authorizer // nil allows everything
	access     *apimetrics.Access    // counts decisions
	auditor    *auditor
	relayed    bool // a relay's upstream decides
	statusPage bool // the status page is served: its HTML, which has no data, needs no authorization
}

// authorize reports whether the user may send the request. If not, it rejects the request. Routing reads the same
// Request value.
func (a *authorization) authorize(x *apiCall) bool {
	if a.authorizer == nil || x.Carrier.Internal() || a.statusPage && !x.IsResourceRequest && statuspage.Public(x.Method, x.Path) {
		x.Audit.Decided(authorizer.DecisionAllow, "", nil, 0)
		return true
	}
	attributes := x.attributes()
	ctx, cancel := x.PrepareContext()
	defer cancel()
	decision, reason, err := a.decide(ctx, x, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return true
	case errors.Is(err, auth.ErrNotSynced):
		x.Fail(unsynced())
	case err != nil && ctx.Err() != nil:
		a.auditor.timedOut(x)
	case err != nil && a.relayed && auth.IsUnreachable(err):
		x.Fail(unavailable())
	case err != nil:
		x.InternalError(err)
	default:
		klog.V(4).InfoS("Forbidden", "path", x.Path, "reason", reason, "auditID", x.AuditID)
		x.Deny(responsewriters.ForbiddenStatusError(attributes, reason))
	}
	return false
}

// unsynced returns the error for a request whose authorization data was not loaded in time. Clients retry the request
// or resume their watch.
func unsynced() error {
	return apierrors.NewTooManyRequests("the server has not loaded its authorization data yet, please try again later", 1)
}

// decide calls the authorizer, and records and counts its decision.
func (a *authorization) decide(ctx context.Context, x *apiCall, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	asked := time.Now()
	decision, reason, err := a.authorizer.Authorize(x.Audit.Context(ctx), attributes)
	took := time.Since(asked)
	if a.relayed && x.IsResourceRequest && errors.Is(err, relay.ErrNoReviews) {
		x.uncached, decision, reason, err = true, authorizer.DecisionAllow, "", nil // a relay's upstream decides
	}
	x.Decided(took)
	a.access.Authorized(decision, err, took)
	a.access.Filtered(x.audited, x.impersonated, x.InQueue)
	x.Audit.Decided(decision, reason, err, took)
	return decision, reason, err
}
