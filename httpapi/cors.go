package httpapi

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/filters"

	"github.com/larder-io/larder/httpapi/nethttp"
)

// corsFilter runs upstream's CORS filter. It also rejects unsafe cross-site requests to paths outside the API, because
// browsers add client certificates, and kubectl proxy its credentials, to requests of any page.
type corsFilter struct {
	filter  *nethttp.Filter // upstream's CORS filter; nil without allowed origins
	sites   *http.CrossOriginProtection
	auditor *auditor
}

// newCORSFilter returns a corsFilter for pages whose origin matches one of the expressions.
func newCORSFilter(matching []string, auditor *auditor) corsFilter {
	o := corsFilter{sites: http.NewCrossOriginProtection(), auditor: auditor}
	if len(matching) > 0 {
		o.filter = nethttp.NewFilter(func(next http.Handler) http.Handler { return filters.WithCORS(next, matching, nil, nil, nil, "true") })
	}
	return o
}

// check sets the CORS header fields. If it returns false, it has responded: to a preflight request, or to one that it
// rejects.
func (c *corsFilter) check(x *apiCall) bool {
	origin, site := string(x.Peek("Origin")), string(x.Peek("Sec-Fetch-Site"))
	if origin == "" && site == "" {
		return true
	}
	req := &http.Request{Method: x.Method, Host: string(x.Carrier.Host()), Header: http.Header{"Origin": {origin}, "Sec-Fetch-Site": {site}}}
	if c.filter != nil && origin != "" {
		w := nethttp.NewRecorder()
		if c.filter.Run(w, req.WithContext(x.Base())) == nil {
			w.SendTo(&x.Response)
			return false
		}
		x.CopyHeader(w.Header())
		if w.Header().Get("Access-Control-Allow-Origin") != "" {
			return true
		}
	}
	if x.IsResourceRequest {
		return true
	}
	if err := c.sites.Check(req); err != nil {
		return c.auditor.reject(x, apierrors.NewForbidden(schema.GroupResource{}, "", err))
	}
	return true
}
