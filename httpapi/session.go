package httpapi

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"k8s.io/klog/v2"
)

// limits bound how long a client may take: as upstream's server, which has no bound
// on reading a body but the request's own (apiserver pkg/server/secure_serving.go).
type limits struct {
	header time.Duration // from the first byte to the end of the header
	idle   time.Duration // between requests
	body   time.Duration // from the end of the header to that of the body
	write  time.Duration // of one response
}

const (
	headerTimeout = 32 * time.Second
	idleTimeout   = 90 * time.Second

	// slack is how much later than they should deadlines may end. So they need not
	// be set for each request, which costs as much as reading its header.
	slack = 5 * time.Second
)

// Sizes of the buffer that a header must fit into. The next one is tried where one is
// too small, up to the server's bound; those that are rare are not kept.
const (
	headerStart  = 4 << 10
	headerGrowth = 4
	headerKept   = 64 << 10
	// headerExtra is what net/http's server allows beyond its bound.
	headerExtra = 4 << 10
)

// session serves the requests of one connection, one after the other. fasthttp
// parses them and writes most responses; when bytes are read and written, into what
// and until when, is decided here. A session that waits for a request holds no
// buffer.
//
// It belongs to the goroutine that serves it, but for state.
type session struct {
	s     *Server
	door  *door
	conn  net.Conn
	began time.Time
	state atomic.Uint32 // a session...

	in    *bufio.Reader // of the requests that have begun to arrive; nil while idle
	size  int           // of in
	ahead []byte        // read from conn and not yet by in
	first [1]byte
	reads int // from conn since the first byte of the request

	// The deadlines that are set on conn.
	readUntil, writeUntil time.Time

	known  credentials // who asked last
	digest [sha256.Size]byte
}

const (
	sessionNew uint32 = iota // no request has begun
	sessionIdle
	sessionActive
	sessionClosed // by the door
)

// serve serves requests until there are no more.
func (ss *session) serve() {
	defer ss.door.forget(ss)
	given := false
	defer func() {
		if p := recover(); p != nil && !isAbort(p) {
			klog.ErrorS(nil, "Connection panicked", "panic", p, "stack", stack())
		}
		if !given {
			ss.conn.Close()
		}
	}()
	if c, ok := ss.conn.(*conn); ok && c.Handshake() != nil {
		return
	}
	ss.size = headerStart
	wait := ss.s.limits.header
	for ss.await(wait) {
		take, again := ss.requests()
		if take != nil {
			given = true
			take()
		}
		if !again {
			return
		}
		wait = ss.s.limits.idle
	}
}

// await waits for the first byte of a request and reports whether it came.
func (ss *session) await(timeout time.Duration) bool {
	if ss.readBy(time.Now().Add(timeout)) != nil {
		return false
	}
	n, err := ss.conn.Read(ss.first[:])
	if n == 0 || err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	ss.ahead, ss.reads = ss.first[:], 0
	return ss.state.CompareAndSwap(sessionNew, sessionActive) || ss.state.CompareAndSwap(sessionIdle, sessionActive)
}

// readBy makes reads end at until or a little later.
func (ss *session) readBy(until time.Time) error {
	if !ss.readUntil.Before(until) && ss.readUntil.Sub(until) <= slack {
		return nil
	}
	ss.readUntil = until.Add(slack)
	return ss.conn.SetReadDeadline(ss.readUntil)
}

// writeBy makes writes end at until or a little later.
func (ss *session) writeBy(until time.Time) error {
	if !ss.writeUntil.Before(until) {
		return nil
	}
	ss.writeUntil = until.Add(slack)
	return ss.conn.SetWriteDeadline(ss.writeUntil)
}

// Read reads what belongs to the request. A header that did not come with its first
// bytes must come in time.
func (ss *session) Read(p []byte) (int, error) {
	n := copy(p, ss.ahead)
	ss.ahead = ss.ahead[n:]
	if n > 1 || n == len(p) {
		return n, nil
	}
	if ss.reads++; ss.reads == 2 {
		if err := ss.readBy(time.Now().Add(ss.s.limits.header)); err != nil {
			return n, err
		}
	}
	more, err := ss.conn.Read(p[n:])
	if n += more; n > 0 {
		return n, nil // an error comes again
	}
	return 0, err
}

// requests serves the request that has begun and those that came with it. It returns
// who takes the connection over, or whether there may be more requests.
func (ss *session) requests() (take func(), again bool) {
	fast := contexts.Get().(*fasthttp.RequestCtx)
	ss.openReader()
	defer func() {
		if take == nil {
			fast.Request.Reset()
			fast.Response.Reset()
			contexts.Put(fast)
		}
		ss.closeReader()
	}()
	for {
		fast.Init2(ss.conn, frontLogger{}, true)
		fast.Response.Header.SetNoDefaultContentType(true)
		if take, again = ss.request(fast); !again {
			return take, false
		}
		if ss.in.Buffered() == 0 && len(ss.ahead) == 0 {
			ss.state.Store(sessionIdle)
			return nil, !ss.door.stopping()
		}
		fast.Request.Reset()
		fast.Response.Reset()
	}
}

// contexts holds what fasthttp keeps of a request and its response.
var contexts = sync.Pool{New: func() any { return new(fasthttp.RequestCtx) }}

// request serves one request.
func (ss *session) request(fast *fasthttp.RequestCtx) (take func(), again bool) {
	if err := ss.readHeader(fast); err != nil {
		return nil, ss.refuse(fast, err, false)
	}
	received := time.Now()
	if err := ss.readBody(fast, received); err != nil {
		return nil, ss.refuse(fast, err, true)
	}
	closing := fast.Request.Header.ConnectionClose()
	x := ss.s.handle(fast, ss, received)
	defer x.close()
	switch {
	case x.stolen:
		return func() {}, false
	case x.cut:
		return nil, false
	case x.taken != nil:
		return ss.give(x.taken), false
	}
	return nil, ss.answer(x, closing)
}

// readHeader reads a request's header into as small a buffer as holds it.
func (ss *session) readHeader(fast *fasthttp.RequestCtx) error {
	for {
		err := fast.Request.Header.Read(ss.in)
		if err == nil || !tooSmall(err) || !ss.grow() {
			return err
		}
	}
}

// tooSmall reports whether a header did not fit into the buffer.
func tooSmall(err error) bool {
	var small *fasthttp.ErrSmallBuffer
	return errors.As(err, &small)
}

// grow replaces the reader by a larger one that begins at the same place, if the
// bound allows one.
func (ss *session) grow() bool {
	bound := ss.s.config.MaxHeaderBytes + headerExtra
	if ss.size >= bound {
		return false
	}
	read, _ := ss.in.Peek(ss.in.Buffered())
	ss.ahead = append(bytes.Clone(read), ss.ahead...)
	larger := min(ss.size*headerGrowth, bound)
	ss.closeReader()
	ss.size = larger
	ss.openReader()
	return true
}

// readers holds buffers of headerStart bytes, which nearly all headers fit into.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, headerStart) }}

// largeReaders holds buffers of the next sizes.
var largeReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, headerStart*headerGrowth) }}

func (ss *session) openReader() {
	pool := &readers
	if ss.size > headerStart {
		pool = &largeReaders
	}
	ss.in = pool.Get().(*bufio.Reader)
	if ss.in.Size() < ss.size {
		ss.in = bufio.NewReaderSize(nil, ss.size)
	}
	ss.size = ss.in.Size()
	ss.in.Reset(ss)
}

// closeReader gives the buffer back. What a connection needed once it will need
// again, unless that is rare.
func (ss *session) closeReader() {
	if ss.in == nil {
		return
	}
	ss.in.Reset(nil)
	switch size := ss.in.Size(); {
	case size <= headerStart:
		readers.Put(ss.in)
	case size <= headerKept:
		largeReaders.Put(ss.in)
	default:
		ss.size = headerStart
	}
	ss.in = nil
}

// readBody reads a request's body, which has as long as its request.
func (ss *session) readBody(fast *fasthttp.RequestCtx, received time.Time) error {
	req := &fast.Request
	if length := req.Header.ContentLength(); length != -2 && length != 0 {
		if err := ss.readBy(received.Add(ss.s.limits.body)); err != nil {
			return err
		}
		ss.reads = 2 // the header's deadline is over
	}
	if req.MayContinue() {
		if err := ss.writeBy(received.Add(ss.s.limits.write)); err != nil {
			return err
		}
		if _, err := io.WriteString(ss.conn, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return err
		}
	}
	return req.ContinueReadBody(ss.in, int(ss.s.config.MaxRequestBodyBytes), false)
}

// refuse answers what could not be read as a request, unless the client is gone.
// inBody says that the header could be.
func (ss *session) refuse(fast *fasthttp.RequestCtx, err error, inBody bool) bool {
	if errors.Is(err, io.EOF) && !inBody || errors.Is(err, net.ErrClosed) {
		return false
	}
	x := ss.s.handleError(fast, err, inBody)
	ss.answer(x, true)
	return false
}

// answer writes the response and reports whether the connection can be used again.
func (ss *session) answer(x *exchange, closing bool) bool {
	resp := &x.fast.Response
	closing = closing || resp.Header.ConnectionClose() || ss.door.stopping()
	switch {
	case closing:
		resp.Header.SetConnectionClose()
	case !x.fast.Request.Header.IsHTTP11():
		resp.Header.Set("Connection", "keep-alive")
	}
	resp.SkipBody = x.fast.IsHead()
	if ss.writeBy(time.Now().Add(ss.s.limits.write)) != nil {
		return false
	}
	return x.write(ss.conn) == nil && !closing
}

// give hands the connection, as if nothing had been set on it, to who takes it.
func (ss *session) give(taken func(net.Conn)) func() {
	rest, _ := ss.in.Peek(ss.in.Buffered())
	c := &handedConn{Conn: ss.conn, ahead: ss.conn}
	if rest = append(bytes.Clone(rest), ss.ahead...); len(rest) > 0 {
		c.ahead = io.MultiReader(bytes.NewReader(rest), ss.conn)
	}
	return func() {
		if ss.conn.SetDeadline(time.Time{}) != nil {
			ss.conn.Close() // whoever takes it will see
		}
		taken(c)
	}
}

// handedConn is a connection that begins with what was read ahead of its handler.
type handedConn struct {
	net.Conn
	ahead io.Reader
}

// Read reads what was read ahead, and then the connection.
func (c *handedConn) Read(p []byte) (int, error) { return c.ahead.Read(p) }

// UnsafeConn is the connection itself.
func (c *handedConn) UnsafeConn() net.Conn { return c.Conn }
