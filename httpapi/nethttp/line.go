package nethttp

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/httplog"

	"github.com/larder-io/larder/httpapi/exchange"
)

// withLogLine makes upstream's filter log the requests that h serves, if requests are logged. The
// filter sees the stack of a failing handler, and whether it hijacks the connection.
func (x *Call) withLogLine(h http.Handler) http.Handler {
	if !exchange.Lines() || x.Logged || x.Carrier.Internal() {
		return h
	}
	x.Logged = true
	id, said, info, seated := x.AuditID, x.LogValues, x.Info, x.Seated
	logged := httplog.WithLogging(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for i := 0; i+1 < len(said); i += 2 {
			httplog.AddKeyValue(req.Context(), said[i].(string), said[i+1])
		}
		if info != "" {
			httplog.AddInfof(req.Context(), "%s", info)
		}
		if !seated.IsZero() {
			defer func() { httplog.AddKeyValue(req.Context(), "apf_execution_time", time.Since(seated)) }()
		}
		h.ServeHTTP(w, req)
	}), httplog.DefaultStacktracePred)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		audit.WithAuditID(req.Context(), types.UID(id))
		logged.ServeHTTP(w, req)
	})
}
