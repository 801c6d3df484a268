package httpapi

import (
	"context"
	"net/http"

	"k8s.io/apiserver/pkg/server/filters"

	"github.com/larder-io/larder/httpapi/handlers"
)

// originKey is where the filter of origins finds what to tell that the request goes on.
type originKey struct{}

// origins says which pages may have answers, by upstream's filter, which calls back for what
// it lets through.
type origins struct {
	filter http.Handler // nil if none may
}

// newOrigins lets pages have answers whose origins match one of the expressions.
func newOrigins(matching []string) origins {
	if len(matching) == 0 {
		return origins{}
	}
	passed := func(_ http.ResponseWriter, req *http.Request) { *req.Context().Value(originKey{}).(*bool) = true }
	return origins{filters.WithCORS(http.HandlerFunc(passed), matching, nil, nil, nil, "true")}
}

// check tells a browser whether the page that it shows may have the answer. What it
// asks beforehand is answered here, before it is known who asks.
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
