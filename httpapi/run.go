package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

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
	unready  chan struct{} // closed when shutdown begins, unless another process has taken over
	drain    sync.Once
}

// RoundTripper sends requests to the server in memory, as the super-user. It works while Run runs.
func (s *Server) RoundTripper() http.RoundTripper { return s.http1.RoundTripper() }

// FailReadiness makes /readyz fail, because shutdown has begun. All requests are still served. Run calls
// FailReadiness when its context ends; the caller may do so earlier.
func (s *Server) FailReadiness() { s.drain.Do(func() { close(s.unready); close(s.draining) }) }

// HandOver stops accepting connections, because another process accepts them on the same socket. All requests are still
// served. Each response on a connection older than a second asks the client to reconnect. /readyz does not fail,
// because the other process is ready.
func (s *Server) HandOver() {
	s.drain.Do(func() { close(s.draining) })
	s.http1.StopAccepting()
}

// Run serves until ctx ends. Then /readyz fails, the server stops accepting connections, streams end, and running
// requests finish. Run returns when everything that it started has ended.
func (s *Server) Run(ctx context.Context) error {
	defer s.cancel()
	group, groupCtx := errgroup.WithContext(ctx)
	accepted := make(chan struct{})
	group.Go(func() error {
		defer close(accepted)
		if s.config.Accept != nil {
			select {
			case <-s.config.Accept:
			case <-groupCtx.Done():
				return nil
			}
		}
		return s.http1.ServeNetwork()
	})
	sweep, stopSweep := context.WithCancel(context.Background())
	defer stopSweep()
	group.Go(func() error { s.streams.Sweep(sweep); return nil })
	group.Go(func() error { s.http1.Network.EndDisconnected(sweep); return nil })
	var waiting func() (reading, mutating int) // requests that wait for a seat
	if s.config.Flow != nil {
		waiting = s.config.Flow.Waiting
	}
	group.Go(func() error { s.inflight.Report(sweep, waiting); return nil })
	group.Go(func() error { s.rights.Run(sweep); return nil })
	group.Go(func() error { s.ledger.Run(sweep); return nil })
	group.Go(func() error {
		<-groupCtx.Done()
		defer stopSweep()
		return s.shutdown(accepted)
	})
	return group.Wait()
}

// shutdown ends everything that Run started. It stops accepting connections before it closes any, so that
// no client reconnects here. accepted is closed when no more connections are accepted. Connections that do not
// end within the grace are closed.
func (s *Server) shutdown(accepted <-chan struct{}) error {
	s.FailReadiness()
	grace, cancel := context.WithTimeout(context.Background(), s.config.ShutdownGrace)
	defer cancel()
	draining, drained := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer drained()
	beside.Go(func() { s.http1.Network.CloseStalled(draining) })
	if s.config.SendRetryAfter {
		select {
		case <-s.unready:
			s.refuseWhileDraining(grace)
		default: // another process serves
		}
	}
	s.http1.StopAccepting()
	<-accepted
	s.http1.Network.Close()
	var watches sync.WaitGroup
	if !s.endWatches(&watches) {
		s.streams.End()
	}
	err := s.http1.Network.Drain(grace)
	watches.Wait()
	s.streams.End()
	s.streams.Wait(grace)
	s.cancel()
	s.http1.CloseMemory()
	if innerErr := s.http1.Memory.Drain(grace); err == nil {
		err = innerErr
	}
	s.http1.Abort()
	s.streams.Abort()
	s.streams.Wait(context.Background())
	s.handlers.Wait()
	if err != nil && grace.Err() == nil {
		return fmt.Errorf("httpapi: shutdown: %w", err)
	}
	return nil
}

// endWatches begins to end watches over WatchGrace, and reports whether there is such a grace. ending waits until every
// watch was notified.
func (s *Server) endWatches(ending *sync.WaitGroup) bool {
	if s.config.WatchGrace <= 0 {
		return false
	}
	ending.Go(func() { s.streams.EndWatches(s.config.WatchGrace) })
	return true
}

// servingPoll is how often refuseWhileDraining counts the requests that are being served.
const servingPoll = 10 * time.Millisecond

// refuseWhileDraining rejects new requests until the running ones have ended, as apiserver
// pkg/server/genericapiserver.go does for ShutdownSendRetryAfter. It waits for watches only if WatchGrace is set.
func (s *Server) refuseWhileDraining(grace context.Context) {
	s.chain.shutdown.refusing.Store(true)
	var watches sync.WaitGroup
	s.endWatches(&watches)
	_ = wait.PollUntilContextCancel(grace, servingPoll, true, func(context.Context) (bool, error) {
		return s.chain.shutdown.serving.Load() == 0, nil
	})
	watches.Wait()
}
