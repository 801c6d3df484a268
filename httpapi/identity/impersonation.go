package identity

import (
	"context"
	"net/http"
	"sync"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/nethttp"
)

// Impersonation decides whether a user may impersonate another, by upstream's filter. The filter for
// constrained impersonation caches decisions.
type Impersonation struct{ filter *nethttp.Filter }

// NewImpersonation returns an Impersonation that asks a. It grants nothing by the verbs
// impersonate:* and impersonate-on:* unless the feature gate ConstrainedImpersonation is on.
func NewImpersonation(a authorizer.Authorizer) *Impersonation {
	filter := impersonation.WithImpersonation
	if utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation) {
		filter = impersonation.WithConstrainedImpersonation
	}
	return &Impersonation{nethttp.NewFilter(func(next http.Handler) http.Handler { return filter(next, errorRecorder{a}, legacyscheme.Codecs) })}
}

// Admit returns req with the impersonated user in its context. If the requester has no right to impersonate that
// user, Admit writes the refusal to w and returns nil and the errors of the authorizer. If the authorizer could not
// decide, these errors say so, and the caller must discard the refusal. The context of req comes from
// [exchange.Context], with the requester as the user.
func (i *Impersonation) Admit(w http.ResponseWriter, req *http.Request) (*http.Request, error) {
	var failed authorizerErrors
	passed := i.filter.Run(w, req.WithContext(context.WithValue(req.Context(), authorizerErrorsKey{}, &failed)))
	if passed != nil {
		return passed, nil
	}
	failed.mu.Lock()
	defer failed.mu.Unlock()
	return nil, failed.err
}

// authorizerErrors are the errors of an authorizer that did not allow a request.
type authorizerErrors struct {
	mu  sync.Mutex
	err error // guarded by mu
}

// authorizerErrorsKey is the context key of the *authorizerErrors that errorRecorder adds to.
type authorizerErrorsKey struct{}

// errorRecorder is an authorizer that records its errors, which the filter's refusal omits.
type errorRecorder struct{ authorizer.Authorizer }

func (r errorRecorder) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := r.Authorizer.Authorize(ctx, a)
	if failed, ok := ctx.Value(authorizerErrorsKey{}).(*authorizerErrors); ok && err != nil && decision != authorizer.DecisionAllow {
		failed.mu.Lock()
		defer failed.mu.Unlock()
		failed.err = utilerrors.NewAggregate([]error{failed.err, err})
	}
	return decision, reason, err
}
