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
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

//lint:file-ignore SA1019 x/net's transport takes one connection that was dialled; net/http's dials several at first.

// Request is one request.
type Request struct {
	Method      string // "" means GET
	Path        string // includes the query
	Accept      string
	Encoding    string // Accept-Encoding, "" for none
	ContentType string // if Body is set
	Body        []byte
}

// Typed returns a request as client-go's typed clients send it.
func Typed(method, path, contentType string, body []byte) Request {
	return Request{Method: method, Path: path, Accept: Protobuf + "," + JSON, Encoding: "gzip", ContentType: contentType, Body: body}
}

// Post returns a request that creates obj in the collection at path.
func Post(path string, obj runtime.Object) Request {
	return Typed(http.MethodPost, path, Protobuf, EncodeProtobuf(obj))
}

// Put returns a request that updates obj at path.
func Put(path string, obj runtime.Object) Request {
	return Typed(http.MethodPut, path, Protobuf, EncodeProtobuf(obj))
}

// StrategicPatch returns a strategic merge patch of the object at path.
func StrategicPatch(path string, patch any) Request {
	return Typed(http.MethodPatch, path, string(types.StrategicMergePatchType), EncodeJSON(patch))
}

// dialTimeout bounds the opening of a connection, as client-go's transport does.
const dialTimeout = 30 * time.Second

var errNoHTTP2 = errors.New("bench: the server does not support HTTP/2")

// NewTransport returns a transport that dials with config. Its connections close when ctx ends. Over HTTP/2 all
// requests share one connection, up to the server's limit. Over HTTP/1.1 each concurrent request has its own.
func NewTransport(ctx context.Context, config *tls.Config, byHTTP2 bool) http.RoundTripper {
	if byHTTP2 {
		return &http2.Transport{DisableCompression: true, TLSClientConfig: config, DialTLSContext: func(_ context.Context, _, address string, config *tls.Config) (net.Conn, error) {
			conn, err := dial(ctx, address, config)
			if err == nil && conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
				conn.Close()
				return nil, errNoHTTP2
			}
			return conn, err
		}}
	}
	const idle = 100
	return &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: idle, DialTLSContext: func(_ context.Context, _, address string) (net.Conn, error) {
		return dial(ctx, address, config)
	}}
}

// dial opens a connection that closes when ctx ends. A nil config means plain HTTP.
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
	// Closing the TLS connection would first send an alert, and the client might still read the server's reply.
	context.AfterFunc(ctx, func() { underTLS(conn).Close() })
	return conn, nil
}

// singleTransport sends one request after the other over one HTTP/1.1 connection. net/http's Transport needs two
// goroutines for each connection, which would take CPU time from a server on the same machine.
type singleTransport struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

// RoundTrip implements http.RoundTripper.
func (s *singleTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := errors.Join(req.Write(s.w), s.w.Flush()); err != nil {
		return nil, err
	}
	return http.ReadResponse(s.r, req)
}

// underTLS returns the TCP connection below conn.
func underTLS(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}

// Send sends a request to the origin, such as https://127.0.0.1:6443, and reads the response header. For a response
// other than 2xx it also reads the body, and returns an error that StatusOf understands.
func Send(ctx context.Context, transport http.RoundTripper, origin, agent string, r Request) (*http.Response, error) {
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
		req.Header.Set("Content-Type", r.ContentType)
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
	body, err := io.ReadAll(io.LimitReader(resp.Body, most)) // makes the connection reusable
	if err != nil {
		return nil, fmt.Errorf("bench: body of %s: %w", r.Path, err)
	}
	text := fmt.Sprintf("bench: %s %s: %d %s: %s", req.Method, r.Path, resp.StatusCode, http.StatusText(resp.StatusCode), message(body))
	return resp, &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(resp.StatusCode), Message: text}}
}

// StatusOf returns the response status that err reports: 200 for nil, 0 if there was no response.
func StatusOf(err error) int {
	var refused *apierrors.StatusError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &refused):
		return int(refused.ErrStatus.Code)
	}
	return 0
}

// message returns the message of a Status, or the beginning of any other body.
func message(body []byte) string {
	const most = 200
	kind := metav1.Unversioned.WithKind("Status") // of a body that does not name it
	obj, _, _ := scheme.Codecs.UniversalDeserializer().Decode(body, &kind, nil)
	if status, ok := obj.(*metav1.Status); ok && status.Message != "" {
		return status.Message
	}
	return strings.ToValidUTF8(string(body[:min(most, len(body))]), "?")
}

// UseHTTP2 makes workloads use HTTP/2, with up to streams concurrent requests on each connection; client-go sends
// up to 100. The server must support HTTP/2. Without TLS, requests still use HTTP/1.1. The caller must call
// UseHTTP2 before the first workload.
func (t *Target) UseHTTP2(streams int) {
	t.shared = &sharedTransports{streams: streams}
	t.config.NextProtos = nil // client-go's own choice is HTTP/2
	if t.tls != nil {
		t.tls = t.tls.Clone()
		t.tls.NextProtos = []string{http2.NextProtoTLS, "http/1.1"}
	}
}

// sharedTransports holds the HTTP/2 transports of a Target.
type sharedTransports struct {
	streams int // limit of users of one transport

	mu  sync.Mutex
	all map[*sharedTransport]bool // guarded by mu
}

// sharedTransport is an HTTP/2 transport that several conns use.
type sharedTransport struct {
	http.RoundTripper
	close context.CancelFunc
	users int // guarded by sharedTransports.mu
}

// acquire returns a transport with room for one more user, nil if the Target uses HTTP/1.1.
func (s *sharedTransports) acquire(t *Target) *sharedTransport {
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

// release gives a transport back. The last user closes its connection.
func (s *sharedTransports) release(c *sharedTransport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.users--; c.users == 0 {
		c.close()
		delete(s.all, c)
	}
}
