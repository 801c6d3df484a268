package httpapi

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// sweepInterval is how often idle streams are looked at for a client that left.
const sweepInterval = 5 * time.Second

// streams counts the connections that left fasthttp's care: watches, upgraded
// connections, answers that never end. Shutdown ends and awaits them.
type streams struct {
	ending chan struct{} // closed when streams shall end by themselves
	pump   pump          // gives watches their turns
	waiter socket.Waiter // is pump
	rights *rights       // that watches rest on

	mu      sync.Mutex
	open    map[*stream]struct{} // guarded by mu
	closed  bool                 // guarded by mu: no stream may start
	drained chan struct{}        // guarded by mu: closed when closed and open is empty
}

// stream is one such connection. Who serves it has it for itself but for the
// sweeper, which looks whether the client is there.
type stream struct {
	net.Conn

	watch *watchStream // that it is part of, or nil
	right *right       // that it rests on; nil if that is not looked after

	// ahead reads what fasthttp had read from the connection before it let go, and
	// then the connection. It holds fasthttp's buffer: drop it if nothing is read.
	ahead io.Reader

	cancel context.CancelFunc // nil for a watch

	mu    sync.Mutex
	owned bool // guarded by mu: a handler has the connection to itself
	heard bool // guarded by mu: a handler reads a body from it
}

func (ss *streams) init() {
	ss.ending = make(chan struct{})
	ss.open = make(map[*stream]struct{})
	ss.drained = make(chan struct{})
	ss.pump.init()
	ss.waiter = &ss.pump
}

// watch serves ws on c, which it closes at the end. Shutdown waits for it.
func (ss *streams) watch(ws *watchStream, c net.Conn) {
	ws.stream.Conn, ws.stream.watch, ws.streams = c, ws, ss
	if !ss.add(&ws.stream) {
		ws.discard()
		return
	}
	ws.monitor.Enter()
	ss.pump.running.Go(ws.begin)
}

// isEnding reports whether streams shall end by themselves.
func (ss *streams) isEnding() bool {
	select {
	case <-ss.ending:
		return true
	default:
		return false
	}
}

// start runs serve on a goroutine that shutdown waits for, with a context that
// ends when the client leaves, and closes the connection after it. It reports false if
// no stream may start.
func (ss *streams) start(parent context.Context, c net.Conn, held *right, serve func(context.Context, *stream)) bool {
	ctx, cancel := context.WithCancel(parent)
	st := &stream{Conn: c, ahead: c, cancel: cancel, right: held}
	if h, ok := c.(interface{ UnsafeConn() net.Conn }); ok {
		st.Conn = h.UnsafeConn()
	}
	if !ss.add(st) {
		cancel()
		st.Conn.Close()
		return false
	}
	if st.revoked() { // between joining and being added
		cancel()
		ss.rights.losing.Store(true) // whoever does not take that in is cut off
	}
	stop := context.AfterFunc(ctx, st.cut)
	go func() {
		defer ss.remove(st)
		defer stop()
		defer st.Conn.Close()
		defer cancel()
		defer st.fence()
		serve(ctx, st)
	}()
	return true
}

// fence keeps a panic to its stream.
func (st *stream) fence() {
	if p := recover(); p != nil && !exchange.IsAbort(p) {
		klog.ErrorS(nil, "Stream panicked", "panic", p, "stack", exchange.Stack())
	}
}

func (ss *streams) add(st *stream) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return false
	}
	ss.open[st] = struct{}{}
	return true
}

func (ss *streams) remove(st *stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, st)
	if ss.closed && len(ss.open) == 0 {
		close(ss.drained)
	}
}

// count returns how many streams are open.
func (ss *streams) count() int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.open)
}

// end asks all streams to end and lets none start.
func (ss *streams) end() {
	if !ss.close() {
		return
	}
	for _, st := range ss.list() {
		st.end()
	}
}

// end lets st end as a stream ends that is complete: there is a reason for it already.
func (st *stream) end() {
	if st.watch != nil {
		st.watch.wake() // it sees the reason
	} else {
		st.cancel()
	}
}

// close lets no more streams start, and reports whether any could before.
func (ss *streams) close() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return false
	}
	ss.closed = true
	close(ss.ending)
	ss.pump.close()
	if len(ss.open) == 0 {
		close(ss.drained)
	}
	return true
}

// wait blocks until every stream has ended after end, or ctx has.
func (ss *streams) wait(ctx context.Context) {
	select {
	case <-ss.drained:
		ss.pump.running.Wait()
	case <-ctx.Done():
	}
}

// abort closes the connections of all streams.
func (ss *streams) abort() {
	for _, st := range ss.list() {
		st.leave()
		st.Conn.Close()
	}
}

// leave tells who serves st that the client has left.
func (st *stream) leave() {
	if st.watch != nil {
		st.watch.leave()
	} else {
		st.cancel()
	}
}

func (ss *streams) list() []*stream {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	list := make([]*stream, 0, len(ss.open))
	for st := range ss.open {
		list = append(list, st)
	}
	return list
}

// sweep ends the streams whose clients have left, until ctx ends. Looking at
// sockets is cheaper than a goroutine per stream that waits for the end of file.
func (ss *streams) sweep(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for _, st := range ss.list() {
				st.probe()
			}
		}
	}
}

// probe ends st if its client has left.
func (st *stream) probe() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.owned && !st.heard && !socket.Alive(st.Conn) {
		st.leave()
	}
}

// cut closes the connection under a handler that has it to itself and need not look
// at its context. One that ends for want of a right has a while to end well.
func (st *stream) cut() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if (st.owned || st.heard) && !st.revoked() {
		st.Conn.Close()
	}
}

// own leaves the connection to a handler that reads from it.
func (st *stream) own() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.owned = true
}

// listen says whether a handler reads a body from the connection.
func (st *stream) listen(heard bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.heard = heard
}
