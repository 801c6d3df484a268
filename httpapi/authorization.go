package httpapi

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/revocation"
	"github.com/larder-io/larder/httpapi/statuspage"
	"github.com/larder-io/larder/internal/auth"
)

// authorization asks the authorizer whether a request may go on.
type authorization struct {
	authorizer authorizer.Authorizer // nil allows everything
	rights     *revocation.Rights
	access     *apimetrics.Access // counts decisions
	auditor    *auditor
	shell      bool // everybody may read the HTML of the status page, which holds no data
}

// authorize asks whether the user may do what the Request says. Routing acts on the same
// Request.
func (g *authorization) authorize(x *apiCall) bool {
	if g.authorizer == nil || x.Carrier.Internal() || g.shell && !x.IsResourceRequest && statuspage.Public(x.Method, x.Path) {
		x.Audit.Decided(authorizer.DecisionAllow, "", nil, 0)
		return true
	}
	attributes := x.attributes()
	ctx, cancel := x.Prepared()
	defer cancel()
	decision, reason, err := g.ask(ctx, x, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return true
	case errors.Is(err, auth.ErrNotSynced):
		x.Fail(unsynced())
	case err != nil && ctx.Err() != nil:
		g.auditor.timedOut(x)
	case err != nil:
		x.InternalError(err)
	default:
		klog.V(4).InfoS("Forbidden", "path", x.Path, "reason", reason, "auditID", x.AuditID)
		x.Deny(responsewriters.ForbiddenStatusError(attributes, reason))
	}
	return false
}

// unsynced is the answer to a request whose authorization data was not loaded in time. Clients
// retry it, and continue a watch where they were.
func unsynced() error {
	return apierrors.NewTooManyRequests("the server has not loaded yet what decides about access, please try again later", 1)
}

// ask asks the authorizer, and records and counts its answer.
func (g *authorization) ask(ctx context.Context, x *apiCall, attributes *request.Attributes) (authorizer.Decision, string, error) {
	if x.Verb == "watch" {
		x.basis = g.rights.Basis(&x.Exchange)
	}
	asked := time.Now()
	decision, reason, err := g.authorizer.Authorize(x.Audit.Context(ctx), attributes)
	took := time.Since(asked)
	x.Decided(took)
	g.access.Authorized(decision, err, took)
	g.countFilters(x)
	x.Audit.Decided(decision, reason, err, took)
	return decision, reason, err
}

// countFilters records the duration of the filters before authorization, if they did anything.
func (g *authorization) countFilters(x *apiCall) {
	for f, took := range [...]time.Duration{apimetrics.FilterAudit: x.audited, apimetrics.FilterImpersonation: x.impersonated, apimetrics.FilterFlow: x.InQueue} {
		if took > 0 {
			g.access.Filtered(apimetrics.Filter(f), took)
		}
	}
}
