package bench

import (
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

//lint:file-ignore SA1019 x/net's transport takes one connection that was dialled; net/http's dials several at first.

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

// http2Link sends requests as streams of a shared HTTP/2 connection.
type http2Link struct {
	of     *sharedConns
	conn   *sharedConn
	origin string
	header http.Header
	ctx    context.Context // of the requests
	end    context.CancelFunc
	body   io.Closer // of the last answer
}

// dialHTTP2 returns a place on a shared connection; nil without an error if the server does not
// speak HTTP/2.
func (t *Target) dialHTTP2(ctx context.Context, header http.Header) (*http2Link, error) {
	dialing, cancel := t.dialing(ctx)
	defer cancel()
	shared, err := t.shared.take(dialing, t)
	if err != nil {
		return nil, t.dialFailed(ctx, dialing, err)
	}
	if shared == nil {
		return nil, nil
	}
	l := &http2Link{of: t.shared, conn: shared, origin: "https://" + t.host + t.base, header: header, body: http.NoBody}
	l.ctx, l.end = context.WithCancel(ctx)
	return l, nil
}

func (l *http2Link) roundTrip(r *call) (*http.Response, error) {
	l.body.Close()
	req, err := http.NewRequestWithContext(l.ctx, r.method, l.origin+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	req.Header = l.header.Clone()
	req.Header.Set("Accept", r.accept)
	if r.encoding != "" {
		req.Header.Set("Accept-Encoding", r.encoding)
	}
	if r.body != nil {
		req.Header.Set("Content-Type", r.kind)
	}
	resp, err := l.conn.http2.RoundTrip(req)
	if err == nil {
		l.body = resp.Body
	}
	return resp, err
}

func (l *http2Link) abort() { l.end() }

// close ends the current request and gives the place on the connection back.
func (l *http2Link) close() {
	l.body.Close()
	l.end()
	l.of.leave(l.conn)
}
