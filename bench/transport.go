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
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

//lint:file-ignore SA1019 x/net's transport takes one connection that was dialled; net/http's dials several at first.

// Request is one request.
type Request struct {
	Method   string // "" means GET
	Path     string // with its query
	Accept   string
	Encoding string // Accept-Encoding, "" for none
	Kind     string // Content-Type of Body
	Body     []byte
}

// dialTimeout bounds the opening of a connection, as client-go's transport does.
const dialTimeout = 30 * time.Second

// errHTTP1Alone says that a server does not speak HTTP/2.
var errHTTP1Alone = errors.New("bench: the server speaks no HTTP/2")

// NewTransport returns a transport that dials with config. Its connections are closed when ctx ends. By HTTP/2 all
// requests share one, as long as the server lets them. By HTTP/1.1 requests under way have one each.
func NewTransport(ctx context.Context, config *tls.Config, byHTTP2 bool) http.RoundTripper {
	if byHTTP2 {
		return &http2.Transport{DisableCompression: true, TLSClientConfig: config, DialTLSContext: func(_ context.Context, _, address string, config *tls.Config) (net.Conn, error) {
			conn, err := dial(ctx, address, config)
			if err == nil && conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
				conn.Close()
				return nil, errHTTP1Alone
			}
			return conn, err
		}}
	}
	const idle = 100
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: idle, DialTLSContext: func(_ context.Context, _, address string) (net.Conn, error) {
		return dial(ctx, address, config)
	}}
}

// dial opens a connection with config, nil for plain HTTP. It is closed when ctx ends.
func dial(ctx context.Context, address string, config *tls.Config) (conn net.Conn, err error) {
	dialer := &net.Dialer{Timeout: dialTimeout}
	if config == nil {
		conn, err = dialer.DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	// TLS would tell the server first, and what that answers might still be read.
	context.AfterFunc(ctx, func() { underTLS(conn).Close() })
	return conn, nil
}

// lone is a transport of one HTTP/1.1 connection, for one request after the other. net/http's Transport needs two
// goroutines for each connection, and client and server share the machine.
type lone struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

// RoundTrip implements http.RoundTripper.
func (l *lone) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := errors.Join(req.Write(l.w), l.w.Flush()); err != nil {
		return nil, err
	}
	return http.ReadResponse(l.r, req)
}

// underTLS returns the connection that carries conn.
func underTLS(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}

// Send sends a request to the origin, such as https://127.0.0.1:6443, and reads the head of the answer. An answer
// other than 2xx is returned with an error that StatusOf knows, and its body was read.
func Send(ctx context.Context, transport http.RoundTripper, origin, agent string, r *Request) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, origin+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", r.Accept)
	if r.Encoding != "" {
		req.Header.Set("Accept-Encoding", r.Encoding)
	}
	if r.Body != nil {
		req.Header.Set("Content-Type", r.Kind)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("bench: %s %s: %w", req.Method, r.Path, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	const most = 1 << 20
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, most)) // so that the connection can be used again
	if err != nil {
		return nil, fmt.Errorf("bench: body of %s: %w", r.Path, err)
	}
	return resp, &statusError{resp.StatusCode, fmt.Sprintf("bench: %s %s: %d %s: %s", req.Method, r.Path, resp.StatusCode, http.StatusText(resp.StatusCode), message(body))}
}

// statusError is an answer other than 2xx.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// StatusOf returns the status of the answer that an error is about: 200 without an error, 0 if there was no answer.
func StatusOf(err error) int {
	var refused *statusError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refused):
		return refused.status
	}
	return 0
}

// message returns the message of a Status, or the beginning of any other body.
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

// UseHTTP2 makes the workloads use HTTP/2, over connections that each carry up to streams
// requests at once: client-go has up to 100 on one. The server must speak HTTP/2; by plain HTTP it is asked by
// HTTP/1.1. The caller calls UseHTTP2 before the first workload.
func (t *Target) UseHTTP2(streams int) {
	t.shared = &sharedTransports{streams: streams}
	t.config.NextProtos = nil // client-go's own choice is HTTP/2
	if t.tls != nil {
		t.tls = t.tls.Clone()
		t.tls.NextProtos = []string{http2.NextProtoTLS, "http/1.1"}
	}
}

// sharedTransports are the transports of a Target by HTTP/2.
type sharedTransports struct {
	streams int // of one transport

	mu  sync.Mutex
	all map[*sharedTransport]bool // guarded by mu
}

// sharedTransport is one of them.
type sharedTransport struct {
	http.RoundTripper
	close context.CancelFunc
	users int // guarded by sharedTransports.mu
}

// take returns a transport that has room for one more user; nil if the Target uses HTTP/1.1.
func (s *sharedTransports) take(t *Target) *sharedTransport {
	if s == nil || t.tls == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		if c.users < s.streams {
			c.users++
			return c
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &sharedTransport{NewTransport(ctx, t.tls, true), cancel, 1}
	if s.all == nil {
		s.all = make(map[*sharedTransport]bool)
	}
	s.all[c] = true
	return c
}

// leave gives a transport back. The last user closes its connection.
func (s *sharedTransports) leave(c *sharedTransport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users == 0 {
		c.close()
		delete(s.all, c)
	}
}
