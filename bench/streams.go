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
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// UseHTTP2 makes the workloads use HTTP/2, over connections that each carry up to streams
// requests at once: client-go has up to 100 on one. With a server that does not speak HTTP/2
// they use HTTP/1.1. The caller calls UseHTTP2 before the first workload.
func (t *Target) UseHTTP2(streams int) {
	t.shared = &sharedConns{streams: streams}
	t.config.NextProtos = nil // client-go's own choice is HTTP/2
	if t.tls != nil {
		t.tls = t.tls.Clone()
		t.tls.NextProtos = []string{http2.NextProtoTLS, "http/1.1"}
	}
}

// sharedConns are the connections of a Target by HTTP/2.
type sharedConns struct {
	streams int // of one connection

	mu   sync.Mutex
	all  []*sharedConn // guarded by mu
	none bool          // guarded by mu: the server does not speak HTTP/2
}

// sharedConn is one of them.
type sharedConn struct {
	http2 *http2.ClientConn
	raw   net.Conn
	users int // guarded by sharedConns.mu
}

// take returns a connection that has room for one more user, and opens one when there is none;
// nil without an error if the server does not speak HTTP/2. Other callers wait meanwhile, so
// that there are no more connections than are needed.
func (s *sharedConns) take(ctx context.Context, t *Target) (*sharedConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.none || t.tls == nil {
		return nil, nil
	}
	for _, c := range s.all {
		if c.users < s.streams && c.http2.CanTakeNewRequest() {
			c.users++
			return c, nil
		}
	}
	raw, err := (&tls.Dialer{Config: t.tls}).DialContext(ctx, "tcp", t.host)
	if err != nil {
		return nil, err
	}
	if raw.(*tls.Conn).ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
		s.none = true
		return nil, raw.Close()
	}
	client, err := (&http2.Transport{DisableCompression: true}).NewClientConn(raw)
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("bench: %w", err)
	}
	c := &sharedConn{http2: client, raw: raw, users: 1}
	s.all = append(s.all, c)
	return c, nil
}

// leave gives a connection back. The last one closes it.
func (s *sharedConns) leave(c *sharedConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users > 0 {
		return
	}
	c.http2.Close()
	for i := range s.all {
		if s.all[i] == c {
			s.all = append(s.all[:i], s.all[i+1:]...)
			return
		}
	}
}

// multiplexed is the part of a conn that sends its requests as streams of a shared HTTP/2
// connection.
type multiplexed struct {
	of     *sharedConns
	conn   *sharedConn
	origin string
	header http.Header
	ctx    context.Context // of the requests

	// Of the request under way, nil for none: its context, what ends it, and when.
	request context.Context
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	body    io.ReadCloser
}

// dialStream returns a conn that is a place on a shared connection; nil without an error if
// the server does not speak HTTP/2.
func (t *Target) dialStream(ctx context.Context, header http.Header, buffer int) (*conn, error) {
	dialing, cancel := t.dialing(ctx)
	defer cancel()
	shared, err := t.shared.take(dialing, t)
	if err != nil {
		return nil, t.dialFailed(ctx, dialing, err)
	}
	if shared == nil {
		return nil, nil
	}
	ctx, end := context.WithCancel(ctx)
	stop := func() bool { end(); return true }
	t.spoken.Store("HTTP/2")
	return &conn{
		Conn: shared.raw, r: bufio.NewReaderSize(nil, buffer), base: t.base, stop: stop, ctx: ctx,
		stream: &multiplexed{of: t.shared, conn: shared, origin: "https://" + t.host, header: header, ctx: ctx},
	}, nil
}

// limit ends the request under way, and the next one, after some time.
func (m *multiplexed) limit(d time.Duration) {
	if m.cancel == nil {
		m.request, m.cancel = context.WithCancelCause(m.ctx)
	}
	m.unlimit()
	cancel := m.cancel
	m.timer = time.AfterFunc(d, func() { cancel(ErrTimeout) })
}

func (m *multiplexed) unlimit() {
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
}

// timedOut reports whether limit has ended the request.
func (m *multiplexed) timedOut() bool {
	return m.request != nil && errors.Is(context.Cause(m.request), ErrTimeout)
}

// send sends a request and returns the head of the answer. out reads the body from then on.
func (m *multiplexed) send(base string, r call, out *bufio.Reader) (response, error) {
	if m.body != nil { // of the last answer
		m.endBody()
	}
	if m.cancel == nil {
		m.request, m.cancel = context.WithCancelCause(m.ctx)
	}
	req, err := http.NewRequestWithContext(m.request, r.method, m.origin+base+r.path, bytes.NewReader(r.body))
	if err != nil {
		return response{}, fmt.Errorf("bench: %w", err)
	}
	req.Header = m.header.Clone()
	req.Header.Set("Accept", r.accept)
	if r.encoding != "" {
		req.Header.Set("Accept-Encoding", r.encoding)
	}
	if r.body != nil {
		req.Header.Set("Content-Type", r.kind)
	}
	answer, err := m.conn.http2.RoundTrip(req)
	if err != nil {
		return response{}, fmt.Errorf("bench: %s %s: %w", r.method, r.path, err)
	}
	m.body = answer.Body
	out.Reset(m.body)
	resp := response{status: answer.StatusCode, length: -1, retryAfter: -1}
	if after := answer.Header.Get("Retry-After"); after != "" {
		resp.takeRetryAfter([]byte(after))
	}
	return resp, nil
}

// endBody drops what is left of the last answer.
func (m *multiplexed) endBody() {
	m.unlimit()
	if m.body != nil {
		m.body.Close()
		m.body = nil
	}
	if m.cancel != nil {
		m.cancel(nil)
		m.request, m.cancel = nil, nil
	}
}

// close frees the place on the connection.
func (m *multiplexed) close() {
	m.endBody()
	m.of.leave(m.conn)
}
