package httpapi

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/server/filters"

	"github.com/larder-io/larder/httpapi/handlers"
)

// originKey is the key of a *bool in the context, which is set if the filter of origins lets the
// request go on.
type originKey struct{}

// origins decides which web pages may read answers, by upstream's CORS filter. The filter calls
// a handler for each request that it lets through.
type origins struct {
	filter http.Handler // nil if no page may
}

// newOrigins returns origins that let pages read answers if their origin matches one of the
// expressions.
func newOrigins(matching []string) origins {
	if len(matching) == 0 {
		return origins{}
	}
	passed := func(_ http.ResponseWriter, req *http.Request) { *req.Context().Value(originKey{}).(*bool) = true }
	return origins{filters.WithCORS(http.HandlerFunc(passed), matching, nil, nil, nil, "true")}
}

// check tells a browser whether the page that it shows may read the answer. A browser's
// preflight request is answered here, before the client is authenticated.
func (o *origins) check(x *passage) bool {
	if o.filter == nil || len(x.Peek("Origin")) == 0 {
		return true
	}
	passed, w := false, handlers.NewRecorder()
	req := &http.Request{Method: x.Method, Header: http.Header{"Origin": {string(x.Peek("Origin"))}}}
	o.filter.ServeHTTP(w, req.WithContext(context.WithValue(x.Base(), originKey{}, &passed)))
	if !passed {
		w.SendTo(&x.Response)
		return false
	}
	x.CopyHeader(w.Header())
	return true
}
