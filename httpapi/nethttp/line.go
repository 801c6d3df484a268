package nethttp

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/httplog"

	"github.com/larder-io/larder/httpapi/exchange"
)

// withLogLine makes upstream's filter log the requests that h serves, if requests are logged:
// it knows the handler's stack where that fails, and whether it takes the connection over.
func (x *Call) withLogLine(h http.Handler) http.Handler {
	if !exchange.Lines() || x.Told || x.Carrier.Internal() {
		return h
	}
	x.Told = true
	id, said, info, seated := x.AuditID, x.Said, x.Info, x.Seated
	logged := httplog.WithLogging(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		for i := 0; i+1 < len(said); i += 2 {
			httplog.AddKeyValue(req.Context(), said[i].(string), said[i+1])
		}
		if info != "" {
			httplog.AddInfof(req.Context(), "%s", info)
		}
		defer logExecution(req.Context(), seated)
		h.ServeHTTP(w, req)
	}), httplog.DefaultStacktracePred)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		audit.WithAuditID(req.Context(), types.UID(id))
		logged.ServeHTTP(w, req)
	})
}

// logExecution adds how long a request was served that got its place at seated.
func logExecution(ctx context.Context, seated time.Time) {
	if !seated.IsZero() {
		httplog.AddKeyValue(ctx, "apf_execution_time", time.Since(seated))
	}
}
