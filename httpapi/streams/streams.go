package streams

import (
	"context"
	"hash/maphash"
	"io"
	"iter"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/costs"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/registry/backend"
)

// sweepInterval is how often Sweep checks whether the clients of idle streams have left.
const sweepInterval = 5 * time.Second

// Streams holds watches, hijacked connections and responses that never end. Shutdown ends them and waits for them.
type Streams struct {
	scheduler scheduler   // runs the watches
	rightLost atomic.Bool // a right was lost since EndRevoked last looked

	revokedAt map[*Stream]time.Time // when EndRevoked ended streams; belongs to its goroutine

	// The origin of the times of bookmarks, and the seed of each connection's offset from it.
	bookmarkEpoch time.Time
	bookmarkSeed  maphash.Seed

	mu      sync.Mutex
	open    map[*Stream]struct{} // guarded by mu
	closed  bool                 // guarded by mu: no stream may start
	drained chan struct{}        // guarded by mu: closed when closed and open is empty
}

// Stream is a connection or an HTTP/2 stream that a watch or a handler has taken over.
type Stream struct {
	net.Conn

	watch *watchStream // the watch that the stream is part of, or nil
	right Right        // the right that the stream depends on; nil if none

	account atomic.Pointer[costs.Account] // is charged for written bytes; the writing goroutine sets it

	// ahead reads bytes that were read ahead, then from the connection.
	ahead io.Reader

	cancel   context.CancelFunc // nil for a watch
	notified bool               // the HTTP server reports when the client leaves, so Sweep need not look
	backend  backend.Request    // counts a backend's bytes while the request is proxied to it

	mu        sync.Mutex
	owned     bool   // guarded by mu: a handler or the next request reads from the connection
	readsBody bool   // guarded by mu: a handler reads a body from it
	early     []byte // guarded by mu: bytes that probe has read
}

// Right is a user's right to a stream.
type Right interface {
	// Lost reports whether the right is lost. Then the stream ends.
	Lost() bool
	// Ended counts a stream that ends because the right is lost.
	Ended()
	// Leave is called when the stream has ended.
	Leave()
}

// New returns Streams without open streams.
func New() *Streams {
	ss := &Streams{
		open:      make(map[*Stream]struct{}),
		drained:   make(chan struct{}),
		revokedAt: make(map[*Stream]time.Time),

		bookmarkEpoch: time.Now(),
		bookmarkSeed:  maphash.MakeSeed(),
	}
	ss.scheduler.init()
	return ss
}

// begin serves ws on c, and then closes c. left registers a function that the HTTP server calls when the
// client leaves; it may be nil.
func (ss *Streams) begin(ws *watchStream, c net.Conn, left func(func())) {
	ws.Stream.Conn, ws.Stream.watch, ws.streams = c, ws, ss
	ws.notified = left != nil
	if !ss.add(&ws.Stream) { // the server is shutting down
		ws.release()
		ws.observer.audit.End()
		c.Close()
		return
	}
	if ws.notified {
		left(func() { ws.signal(clientLeft) })
	}
	ws.observer.open.Enter()
	ss.scheduler.running.Go(ws.begin)
}

// Serve runs h on the connection of t, on a goroutine that shutdown waits for, and then closes the
// connection. The context of the handler ends when the client leaves. During shutdown Serve only releases what h holds.
func (ss *Streams) Serve(base context.Context, t exchange.Hijacked, h *HandlerStream) {
	ctx, cancel := context.WithCancel(base)
	st := &Stream{Conn: t.Conn, ahead: t.Ahead, cancel: cancel, right: h.Right, notified: t.Left != nil}
	st.account.Store(h.Account)
	if !ss.add(st) {
		cancel()
		st.Conn.Close()
		h.leave()
		h.Audit.End()
		return
	}
	if st.revoked() { // before it was added, so that EndRevoked may have missed it
		cancel()
		ss.rightLost.Store(true) // EndRevoked cuts off a client that does not read the end
	}
	if st.notified {
		t.Left(cancel)
	}
	stop := context.AfterFunc(ctx, st.forceClose)
	go func() {
		defer ss.remove(st)
		defer stop()
		defer st.Conn.Close()
		defer cancel()
		defer func() {
			if p := recover(); p != nil && !exchange.IsAbort(p) {
				klog.ErrorS(nil, "Stream panicked", "panic", p, "stack", exchange.Stack())
			}
		}()
		h.serve(ctx, st, t)
	}()
}

// charge charges the account.
func (st *Stream) charge(u costs.Usage) {
	charged := st.account.Load()
	if next := charged.Add(u); next != charged {
		st.account.Store(next)
	}
}

func (ss *Streams) add(st *Stream) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.closed {
		return false
	}
	ss.open[st] = struct{}{}
	return true
}

func (ss *Streams) remove(st *Stream) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, st)
	if ss.closed && len(ss.open) == 0 {
		close(ss.drained)
	}
}

// End makes all streams end and lets no other start.
func (ss *Streams) End() {
	ss.mu.Lock()
	if !ss.closed {
		ss.closed = true
		ss.scheduler.close()
		if len(ss.open) == 0 {
			close(ss.drained)
		}
	}
	ss.mu.Unlock()
	for _, st := range ss.list() {
		st.stop(toldToEnd)
	}
}

// EndWatches ends at least watchesPerSecond, as kube-apiserver does, and pauses for watchesPause between them.
const (
	watchesPerSecond = 200
	watchesPause     = 10 * time.Millisecond
)

// EndWatches ends the watches that are open now, a few at a time, within grace. It returns when it has
// notified the last one, or no stream is left.
func (ss *Streams) EndWatches(grace time.Duration) {
	list := slices.DeleteFunc(ss.list(), func(st *Stream) bool { return st.watch == nil })
	perSecond := max(float64(len(list))/grace.Seconds(), watchesPerSecond)
	ticker := time.NewTicker(watchesPause)
	defer ticker.Stop()
	for began, told := time.Now(), 0; told < len(list); {
		until := min(int(time.Since(began).Seconds()*perSecond)+1, len(list))
		for _, st := range list[told:until] {
			st.stop(toldToEnd)
		}
		told = until
		select {
		case <-ticker.C:
		case <-ss.drained:
			return
		}
	}
}

// stop ends st: a watch is sent the signal, the context of a handler is cancelled.
func (st *Stream) stop(signal uint32) {
	if st.watch != nil {
		st.watch.signal(signal)
	} else {
		st.cancel()
	}
}

// Wait blocks until all streams have ended after [Streams.End], or ctx ends.
func (ss *Streams) Wait(ctx context.Context) {
	select {
	case <-ss.drained:
		ss.scheduler.running.Wait()
	case <-ctx.Done():
	}
}

// Abort closes the connections of all streams.
func (ss *Streams) Abort() {
	for _, st := range ss.list() {
		st.stop(clientLeft)
		st.Conn.Close()
	}
}

func (ss *Streams) list() []*Stream {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return slices.AppendSeq(make([]*Stream, 0, len(ss.open)), maps.Keys(ss.open))
}

// Sweep ends streams whose clients have left, until ctx ends. Probing sockets is cheaper than a
// goroutine for each stream that waits for the end of file.
func (ss *Streams) Sweep(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) { ss.Probe() }, sweepInterval)
}

// Probe ends the streams of clients that have left.
func (ss *Streams) Probe() {
	for _, st := range ss.list() {
		st.probe()
	}
}

// probe ends st if its client has left.
func (st *Stream) probe() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.notified && !st.owned && !st.readsBody && !socket.Alive(st.Conn, &st.early) {
		st.stop(clientLeft)
	}
}

// forceClose closes the connection of a handler that reads from it: such a handler may ignore its context. A
// stream that has lost its right gets time to end properly.
func (st *Stream) forceClose() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if (st.owned || st.readsBody) && !st.revoked() {
		st.Conn.Close()
	}
}

// own makes probe ignore the connection, because a handler or the next request reads from it.
func (st *Stream) own() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.owned = true
}

// setReadsBody notes whether a handler reads a body from the connection.
func (st *Stream) setReadsBody(reads bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.readsBody = reads
}

// revoked reports whether the right to st is lost.
func (st *Stream) revoked() bool { return st.right != nil && st.right.Lost() }

// revokePatience is how long a client has to read the end of its stream before it is cut off.
const revokePatience = 2 * time.Second

// EndRevoked ends streams that have lost their right, and cuts off clients that do not read the end.
// Only one goroutine calls it.
func (ss *Streams) EndRevoked(now time.Time) {
	if !ss.rightLost.Swap(false) && len(ss.revokedAt) == 0 {
		return
	}
	open := make(map[*Stream]bool)
	for _, st := range ss.list() {
		if !st.revoked() {
			continue
		}
		open[st] = true
		switch since, known := ss.revokedAt[st]; {
		case !known:
			ss.revokedAt[st] = now
			st.right.Ended()
			st.stop(woken) // the watch sees that the right is lost
		case now.Sub(since) >= revokePatience:
			socket.CloseSocket(st.Conn)
		}
	}
	maps.DeleteFunc(ss.revokedAt, func(st *Stream, _ time.Time) bool { return !open[st] })
}

// Revoke notes that a right was lost. EndRevoked then ends the streams that depend on it.
func (ss *Streams) Revoke() { ss.rightLost.Store(true) }

// OpenStream is an open stream, with the account of its request.
type OpenStream struct {
	Key      costs.Key // with Verb watch for a watch
	Busy     bool      // there is something to send
	Revision int64     // sent last, 0 if none was
}

// All yields all open streams.
func (ss *Streams) All() iter.Seq[OpenStream] {
	return func(yield func(OpenStream) bool) {
		for _, st := range ss.list() {
			var w OpenStream
			if a := st.account.Load(); a != nil {
				w.Key = a.Key()
			}
			if ws := st.watch; ws != nil && ws.watcher != nil {
				w.Busy, w.Revision = ws.signals.Load()&isParked == 0, ws.watcher.LastRevision()
			}
			if !yield(w) {
				return
			}
		}
	}
}
