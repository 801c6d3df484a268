package identity

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/internal/auth"
)

// Impersonation decides whether a user may impersonate another, by upstream's filter. The one
// for constrained impersonation remembers decisions for a while.
type Impersonation struct{ filter *nethttp.Filter }

// NewImpersonation returns an Impersonation that asks a. It grants nothing by the verbs
// impersonate:* and impersonate-on:* unless the feature gate ConstrainedImpersonation is on.
func NewImpersonation(a authorizer.Authorizer) *Impersonation {
	if a != nil {
		a = syncRecorder{a}
	}
	filter := impersonation.WithImpersonation
	if utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation) {
		filter = impersonation.WithConstrainedImpersonation
	}
	return &Impersonation{nethttp.NewFilter(func(next http.Handler) http.Handler { return filter(next, a, legacyscheme.Codecs) })}
}

// Admit returns req with the impersonated user in its context. If the requester may not impersonate
// that user, Admit writes the refusal to w and returns nil. The error is auth.ErrNotSynced if the
// authorizer has not loaded yet; then the refusal is void. The context of req is that of
// [exchange.Context], with the requester as the user.
func (i *Impersonation) Admit(w http.ResponseWriter, req *http.Request) (*http.Request, error) {
	var unsynced atomic.Bool
	passed := i.filter.Run(w, req.WithContext(context.WithValue(req.Context(), unsyncedKey{}, &unsynced)))
	if passed == nil && unsynced.Load() {
		return nil, auth.ErrNotSynced
	}
	return passed, nil
}

// unsyncedKey is the context key of the *atomic.Bool that syncRecorder sets.
type unsyncedKey struct{}

// syncRecorder is an authorizer that records that it failed with auth.ErrNotSynced, which the filter's
// refusal does not say.
type syncRecorder struct{ authorizer.Authorizer }

func (n syncRecorder) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.Authorizer.Authorize(ctx, a)
	if unsynced, ok := ctx.Value(unsyncedKey{}).(*atomic.Bool); ok && errors.Is(err, auth.ErrNotSynced) {
		unsynced.Store(true)
	}
	return decision, reason, err
}
