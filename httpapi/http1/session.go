package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
)

// How long a client may take (apiserver pkg/server/secure_serving.go).
const (
	headerTimeout = 32 * time.Second // of a TLS handshake; of a header, from its first byte
	idleTimeout   = 90 * time.Second // between requests

	// slack is how much later than requested a deadline may be. Setting deadlines for each request would cost as much
	// as reading its header.
	slack = 5 * time.Second
)

// Sizes of the buffer for a header, which grows up to the server's limit.
const (
	headerStart  = 4 << 10
	headerGrowth = 4
	// headerExtra is what net/http's server allows beyond its limit.
	headerExtra = 4 << 10
)

// Session serves the requests of one connection, one after the other, and is the exchange.Carrier of the current one.
// fasthttp parses requests and writes the heads of responses. The session has no buffer while it waits for a request.
//
// It belongs to the goroutine that serves it, except what mu guards.
type Session struct {
	s          *Server
	conn       net.Conn
	connection *connection
	sent       int64 // bytes of the response

	in    *bufio.Reader // of the requests that have begun to arrive; nil while idle
	size  int           // of in's buffer
	ahead []byte        // read from conn, but not by in
	first [1]byte
	reads int      // calls of conn.Read since the first byte of the request
	body  incoming // of the request

	*message // the request and its response; nil while idle
	slot     atomic.Value

	// The current deadlines of conn.
	readUntil, writeUntil time.Time

	mu    sync.Mutex
	onEnd []func() // guarded by mu: called at the end of the current request
}

// Serve serves requests until the connection ends.
func (ss *Session) Serve() {
	given := false
	defer func() {
		if p := recover(); p != nil && !exchange.IsAbort(p) {
			klog.ErrorS(nil, "Connection panicked", "panic", p, "stack", exchange.Stack())
		}
		if !given {
			ss.conn.Close()
		}
	}()
	for {
		take, again := ss.ServeNext()
		if take != nil {
			given = true
			take()
		}
		if !again {
			return
		}
	}
}

// ServeNext waits for a request, and serves it and all requests that arrived with it. If a handler hijacks the
// connection, the caller must call take, which passes the connection to it. Otherwise again reports whether more
// requests may follow.
func (ss *Session) ServeNext() (take func(), again bool) {
	if !ss.await() {
		return nil, false
	}
	return ss.requests()
}

// await waits for the first byte of a request and reports whether it arrived.
func (ss *Session) await() bool {
	timeout := idleTimeout
	if ss.connection.state.Load() == stateNew {
		timeout = headerTimeout
	}
	_ = ss.setReadDeadline(time.Now().Add(timeout)) // if conn is closed, the read fails
	if len(ss.ahead) == 0 {
		read := ss.conn.Read
		if c, ok := ss.conn.(*tlsConn); ok {
			read = c.AwaitRead
		}
		n, err := read(ss.first[:])
		if n == 0 || err != nil && !errors.Is(err, io.EOF) {
			return false
		}
		ss.ahead = ss.first[:]
	}
	ss.reads = 0
	return ss.connection.begin()
}

// setReadDeadline makes reads end at until, or up to slack later.
func (ss *Session) setReadDeadline(until time.Time) error {
	if !ss.readUntil.Before(until) && ss.readUntil.Sub(until) <= slack {
		return nil
	}
	ss.readUntil = until.Add(slack)
	return ss.conn.SetReadDeadline(ss.readUntil)
}

// setWriteDeadline makes writes end at until, or up to slack later.
func (ss *Session) setWriteDeadline(until time.Time) error {
	if !ss.writeUntil.Before(until) {
		return nil
	}
	ss.writeUntil = until.Add(slack)
	return ss.conn.SetWriteDeadline(ss.writeUntil)
}

// Read reads bytes of the request for in. If the first read does not have the whole header, Read sets a deadline for
// the rest.
func (ss *Session) Read(p []byte) (int, error) {
	n := copy(p, ss.ahead)
	ss.ahead = ss.ahead[n:]
	if n > 1 || n == len(p) {
		return n, nil
	}
	if ss.reads++; ss.reads == 2 {
		if err := ss.setReadDeadline(time.Now().Add(headerTimeout)); err != nil {
			return n, err
		}
	}
	more, err := ss.conn.Read(p[n:])
	if n += more; n > 0 {
		return n, nil // the next read repeats an error
	}
	return 0, err
}

// requests serves the request that has begun and all requests that arrived with it. Its results are as in ServeNext.
func (ss *Session) requests() (take func(), again bool) {
	m := messages.Get().(*message)
	ss.message = m
	ss.openReader()
	defer func() {
		if take == nil && ss.size == headerStart { // do not keep the buffer of a large header
			m.reset()
			messages.Put(m)
		}
		ss.message = nil
		ss.closeReader()
	}()
	for {
		m.response.Header.SetNoDefaultContentType(true)
		if take, again = ss.request(); !again {
			return take, false
		}
		if ss.in.Buffered() == 0 && len(ss.ahead) == 0 {
			ss.ahead = nil
			ss.connection.state.Store(stateIdle)
			return nil, !ss.connection.from.isClosing()
		}
		m.reset()
	}
}

// message holds the header of a request, and its response, while they are read and written.
type message struct {
	header   fasthttp.RequestHeader // of the request
	response fasthttp.Response
	fields   [usualFields]exchange.Field // of the response's header
}

// usualFields is the initial capacity for the header fields of a response.
const usualFields = 16

// reset makes m ready for another request.
func (m *message) reset() {
	if invariants.Enabled {
		m.overwrite()
	}
	m.header.Reset()
	m.response.Reset()
	clear(m.fields[:])
}

// messages holds unused messages.
var messages = sync.Pool{New: func() any { return new(message) }}

// request serves one request. Its body is read when the handler asks for it.
func (ss *Session) request() (take func(), again bool) {
	ss.body = incoming{done: true}
	header := &ss.header
	if err := ss.readHeader(header); err != nil {
		ss.refuse(err)
		return nil, false
	}
	received := time.Now()
	expect := header.Peek("Expect")
	ss.body = bodyOf(header, ss.in, continues(expect))
	if len(expect) > 0 && !continues(expect) {
		ss.refuse(errExpectation)
		return nil, false
	}
	closing := header.ConnectionClose()
	if string(header.RequestURI()) == "*" { // fasthttp accepts it only with OPTIONS
		return nil, ss.respond(exchange.NewAsterisk(ss, received), closing)
	}
	defer ss.end()
	x := ss.s.config.Handler(ss, received)
	defer x.Close()
	ss.sent = 0
	defer ss.charge(x)
	switch {
	case x.Streamed:
		return func() {}, false
	case x.Abort:
		return nil, false
	case x.Hijack != nil:
		return ss.handOver(x.Hijack), false
	}
	return nil, ss.respond(x, closing)
}

// charge charges the response to the account of the request.
func (ss *Session) charge(x *exchange.Exchange) {
	if x.Streamed { // another goroutine may already use the connection
		x.Charge(0, 0)
		return
	}
	x.Charge(ss.sent, socket.TakeWaited(ss.conn))
}

// readHeader reads a request's header into a buffer that grows as needed. It parses the header once, when it is
// complete.
func (ss *Session) readHeader(header *fasthttp.RequestHeader) error {
	var end headerEnd
	for {
		block, _ := ss.in.Peek(ss.in.Buffered())
		if n := blankLines(block); n > 0 {
			if _, err := ss.in.Discard(n); err != nil {
				return err
			}
			end = headerEnd{} // it may have searched the CR of a blank line
			continue
		}
		whole, err := end.find(block)
		if err != nil {
			return err
		}
		if whole {
			return header.Read(ss.in)
		}
		_, err = ss.in.Peek(len(block) + 1)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			err = ss.grow()
		case errors.Is(err, io.EOF) && len(block) > 0:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
}

var (
	errHeaderTooLarge = errors.New("httpapi: header is too large")
	errExpectation    = errors.New("httpapi: unknown expectation")
)

// grow replaces the reader by a larger one at the same position, if the limit allows one.
func (ss *Session) grow() error {
	bound := ss.s.config.MaxHeaderBytes + headerExtra
	if ss.size >= bound {
		return errHeaderTooLarge
	}
	ss.ahead = ss.readAhead()
	larger := min(ss.size*headerGrowth, bound)
	ss.closeReader()
	ss.size = larger
	ss.openReader()
	_, err := ss.in.Peek(len(ss.ahead))
	return err
}

// readAhead returns a copy of the bytes that were read after the current request.
func (ss *Session) readAhead() []byte {
	read, _ := ss.in.Peek(ss.in.Buffered())
	return append(bytes.Clone(read), ss.ahead...)
}

// readers holds buffers of headerStart bytes, which nearly all headers fit into.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, headerStart) }}

func (ss *Session) openReader() {
	if ss.size == headerStart {
		ss.in = readers.Get().(*bufio.Reader)
	} else {
		ss.in = bufio.NewReaderSize(nil, ss.size)
	}
	ss.in.Reset(ss)
}

// closeReader returns the buffer to the pool, unless it is larger.
func (ss *Session) closeReader() {
	if ss.in == nil {
		return
	}
	if invariants.Enabled {
		invariants.OverwriteReader(ss.in)
	}
	ss.in.Reset(nil)
	if ss.size == headerStart {
		readers.Put(ss.in)
	}
	ss.in, ss.size = nil, headerStart
}

// refuse responds to a request that could not be read because of err, unless the client has disconnected. The
// connection then ends.
func (ss *Session) refuse(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return
	}
	ss.body.done = !errors.Is(err, errHeaderTooLarge) && ss.body.done
	ss.respond(ss.malformed(err), true)
}

// respond writes the response and reports whether the connection can be used again.
func (ss *Session) respond(x *exchange.Exchange, closing bool) bool {
	resp := &ss.response
	setHeader(resp, &x.Response)
	closing = closing || resp.Header.ConnectionClose() || ss.ends() || !ss.discardBody(x)
	switch {
	case closing:
		resp.Header.SetConnectionClose()
	case !ss.Chunks():
		resp.Header.Set("Connection", "keep-alive")
	}
	resp.SkipBody = ss.header.IsHead()
	if ss.setWriteDeadline(time.Now().Add(socket.WriteTimeout)) != nil || ss.write(x) != nil {
		return false
	}
	if closing && !ss.body.done {
		lingeringClose(ss.conn)
	}
	return !closing
}

// ends reports whether the connection ends with the current request.
func (ss *Session) ends() bool {
	c := ss.connection
	return c.from.isClosing() || c.from.isLeaving(c.began)
}

// handOver returns a function that passes the connection to taken, without deadlines.
func (ss *Session) handOver(taken func(exchange.Hijacked)) func() {
	t := exchange.Hijacked{Conn: ss.conn, Ahead: ss.conn}
	if rest := ss.readAhead(); len(rest) > 0 {
		t.Ahead = io.MultiReader(bytes.NewReader(rest), ss.conn)
	}
	if !ss.body.done {
		b := ss.body
		b.in = bufio.NewReader(t.Ahead)
		t.Ahead, t.Body = b.in, &b
	}
	return func() {
		ss.connection.http1.Store(nil)
		ss.connection.from.served(ss.connection)
		if ss.conn.SetDeadline(time.Time{}) != nil {
			ss.conn.Close() // the first read or write of taken fails
		}
		taken(t)
	}
}
