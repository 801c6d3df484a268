package cluster

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
	"sync"
	"time"
)

// client is one component's: it has connections and a name of its own. By HTTP/2 all its
// requests share its connections, as those of client-go do; by HTTP/1.1 each watch has a
// connection, and other requests use one that is free.
type client struct {
	host, agent string
	tls         *tls.Config
	owner       *sync.WaitGroup // waits for the goroutines that read
	ended       context.Context // ends all connections

	slots []slot // by HTTP/2

	mu   sync.Mutex
	turn int
	idle []*h1conn
}

// slot is a place for a connection that is opened when it is needed.
type slot struct {
	mu   sync.Mutex
	conn *h2conn
}

// newClient returns a client of so many connections by HTTP/2, 0 for HTTP/1.1.
func newClient(ctx context.Context, owner *sync.WaitGroup, host, agent string, identity tls.Certificate, connections int) *client {
	protocol := "h2"
	if connections == 0 {
		protocol = "http/1.1"
	}
	return &client{
		host: host, agent: agent, owner: owner, ended: ctx, slots: make([]slot, connections),
		tls: &tls.Config{Certificates: []tls.Certificate{identity}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, NextProtos: []string{protocol}},
	}
}

// dialTimeout bounds the opening of a connection, as client-go's transport does.
const dialTimeout = 30 * time.Second

// shared returns a connection by HTTP/2, and opens it if there is none. Others wait meanwhile.
func (c *client) shared(ctx context.Context) (*h2conn, error) {
	c.mu.Lock()
	s := &c.slots[c.turn%len(c.slots)]
	c.turn++
	c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.usable() {
		return s.conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := dialTLS(ctx, c.host, c.tls)
	if err != nil {
		return nil, err
	}
	if raw.ConnectionState().NegotiatedProtocol != "h2" {
		raw.Close()
		return nil, errors.New("cluster: the server speaks no HTTP/2")
	}
	conn, err := newH2(raw)
	if err != nil {
		raw.Close()
		return nil, err
	}
	s.conn = conn
	stop := context.AfterFunc(c.ended, func() { raw.Close() })
	c.owner.Go(func() {
		defer stop()
		conn.run()
	})
	return conn, nil
}

// answer is a whole answer.
type answer struct {
	status int
	body   []byte
	err    error
	done   chan struct{}
}

func (a *answer) head(status int) { a.status = status }
func (a *answer) data(p []byte)   { a.body = append(a.body, p...) }
func (a *answer) end(err error)   { a.err = err; close(a.done) }

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// do sends a request and returns the body of the answer. An answer other than 2xx is a
// statusError.
func (c *client) do(ctx context.Context, r *request) ([]byte, error) {
	var a *answer
	var err error
	if len(c.slots) > 0 {
		a, err = c.stream(ctx, r)
	} else {
		a, err = c.alone(ctx, r)
	}
	if err == nil {
		err = a.err
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", r.method, r.path, err)
	}
	if a.status/100 != 2 {
		return nil, refused(r, a.status, a.body)
	}
	return a.body, nil
}

func refused(r *request, status int, body []byte) error {
	const most = 300
	return &statusError{status, fmt.Sprintf("cluster: %s %s: %d %s: %q", r.method, r.path, status, http.StatusText(status), body[:min(most, len(body))])}
}

// stream sends a request by HTTP/2.
func (c *client) stream(ctx context.Context, r *request) (*answer, error) {
	conn, err := c.shared(ctx)
	if err != nil {
		return nil, err
	}
	a := &answer{done: make(chan struct{})}
	id, err := conn.begin(c.host, c.agent, r, a)
	if err != nil {
		return nil, err
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		conn.cancel(id)
		<-a.done
		return nil, ctx.Err()
	}
	return a, nil
}

// watch sends a request whose answer goes to s, also what prevents that. It returns when the
// request is sent. stop ends it.
func (c *client) watch(ctx context.Context, r *request, s sink) (stop func()) {
	if len(c.slots) == 0 {
		return c.watchAlone(ctx, r, s)
	}
	conn, err := c.shared(ctx)
	if err != nil {
		s.end(err)
		return func() {}
	}
	id, err := conn.begin(c.host, c.agent, r, s)
	if err != nil {
		s.end(err)
		return func() {}
	}
	return func() { conn.cancel(id) }
}

// h1conn is a connection by HTTP/1.1.
type h1conn struct {
	net.Conn
	r *bufio.Reader
}

func (c *client) dial(ctx context.Context) (*h1conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := dialTLS(ctx, c.host, c.tls)
	if err != nil {
		return nil, err
	}
	return &h1conn{raw, bufio.NewReaderSize(raw, 4<<10)}, nil
}

// send writes a request and reads the head of its answer.
func (c *h1conn) send(host, agent string, r *request) (*http.Response, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nAccept: %s\r\n", r.method, r.path, host, agent, r.accept)
	if !r.plain {
		b.WriteString("Accept-Encoding: gzip\r\n")
	}
	if r.body != nil {
		fmt.Fprintf(&b, "Content-Type: %s\r\nContent-Length: %d\r\n", r.kind, len(r.body))
	}
	b.WriteString("\r\n")
	b.Write(r.body)
	if _, err := c.Write(b.Bytes()); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return resp, nil
}

// alone sends a request by HTTP/1.1, over a connection that no other request uses.
func (c *client) alone(ctx context.Context, r *request) (*answer, error) {
	c.mu.Lock()
	var conn *h1conn
	if n := len(c.idle); n > 0 {
		conn, c.idle = c.idle[n-1], c.idle[:n-1]
	}
	c.mu.Unlock()
	used := conn != nil
	a, err := c.over(ctx, conn, r)
	if err != nil && used && ctx.Err() == nil && stale(err) {
		return c.over(ctx, nil, r) // the server closed it meanwhile; net/http tries again, too
	}
	return a, err
}

// stale reports whether a connection had ended before the answer began.
func stale(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op)
}

// over sends a request over a connection, or a new one if that is nil, and keeps it for the
// next.
func (c *client) over(ctx context.Context, conn *h1conn, r *request) (_ *answer, err error) {
	if conn == nil {
		if conn, err = c.dial(ctx); err != nil {
			return nil, err
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	resp, err := conn.send(c.host, c.agent, r)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(resp.Body)
	}
	kept := stop() && err == nil && !resp.Close && c.ended.Err() == nil
	if !kept {
		conn.Close()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if kept {
		c.mu.Lock()
		c.idle = append(c.idle, conn)
		c.mu.Unlock()
	}
	return &answer{status: resp.StatusCode, body: body}, nil
}

// watchAlone is watch by HTTP/1.1. A goroutine reads the answer.
func (c *client) watchAlone(ctx context.Context, r *request, s sink) (stop func()) {
	conn, err := c.dial(ctx)
	if err != nil {
		s.end(err)
		return func() {}
	}
	off := context.AfterFunc(c.ended, func() { conn.Close() })
	c.owner.Go(func() {
		defer off()
		defer conn.Close()
		s.end(conn.follow(c.host, c.agent, r, s))
	})
	return func() { conn.Close() }
}

// follow sends a request and hands the answer to s, but for its end.
func (c *h1conn) follow(host, agent string, r *request, s sink) error {
	resp, err := c.send(host, agent, r)
	if err != nil {
		return err
	}
	s.head(resp.StatusCode)
	buf := make([]byte, 4<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			s.data(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
}

// close closes connections that no request uses.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.idle {
		conn.Close()
	}
	c.idle = nil
}
