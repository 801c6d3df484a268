package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// shutdown ends what Run started, in order: no client is told to go while it could still
// come back, only to be cut off. accepted is closed when no more connections come. What
// does not end within the grace is cut off.
func (s *Server) shutdown(accepted <-chan struct{}) error {
	s.Withdraw()
	<-time.After(s.config.ShutdownDelay)
	grace, cancel := context.WithTimeout(context.Background(), s.config.ShutdownGrace)
	defer cancel()
	draining, drained := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer drained()
	beside.Go(func() { s.front.CutStalled(draining) })
	if s.config.SendRetryAfter {
		s.refuseWhileDraining(grace)
	}
	s.front.StopAccepting()
	<-accepted
	s.front.CloseNetwork()
	watches := s.endWatches()
	err := s.front.DrainNetwork(grace)
	watches.Wait()
	s.streams.End()
	s.streams.Wait(grace)
	s.cancel()
	s.front.CloseMemory()
	if innerErr := s.front.DrainMemory(grace); err == nil {
		err = innerErr
	}
	s.front.Abort()
	s.streams.Abort()
	s.streams.Wait(context.Background())
	s.handlers.Wait()
	if err != nil && grace.Err() == nil {
		return fmt.Errorf("httpapi: shutdown: %w", err)
	}
	return nil
}

// endWatches ends watches over WatchGrace, or at once everything that has a connection to
// itself, which is waited for by the result.
func (s *Server) endWatches() *sync.WaitGroup {
	var ending sync.WaitGroup
	if s.config.WatchGrace <= 0 {
		s.streams.End()
		return &ending
	}
	ending.Go(func() { s.streams.EndWatches(s.config.WatchGrace) })
	return &ending
}

// refuseWhileDraining refuses what is new until what was there has been answered: apiserver
// pkg/server/genericapiserver.go, ShutdownSendRetryAfter. As there, watches are waited for
// only if they have a grace.
func (s *Server) refuseWhileDraining(grace context.Context) {
	s.refusing.Store(true)
	var watches sync.WaitGroup
	if s.config.WatchGrace > 0 {
		watches.Go(func() { s.streams.EndWatches(s.config.WatchGrace) })
	}
	s.front.SettleNetwork(grace)
	watches.Wait()
}

// refuse answers a request that came too late, and reports whether it did. Probes and
// scrapes never come too late.
func (x *chain) refuse() bool {
	if !x.s.refusing.Load() || x.Carrier.Internal() {
		return false
	}
	for _, prefix := range [...]string{"/readyz", "/livez", "/healthz", "/metrics"} {
		if strings.HasPrefix(x.Path, prefix) {
			return false
		}
	}
	x.Del("Cache-Control") // upstream sets these later
	x.Del("Strict-Transport-Security")
	x.Set("Retry-After", "5")
	x.Text(http.StatusTooManyRequests, "The apiserver is shutting down, please try again later.")
	x.Closing = true
	return true
}
