package identity

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Impersonation decides whether a user may impersonate another, by upstream's filter. It
// remembers decisions for a while.
type Impersonation struct{ filter http.Handler }

// NewImpersonation returns an Impersonation that asks a.
func NewImpersonation(a authorizer.Authorizer) *Impersonation {
	return &Impersonation{impersonation.WithConstrainedImpersonation(http.HandlerFunc(pass), a, legacyscheme.Codecs)}
}

// passedKey is where a request's context has the place in which pass stores the request that
// the filter let through.
type passedKey struct{}

func pass(_ http.ResponseWriter, req *http.Request) {
	*req.Context().Value(passedKey{}).(**http.Request) = req
}

// Admit returns req with the impersonated user in its context. If its sender, the requester,
// may not impersonate that user, Admit writes the refusal to w and returns nil. The context of
// req must have what handlers look for there, with the requester as the user.
func (i *Impersonation) Admit(w http.ResponseWriter, req *http.Request) *http.Request {
	var passed *http.Request
	i.filter.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), passedKey{}, &passed)))
	return passed
}
