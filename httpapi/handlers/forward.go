package handlers

import (
	"context"
	"net/http"

	"github.com/larder-io/larder/httpapi/streams"
)

// Forward serves the request by h, which hands it on to another server: bodies pass as
// they come. A body that is short, or none, and an answer to it leave the connection to
// be used again; others have it to themselves.
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

// maxHandedWhole is up to which length a body is read before it is handed on.
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
