package http1

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// door accepts the connections of a listener and serves each on a goroutine.
type door struct {
	s       *Server
	network bool          // the connections come from the network
	most    int           // connections at once; 0 sets no bound
	stop    chan struct{} // closed when no request may follow another

	running sync.WaitGroup // visits

	mu   sync.Mutex
	open map[*visit]struct{} // guarded by mu
	shut bool                // guarded by mu: stop is closed
}

func (s *Server) newDoor(most int) *door {
	return &door{s: s, most: most, stop: make(chan struct{}), open: make(map[*visit]struct{})}
}

const (
	acceptRetry    = 5 * time.Millisecond
	acceptRetryMax = time.Second
	// newGrace is how long, after shutdown has begun, a connection may take to send
	// its first request, idlePoll how often idle connections are looked for then.
	newGrace = 5 * time.Second
	idlePoll = 10 * time.Millisecond
	// idleGrace is how long a connection without a request is left open then, and turnover
	// how often, before that, clients are asked to come back on another connection.
	idleGrace = 100 * time.Millisecond
	turnover  = time.Second
)

// serve accepts connections until l is closed. The goroutines that it started for them go
// on; the owner of d waits for running.
func (d *door) serve(l net.Listener) error {
	for delay := acceptRetry; ; {
		c, err := l.Accept()
		switch {
		case err == nil:
			delay = acceptRetry
			d.take(c)
		case d.stopping(), d.draining() && errors.Is(err, net.ErrClosed):
			return nil
		case passes(err):
			select {
			case <-d.stop:
			case <-time.After(delay):
			}
			delay = min(2*delay, acceptRetryMax)
		default:
			return fmt.Errorf("httpapi: accept: %w", err)
		}
	}
}

// draining reports whether shutdown has begun.
func (d *door) draining() bool {
	select {
	case <-d.s.config.Draining:
		return true
	default:
		return false
	}
}

// passes reports whether accepting may work again: a client gave up, or there are
// too many files open.
func passes(err error) bool {
	for _, no := range []syscall.Errno{
		syscall.ECONNABORTED, syscall.EINTR, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
	} {
		if errors.Is(err, no) {
			return true
		}
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// take serves c, or closes it if there are too many connections: before the handshake there
// is no way to tell the client why.
func (d *door) take(c net.Conn) {
	v := &visit{conn: c, began: time.Now()}
	if !d.track(v) {
		c.Close()
		return
	}
	go func() {
		defer d.running.Done()
		d.receive(v)
	}()
}

// receive serves v to its end.
func (d *door) receive(v *visit) {
	secure, ok := v.conn.(*conn)
	if ok {
		if err := secure.Handshake(); err != nil {
			secure.refuseHandshake(err)
			d.forget(v)
			v.conn.Close()
			return
		}
	}
	if !ok || !secure.http2() {
		d.s.session(d, v).Serve()
		return
	}
	defer d.forget(v)
	m := d.s.http2.NewConn(secure)
	if !v.multiplex(m) {
		v.conn.Close()
		return
	}
	if d.stopping() { // close may have looked at v before it knew m
		m.GoAway()
	}
	m.Serve()
}

func (d *door) track(v *visit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut || d.most > 0 && len(d.open) >= d.most {
		return false
	}
	d.open[v] = struct{}{}
	d.running.Add(1)
	return true
}

func (d *door) forget(v *visit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, v)
}

// ends reports whether a connection that began then ends with its current request.
func (d *door) ends(began time.Time) bool { return d.stopping() || d.turning(began) }

// stopping reports whether connections end with their current requests.
func (d *door) stopping() bool {
	select {
	case <-d.stop:
		return true
	default:
		return false
	}
}

// close lets no request follow another from now on.
func (d *door) close() {
	for _, v := range d.shutOff() {
		v.farewell()
	}
}

// shutOff makes track refuse further connections, and returns those that are open.
func (d *door) shutOff() (open []*visit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shut {
		d.shut = true
		close(d.stop)
	}
	for v := range d.open {
		open = append(open, v)
	}
	return open
}

// drain waits until the requests under way have been answered, or ctx ends. It leaves idle
// connections open for idleGrace: a client that sends one request after the other may be
// sending the next, whose answer tells it that the connection ends. If drain closed the
// connection at once, that request would be lost, and the client may not repeat some.
func (d *door) drain(ctx context.Context) error {
	ticker := time.NewTicker(idlePoll)
	defer ticker.Stop()
	for began := time.Now(); ; {
		var left int
		if time.Since(began) < idleGrace {
			left = d.count()
		} else {
			left = d.closeIdle()
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// count returns how many connections there are.
func (d *door) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open)
}

// turning reports whether a connection that began then is to end with its current request:
// shutdown has begun, and before the door closes the client shall have connected again, to
// another server if there is one.
func (d *door) turning(began time.Time) bool {
	return d.network && d.draining() && time.Since(began) > turnover
}

// settle waits until all requests that are under way have been answered, or ctx ends.
func (d *door) settle(ctx context.Context) {
	busy := d.underWay()
	ticker := time.NewTicker(idlePoll)
	defer ticker.Stop()
	for len(busy) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		busy = slices.DeleteFunc(busy, func(answered func() bool) bool { return answered() })
	}
}

// underWay returns one function for each connection that serves a request now, which reports
// whether that has been answered.
func (d *door) underWay() (all []func() bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for v := range d.open {
		if answered := v.underWay(); answered != nil {
			all = append(all, answered)
		}
	}
	return all
}

// closeIdle closes connections without a request and returns how many are left.
func (d *door) closeIdle() (left int) {
	idle, left := d.takeIdle()
	for _, v := range idle {
		closeNow(v.conn)
	}
	return left
}

// takeIdle returns the connections without a request, from which nothing more is read, and
// the number of these and of those whose clients wait for an answer.
func (d *door) takeIdle() (idle []*visit, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for v := range d.open {
		switch {
		case v.retire():
			idle = append(idle, v)
		case v.answers():
			left++
		}
	}
	return idle, left + len(idle)
}
