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
	// Join returns the right that the stream of a request depends on; nil if it depends on
	// none.
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

// Wait blocks until every handler whose answer is held back has ended. No call may be served
// any more.
func (h *Handlers) Wait() { h.work.Wait() }

// streamPlace takes x's place away from the exchange, for the stream that the request becomes.
// Flow control counts it if it is a watch.
func (h *Handlers) streamPlace(x *exchange.Exchange) *exchange.StreamPlace {
	if x.Verb != "watch" {
		return exchange.NewStreamPlace(x.TakePlace())
	}
	var forget func()
	if h.config.Flow != nil {
		forget = h.config.Flow.RegisterWatch(x.RequestInfo(), x.RawQuery)
	}
	return exchange.NewWatchPlace(x.TakePlace(), forget)
}
