package httpapi

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/server/filters"

	"github.com/larder-io/larder/httpapi/handlers"
)

// corsKey is where newCORS's filter finds what to tell that the request goes on.
type corsKey struct{}

// newCORS returns upstream's filter for pages of origins that match, which calls back for
// what it lets through; nil if there are none.
func newCORS(origins []string) http.Handler {
	if len(origins) == 0 {
		return nil
	}
	passed := func(_ http.ResponseWriter, req *http.Request) { *req.Context().Value(corsKey{}).(*bool) = true }
	return filters.WithCORS(http.HandlerFunc(passed), origins, nil, nil, nil, "true")
}

// checkOrigin tells a browser whether the page that it shows may have the answer. What it
// asks beforehand is answered here, before it is known who asks.
func (x *chain) checkOrigin() bool {
	if x.s.cors == nil || len(x.Peek("Origin")) == 0 {
		return true
	}
	passed, w := false, handlers.NewRecorder()
	req := &http.Request{Method: x.Method, Header: http.Header{"Origin": {string(x.Peek("Origin"))}}}
	x.s.cors.ServeHTTP(w, req.WithContext(context.WithValue(x.Base(), corsKey{}, &passed)))
	if !passed {
		w.SendTo(&x.Response)
		return false
	}
	x.CopyHeader(w.Header())
	return true
}
