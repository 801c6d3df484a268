package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
)

// UseHTTP2 makes the workloads use HTTP/2, over connections that each carry up to streams
// requests at once: client-go has up to 100 on one. With a server that does not speak HTTP/2
// they use HTTP/1.1. The caller calls UseHTTP2 before the first workload.
func (t *Target) UseHTTP2(streams int) {
	t.shared = &sharedConns{streams: streams}
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
		return nil, fmt.Errorf("bench: %w", err)
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
	body   io.ReadCloser   // of the last answer
}

// dialStream returns a conn that is a place on a shared connection; nil without an error if
// the server does not speak HTTP/2.
func (t *Target) dialStream(ctx context.Context, header http.Header, buffer int) (*conn, error) {
	shared, err := t.shared.take(ctx, t)
	if shared == nil || err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := func() bool { cancel(); return true }
	return &conn{
		Conn: shared.raw, r: bufio.NewReaderSize(nil, buffer), base: t.base, stop: stop,
		stream: &multiplexed{of: t.shared, conn: shared, origin: "https://" + t.host, header: header, ctx: ctx},
	}, nil
}

// send sends a request and returns the head of the answer. out reads the body from then on.
func (m *multiplexed) send(base string, r call, out *bufio.Reader) (response, error) {
	m.endBody()
	req, err := http.NewRequestWithContext(m.ctx, r.method, m.origin+base+r.path, bytes.NewReader(r.body))
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
	return response{status: answer.StatusCode, length: -1}, nil
}

// endBody drops what is left of the last answer.
func (m *multiplexed) endBody() {
	if m.body != nil {
		m.body.Close()
		m.body = nil
	}
}

// close frees the place on the connection.
func (m *multiplexed) close() {
	m.endBody()
	m.of.leave(m.conn)
}
