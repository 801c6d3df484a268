package nethttp

import (
	"sync"

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
