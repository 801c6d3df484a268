package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"time"
)

// Media types that servers answer in.
const (
	Protobuf        = "application/vnd.kubernetes.protobuf"
	JSON            = "application/json"
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
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", t.host)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if t.tls != nil {
		secured := tls.Client(raw, t.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("bench: %w", err)
		}
		raw = secured
	}
	c := &conn{Conn: raw, r: bufio.NewReaderSize(raw, buffer), base: t.base}
	var head bytes.Buffer
	fmt.Fprintf(&head, " HTTP/1.1\r\nHost: %s\r\n", t.host)
	if err := header.Write(&head); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	c.head = head.Bytes()
	// A deadline in the past ends the read or write under way.
	c.stop = context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	return c, nil
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
}

// do sends a request, reads the whole answer and returns the length of its body.
// An answer other than 2xx is an error that holds the beginning of the body.
func (c *conn) do(r call) (int64, error) {
	resp, err := c.send(r)
	if err != nil {
		return 0, err
	}
	n, err := c.drain(resp)
	if err != nil {
		return n, fmt.Errorf("bench: body of %s: %w", r.path, err)
	}
	return n, nil
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

// refused reads the body of an error, so that the connection can be used again.
func (c *conn) refused(r call, resp response) error {
	const most = 200
	text, err := io.ReadAll(io.LimitReader(c.body(resp), 1<<20))
	if err != nil {
		return fmt.Errorf("bench: body of %s: %w", r.path, err)
	}
	return &statusError{resp.status, fmt.Sprintf("bench: %s %s: %d %s: %s", r.method, r.path, resp.status, http.StatusText(resp.status), text[:min(most, len(text))])}
}

var errHead = errors.New("malformed head of a response")

// readHead reads status line and header.
func (c *conn) readHead() (response, error) {
	resp := response{length: -1}
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

func (l *lane) do(ctx context.Context, c call) (int64, error) {
	if l.conn == nil {
		conn, err := l.t.dial(ctx, largeBuffer)
		if err != nil {
			return 0, err
		}
		l.conn = conn
	}
	resp, err := l.conn.send(c)
	var n int64
	if err == nil {
		if n, err = l.conn.drain(resp); err != nil {
			err = fmt.Errorf("bench: body of %s: %w", c.path, err)
		}
	}
	var refused *statusError
	if resp.closes || (err != nil && !errors.As(err, &refused)) {
		l.close()
	}
	return n, err
}

func (l *lane) close() {
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
}
