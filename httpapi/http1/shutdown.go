package http1

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/httpapi/socket"
)

const (
	// newGrace is how long Drain leaves a new connection open that has sent no request. pollInterval is how often
	// shutdown looks for idle connections.
	newGrace     = 5 * time.Second
	pollInterval = 10 * time.Millisecond
	// idleGrace is how long Drain leaves idle connections open. connectionAge is the minimum age of connections that
	// end with their current request during shutdown.
	idleGrace     = 100 * time.Millisecond
	connectionAge = time.Second
	// stallLimit is how long a client may leave written data unread during shutdown. stallPoll is how often the server
	// checks that.
	stallLimit = 5 * time.Second
	stallPoll  = 500 * time.Millisecond
)

// isDraining reports whether shutdown has begun.
func (s *Server) isDraining() bool { return isDone(s.config.Draining) }

// isClosing reports whether connections end with their current requests.
func (l *Listener) isClosing() bool { return isDone(l.closing) }

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// isLeaving reports whether a connection that was accepted at began ends with its current request, because shutdown has
// begun.
func (l *Listener) isLeaving(began time.Time) bool {
	return l.network && l.s.isDraining() && time.Since(began) > connectionAge
}

// list returns the open connections, all or only those that serve a request.
func (l *Listener) list(all bool) (list []*connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, served := range l.open {
		if all || served {
			list = append(list, c)
		}
	}
	return list
}

// Close makes every connection end with its current request and rejects new connections. HTTP/2 clients get a GOAWAY.
func (l *Listener) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.closing)
	}
	l.mu.Unlock()
	for _, c := range l.list(false) {
		if h := c.http2.Load(); h != nil {
			h.GoAway()
		}
	}
}

// abort closes all connections, and returns when none is served.
func (l *Listener) abort() {
	l.Close()
	for _, c := range l.list(true) {
		socket.CloseSocket(c.conn)
	}
	l.running.Wait()
}

// Drain waits until all running requests have a response, or ctx ends. It leaves idle connections open for idleGrace,
// because a client may already be sending the next request, and not all requests can be retried. The response to that
// request announces the end of the connection.
func (l *Listener) Drain(ctx context.Context) error {
	began := time.Now()
	return wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		left := 0
		for _, c := range l.list(false) {
			switch {
			case time.Since(began) < idleGrace:
				left++
			case c.retire():
				c.close()
				left++ // its goroutine will end
			case c.hasPending():
				left++
			}
		}
		return left == 0, nil
	})
}

// CloseStalled closes connections to clients that do not read, until ctx ends, so that shutdown
// does not wait for them.
func (l *Listener) CloseStalled(ctx context.Context) {
	type unread struct {
		bytes int
		since time.Time
	}
	known := make(map[*connection]unread)
	wait.UntilWithContext(ctx, func(context.Context) {
		now := time.Now()
		for _, c := range l.list(true) {
			bytes := socket.Queued(c.conn)
			before := known[c]
			switch {
			case bytes == 0:
				delete(known, c)
			case before.bytes != bytes:
				known[c] = unread{bytes, now}
			case now.Sub(before.since) >= stallLimit:
				socket.CloseSocket(c.conn)
			}
		}
	}, stallPoll)
}
