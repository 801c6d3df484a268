package front

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
	network bool          // it is what the network reaches
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

// serve accepts connections until l is closed. What it began goes on; whoever owns d
// waits for running.
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

// take serves c, or closes it if there are too many: before the handshake there is
// no way to say why.
func (d *door) take(c net.Conn) {
	v := &visit{conn: c, began: time.Now()}
	if !d.track(v) {
		c.Close()
		return
	}
	secure, ok := c.(*conn)
	if ok {
		secure.visit.Store(v)
	}
	go func() {
		defer d.running.Done()
		d.receive(v)
		if ok {
			secure.visit.Store(nil) // whoever has taken c over holds no session
		}
	}()
}

// receive serves v to its end.
func (d *door) receive(v *visit) {
	secure, ok := v.conn.(*conn)
	if ok && secure.Handshake() != nil {
		d.forget(v)
		v.conn.Close()
		return
	}
	if !ok || !secure.http2() {
		d.s.session(d, v).Serve()
		return
	}
	defer d.forget(v)
	m := d.s.mux.NewConn(secure)
	if !v.multiplex(m) {
		v.conn.Close()
		return
	}
	if d.stopping() { // since before anybody could be told
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

// ends reports whether a connection that began then ends with the request that it is at.
func (d *door) ends(began time.Time) bool { return d.stopping() || d.turning(began) }

// stopping reports whether connections end with the request that they are at.
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

// shutOff lets no connection be tracked any more, and returns those that are.
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

// drain waits until the requests under way have been answered, or ctx ends. A client that
// sends one request after the other is about to send the next, which is answered with a
// farewell: closed at once, its connection would take a request along that may not be
// repeated.
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

// turning reports whether a connection that began then is to end with the request that it
// is at: shutdown has begun, and its client shall be elsewhere, if there is another server,
// when the door closes.
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

// underWay returns what says of each connection that is at a request whether that has been
// answered.
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

// takeIdle returns connections without a request, which nothing more is read from, and how
// many there are in all at which somebody waits for an answer, or that are just being closed.
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
