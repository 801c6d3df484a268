package nethttp

import (
	"context"
	"net/http"
)

// Filter is one of upstream's filters, which passes the requests that it lets through to a handler.
type Filter struct{ handler http.Handler }

// passedKey is the context key of the *http.Request that a Filter stores the request in.
type passedKey struct{}

// NewFilter returns the filter that wrap makes of a handler.
func NewFilter(wrap func(http.Handler) http.Handler) *Filter {
	return &Filter{wrap(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		*req.Context().Value(passedKey{}).(**http.Request) = req
	}))}
}

// Run returns the request that the filter passes on. It returns nil if the filter has answered req.
func (f *Filter) Run(w http.ResponseWriter, req *http.Request) (passed *http.Request) {
	f.handler.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), passedKey{}, &passed)))
	return passed
}
