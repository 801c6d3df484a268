package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Media types that servers answer in.
const (
	Protobuf        = "application/vnd.kubernetes.protobuf"
	JSON            = "application/json"
	PartialJSON     = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	PartialProtobuf = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	Table           = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// Buffers of connections: of those that read long bodies, and of those that wait.
const (
	largeBuffer = 64 << 10
	smallBuffer = 4 << 10
)

// call is one request.
type call struct {
	method   string // "" means GET
	path     string // with its query
	accept   string
	encoding string // Accept-Encoding, "" for none
	kind     string // Content-Type of body
	body     []byte
}

// conn is one HTTP/1.1 connection, or a place on one of HTTP/2, with one request under way at
// a time. By HTTP/1.1 it is as cheap as a client can be: client and server share the machine,
// and the server lacks the CPU time that the client uses. Bodies are drained through buffers
// that stay.
type conn struct {
	net.Conn
	r     *bufio.Reader
	head  []byte // header lines that all requests of the connection have
	req   []byte
	base  string
	chunk []byte // for draining chunked bodies
	stop  func() bool
	ctx   context.Context // ends the connection

	stream *multiplexed // nil by HTTP/1.1
}

// dial opens a connection, TLS handshake included. It is closed when ctx ends.
func (t *Target) dial(ctx context.Context, buffer int) (*conn, error) {
	header, err := t.credentials(ctx)
	if err != nil {
		return nil, err
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "larder-bench")
	}
	if t.shared != nil {
		if c, err := t.dialStream(ctx, header, buffer); c != nil || err != nil {
			return c, err
		}
	}
	raw, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, r: bufio.NewReaderSize(raw, buffer), base: t.base, ctx: ctx}
	var head bytes.Buffer
	fmt.Fprintf(&head, " HTTP/1.1\r\nHost: %s\r\n", t.host)
	if err := header.Write(&head); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	c.head = head.Bytes()
	// A deadline in the past ends the read or write under way.
	c.stop = context.AfterFunc(ctx, func() { c.SetDeadline(longAgo()) })
	t.spoken.Store("HTTP/1.1")
	return c, nil
}

// connect opens a connection for HTTP/1.1.
func (t *Target) connect(ctx context.Context) (net.Conn, error) {
	dialing, cancel := t.dialing(ctx)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(dialing, "tcp", t.host)
	if err != nil {
		return nil, t.dialFailed(ctx, dialing, err)
	}
	if t.tls == nil {
		return raw, nil
	}
	config := t.tls
	if t.shared != nil { // the server speaks no HTTP/2
		config = config.Clone()
		config.NextProtos = nil
	}
	secured := tls.Client(raw, config)
	if err := secured.HandshakeContext(dialing); err != nil {
		raw.Close()
		return nil, t.dialFailed(ctx, dialing, err)
	}
	return secured, nil
}

// dialing returns a context that bounds the opening of a connection.
func (t *Target) dialing(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, t.Timeout)
}

// dialFailed says why no connection was opened.
func (t *Target) dialFailed(ctx, dialing context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(dialing.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: no connection to %s within %v", ErrTimeout, t.host, t.Timeout)
	}
	return fmt.Errorf("bench: %w", err)
}

// ErrTimeout is wrapped by the errors of requests that took longer than Target.Timeout.
var ErrTimeout = errors.New("bench: timeout")

// longAgo is a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }

// limit makes the request under way, and the one that is sent next, fail after some time; 0
// leaves the time unlimited.
func (c *conn) limit(d time.Duration) {
	switch {
	case d <= 0:
	case c.stream != nil:
		c.stream.limit(d)
	default:
		c.SetDeadline(time.Now().Add(d))
		c.ended()
	}
}

// unlimit takes the limit back.
func (c *conn) unlimit() {
	if c.stream != nil {
		c.stream.unlimit()
		return
	}
	c.SetDeadline(time.Time{})
	c.ended()
}

// ended sets the deadline that the end of the context has set, in case that it came between.
func (c *conn) ended() {
	if c.ctx != nil && c.ctx.Err() != nil {
		c.SetDeadline(longAgo())
	}
}

// explain makes an error that limit has caused an ErrTimeout.
func (c *conn) explain(err error, limit time.Duration) error {
	if err == nil || (c.ctx != nil && c.ctx.Err() != nil) {
		return err
	}
	late := errors.Is(err, os.ErrDeadlineExceeded)
	if c.stream != nil {
		late = c.stream.timedOut()
	}
	if !late {
		return err
	}
	return fmt.Errorf("%w after %v: %w", ErrTimeout, limit, err)
}

// shrink makes the kernel buffer few of the bytes that this conn leaves unread. A connection
// that other conns share stays as it is.
func (c *conn) shrink() {
	if c.stream != nil {
		return
	}
	raw := c.Conn
	if secured, ok := raw.(*tls.Conn); ok {
		raw = secured.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		tcp.SetReadBuffer(smallBuffer)
	}
}

func (c *conn) close() {
	c.stop()
	if c.stream != nil {
		c.stream.close()
		return
	}
	c.Conn.Close()
}

// response holds what the head of an answer says.
type response struct {
	status  int
	length  int64 // of the body, -1 if it is chunked or ends with the connection
	chunked bool
	closes  bool

	retryAfter time.Duration // -1 if the answer says nothing of it
}

// takeRetryAfter notes for how long a client shall wait. Servers of Kubernetes send seconds.
func (r *response) takeRetryAfter(value []byte) {
	const most = 600
	if n, err := strconv.ParseUint(string(value), 10, 31); err == nil && n <= most {
		r.retryAfter = time.Duration(n) * time.Second
	}
}

// do sends a request, reads the whole answer, within a time if limit is not 0, and returns the
// length of its body. An answer other than 2xx is an error that holds the beginning of the body.
func (c *conn) do(r call, limit time.Duration) (response, int64, error) {
	if limit > 0 {
		c.limit(limit)
	}
	resp, err := c.send(r)
	var n int64
	if err == nil {
		if n, err = c.drain(resp); err != nil {
			err = fmt.Errorf("bench: body of %s: %w", r.path, err)
		}
	}
	err = c.explain(err, limit)
	if limit > 0 {
		c.unlimit()
	}
	if c.stream != nil {
		c.stream.endBody()
	}
	return resp, n, err
}

// send sends a request and reads the head of the answer.
func (c *conn) send(r call) (response, error) {
	if r.method == "" {
		r.method = http.MethodGet
	}
	if c.stream != nil {
		resp, err := c.stream.send(c.base, r, c.r)
		if err == nil && resp.status/100 != 2 {
			err = c.refused(r, resp)
		}
		return resp, err
	}
	b := append(c.req[:0], r.method...)
	b = append(b, ' ')
	b = append(b, c.base...)
	b = append(b, r.path...)
	b = append(b, c.head...)
	b = append(b, "Accept: "...)
	b = append(b, r.accept...)
	if r.encoding != "" {
		b = append(b, "\r\nAccept-Encoding: "...)
		b = append(b, r.encoding...)
	}
	if r.body != nil {
		b = append(b, "\r\nContent-Type: "...)
		b = append(b, r.kind...)
		b = append(b, "\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
	}
	b = append(b, "\r\n\r\n"...)
	b = append(b, r.body...)
	c.req = b
	if _, err := c.Write(b); err != nil {
		return response{}, fmt.Errorf("bench: %w", err)
	}
	resp, err := c.readHead()
	if err != nil {
		return resp, fmt.Errorf("bench: %s %s: %w", r.method, r.path, err)
	}
	if resp.status/100 != 2 {
		return resp, c.refused(r, resp)
	}
	return resp, nil
}

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// statusOf is the status of an answer of which only the error, if there is one, is known: 0
// if there was no answer.
func statusOf(err error) int {
	var refused *statusError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refused):
		return refused.status
	}
	return 0
}

// refused reads the body of an error, so that the connection can be used again.
func (c *conn) refused(r call, resp response) error {
	body, err := io.ReadAll(io.LimitReader(c.body(resp), 1<<20))
	if err != nil {
		return fmt.Errorf("bench: body of %s: %w", r.path, err)
	}
	return &statusError{resp.status, fmt.Sprintf("bench: %s %s: %d %s: %s", r.method, r.path, resp.status, http.StatusText(resp.status), message(body))}
}

// message is what the body of a refusal says to people: the message of a Status, or else how
// it begins.
func message(body []byte) string {
	const most = 200
	var status metav1.Status
	var unknown runtime.Unknown
	binary, isBinary := bytes.CutPrefix(body, []byte("k8s\x00"))
	switch {
	case isBinary && unknown.Unmarshal(binary) == nil && status.Unmarshal(unknown.Raw) == nil && status.Message != "":
		return status.Message
	case json.Unmarshal(body, &status) == nil && status.Message != "":
		return status.Message
	}
	return strings.ToValidUTF8(string(body[:min(most, len(body))]), "?")
}

var errHead = errors.New("malformed head of a response")

// readHead reads status line and header.
func (c *conn) readHead() (response, error) {
	resp := response{length: -1, retryAfter: -1}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return resp, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return resp, errHead
	}
	if resp.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return resp, errHead
	}
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return resp, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return resp, nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return resp, errHead
		}
		if err := resp.take(name, bytes.TrimSpace(value)); err != nil {
			return resp, err
		}
	}
}

// take notes the header fields that say where the body ends.
func (r *response) take(name, value []byte) (err error) {
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		var n uint64
		n, err = strconv.ParseUint(string(value), 10, 63)
		r.length = int64(n)
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		r.chunked = bytes.EqualFold(value, []byte("chunked"))
	case bytes.EqualFold(name, []byte("Connection")):
		r.closes = bytes.EqualFold(value, []byte("close"))
	case bytes.EqualFold(name, []byte("Retry-After")):
		r.takeRetryAfter(value)
	}
	return err
}

// body reads the body of the last answer.
func (c *conn) body(resp response) io.Reader {
	switch {
	case resp.chunked:
		return &chunkedBody{Reader: httputil.NewChunkedReader(c.r), r: c.r}
	case resp.length >= 0:
		return io.LimitReader(c.r, resp.length)
	}
	return c.r
}

// chunkedBody also reads the empty line that ends the last chunk.
type chunkedBody struct {
	io.Reader
	r *bufio.Reader
}

// Read implements io.Reader.
func (b *chunkedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		if _, err := b.r.ReadSlice('\n'); err != nil {
			return n, err
		}
	}
	return n, err
}

// drain discards the body of the last answer.
func (c *conn) drain(resp response) (int64, error) {
	if !resp.chunked && resp.length >= 0 {
		var done int64
		for done < resp.length {
			n, err := c.r.Discard(int(min(resp.length-done, 1<<30)))
			done += int64(n)
			if err != nil {
				return done, err
			}
		}
		return done, nil
	}
	if c.chunk == nil {
		c.chunk = make([]byte, largeBuffer)
	}
	body := c.body(resp)
	var done int64
	for {
		n, err := body.Read(c.chunk)
		done += int64(n)
		if errors.Is(err, io.EOF) {
			return done, nil
		}
		if err != nil {
			return done, err
		}
	}
}

// lane sends one request after the other over a connection that it opens when it
// has none: at first, after an error, and when the server said it would close.
type lane struct {
	t    *Target
	conn *conn
}

// do sends a request and reads the answer. Where the Target wants it, a request that is
// refused for a while is sent again after it.
func (l *lane) do(ctx context.Context, c call) (outcome, error) {
	const most = 10 // times
	var o outcome
	for {
		after, err := l.try(ctx, c, &o)
		if err == nil || !l.t.RetryAfter || after < 0 || o.status != http.StatusTooManyRequests || o.retries >= most {
			return o, err
		}
		if err := sleep(ctx, after); err != nil {
			return o, err
		}
		o.retries++
	}
}

// dialError says that there was no connection to send a request over.
type dialError struct{ error }

// Unwrap returns why.
func (e *dialError) Unwrap() error { return e.error }

// lull is for how long a lane that gets no connection waits: a server that is gone shall not
// keep the client busy.
const lull = 10 * time.Millisecond

// try sends a request once. after is for how long the server asks to wait, -1 if it does not.
func (l *lane) try(ctx context.Context, c call, o *outcome) (after time.Duration, err error) {
	if l.conn == nil {
		if l.conn, err = l.t.dial(ctx, largeBuffer); err != nil {
			l.conn = nil
			_ = sleep(ctx, lull)
			return -1, &dialError{err}
		}
	}
	resp, n, err := l.conn.do(c, l.t.Timeout)
	o.bytes, o.status = n, resp.status
	var refused *statusError
	if resp.closes || (err != nil && !errors.As(err, &refused)) {
		l.close()
	}
	return resp.retryAfter, err
}

func (l *lane) close() {
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
}
