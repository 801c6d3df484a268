package identity

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Impersonation says who may act as another, by upstream's filter. It remembers decisions
// for a while.
type Impersonation struct{ filter http.Handler }

// NewImpersonation returns what asks a who may.
func NewImpersonation(a authorizer.Authorizer) *Impersonation {
	return &Impersonation{impersonation.WithConstrainedImpersonation(http.HandlerFunc(pass), a, legacyscheme.Codecs)}
}

// passedKey is where pass finds what to tell of those that the filter lets through.
type passedKey struct{}

func pass(_ http.ResponseWriter, req *http.Request) {
	*req.Context().Value(passedKey{}).(**http.Request) = req
}

// Admit returns req as the user's whom its sender wants to act as, whom its context then
// has; nil if its sender may not, who is told so through w. The context of req has what
// handlers look for there, and the sender.
func (i *Impersonation) Admit(w http.ResponseWriter, req *http.Request) *http.Request {
	var passed *http.Request
	i.filter.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), passedKey{}, &passed)))
	return passed
}
