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

	"github.com/larder-io/larder/internal/auth"
)

// Impersonation decides whether a user may impersonate another, by upstream's filter. The one
// for constrained impersonation remembers decisions for a while.
type Impersonation struct{ filter http.Handler }

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
	return &Impersonation{filter(http.HandlerFunc(pass), a, legacyscheme.Codecs)}
}

// passedKey is where a request's context has the place in which pass stores the request that
// the filter let through.
type passedKey struct{}

func pass(_ http.ResponseWriter, req *http.Request) {
	*req.Context().Value(passedKey{}).(**http.Request) = req
}

// Admit returns req with the impersonated user in its context. If its sender, the requester,
// may not impersonate that user, Admit writes the refusal to w and returns nil; the error is
// auth.ErrNotSynced if the authorizer has not loaded yet, and the refusal is then void. The context
// of req must have what handlers look for there, with the requester as the user.
func (i *Impersonation) Admit(w http.ResponseWriter, req *http.Request) (*http.Request, error) {
	var passed *http.Request
	var unsynced atomic.Bool
	ctx := context.WithValue(context.WithValue(req.Context(), passedKey{}, &passed), unsyncedKey{}, &unsynced)
	i.filter.ServeHTTP(w, req.WithContext(ctx))
	if passed == nil && unsynced.Load() {
		return nil, auth.ErrNotSynced
	}
	return passed, nil
}

// unsyncedKey is where a request's context has the *atomic.Bool that noting sets.
type unsyncedKey struct{}

// syncRecorder is an authorizer that notes that it failed with auth.ErrNotSynced: the filter's refusal
// does not say so.
type syncRecorder struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (n syncRecorder) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := n.Authorizer.Authorize(ctx, a)
	if unsynced, ok := ctx.Value(unsyncedKey{}).(*atomic.Bool); ok && errors.Is(err, auth.ErrNotSynced) {
		unsynced.Store(true)
	}
	return decision, reason, err
}
