package httpapi

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/openapi"
	"github.com/larder-io/larder/httpapi/reads"
	"github.com/larder-io/larder/httpapi/revocation"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/httpapi/statuspage"
	"github.com/larder-io/larder/httpapi/streams"
)

// Server serves the API. Build one with [New] and serve with [Server.Run].
type Server struct {
	config Config
	http1  *http1.Server
	table  atomic.Pointer[routes.Table]

	models   *openapi.Models
	chain    *chain
	access   *apimetrics.Access
	rights   *revocation.Rights
	stitcher *reads.Stitcher

	inflight exchange.InFlight
	ledger   *costs.Ledger
	failures statuspage.Failures
	streams  *streams.Streams
	handlers *nethttp.Handlers
	base     context.Context
	cancel   context.CancelFunc
	draining chan struct{} // closed when shutdown begins
	unready  chan struct{} // closed then, unless another process has taken over
	drain    sync.Once
}

// RoundTripper reaches the server's handlers from within the process, as the
// super-user, without network. It works while Run does.
func (s *Server) RoundTripper() http.RoundTripper { return s.http1.RoundTripper() }

// Withdraw has /readyz fail from now on, because shutdown has begun. All requests are
// still served. Run calls it when its context ends; the caller may do so earlier.
func (s *Server) Withdraw() { s.drain.Do(func() { close(s.unready); close(s.draining) }) }

// HandOver has the server accept no more connections, because another process accepts them at the same
// socket. All requests are still served, and each answer on a connection older than a second asks the
// client to connect again. /readyz does not fail: it is of both processes.
func (s *Server) HandOver() {
	s.drain.Do(func() { close(s.draining) })
	s.http1.StopAccepting()
}
