package nethttp

import (
	"context"
	"net/http"

	"github.com/larder-io/larder/httpapi/streams"
)

// Forward serves the request by h, which proxies it to another server. A request that is long-running,
// asks for an upgrade, has a long body or is a HEAD gets the connection to itself. After others, the
// connection is used again.
func (x *Call) Forward(h http.Handler) {
	req := x.HTTP()
	req.Header.Set("Audit-Id", x.AuditID)
	upgrades := streams.IsUpgrade(req.Header.Get("Connection"), req.Header.Get("Upgrade"))
	switch length := req.ContentLength; {
	case x.LongRunning():
		x.serveStream(h)
	case upgrades, length < 0, length > maxHandedWhole, x.Method == http.MethodHead:
		x.serveStream(x.bound(h))
	default:
		x.serveBuffered(abortable(h), true)
	}
}

// maxHandedWhole is the length up to which a body is read before it is handed on.
const maxHandedWhole = 64 << 10

// bound gives h, which has a connection to itself, the request's deadline.
func (x *Call) bound(h http.Handler) http.Handler {
	deadline := x.Deadline
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithDeadline(req.Context(), deadline)
		defer cancel()
		h.ServeHTTP(w, req.WithContext(ctx))
	})
}
