package nethttp

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/server/httplog"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/streams"
	"github.com/larder-io/larder/internal/auth"
)

// Config says what handlers of a server have around them.
type Config struct {
	// Streams has the requests that have a connection to themselves.
	Streams *streams.Streams
	// Flow counts watches; it may be nil.
	Flow *auth.Flow
	// Join returns the right that the stream of a request depends on; nil if there is none.
	Join func(*exchange.Exchange) streams.Right
	// Credential reports whether a header, named in its canonical form, holds credentials.
	Credential func(name string) bool
}

// Handlers is what the calls of one server have in common.
type Handlers struct {
	config Config
	work   sync.WaitGroup // handlers that run on goroutines of their own
}

// New returns the Handlers of a server, with no handler running.
func New(config Config) *Handlers { return &Handlers{config: config} }

// Wait blocks until every handler on a goroutine of its own has ended. No further call may be served.
func (h *Handlers) Wait() { h.work.Wait() }

// streamSeat moves the seat of x to the stream that the request becomes. Flow control counts a watch.
func (h *Handlers) streamSeat(x *exchange.Exchange) *exchange.StreamSeat {
	watch, forget := x.Verb == "watch", func() {}
	if watch && h.config.Flow != nil {
		forget = h.config.Flow.RegisterWatch(x.RequestInfo(), x.RawQuery)
	}
	return exchange.NewStreamSeat(x.TakeSeat(), watch, forget)
}

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
