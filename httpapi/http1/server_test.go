package http1

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// testServer is a server that listens on a port.
type testServer struct {
	*Server
	addr string
	pool *x509.CertPool
}

// newTestServer serves until the test ends.
func newTestServer(t *testing.T, config Config, handler func(exchange.Carrier, time.Time) *exchange.Exchange) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	draining := make(chan struct{})
	config.Handler, config.Draining = handler, draining
	config.MaxHeaderBytes, config.MaxBodyBytes, config.BodyTimeout = 1<<20, 1<<20, time.Minute
	tlsConfig, pool := testcert.Loopback(t)
	config.Listener, config.TLS = l, tlsConfig
	s := New(config)
	ended := make(chan error, 1)
	go func() { ended <- s.ServeNetwork() }()
	t.Cleanup(func() {
		close(draining)
		s.StopAccepting()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		s.Network.Close()
		if err := s.Network.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		s.Abort()
	})
	return &testServer{Server: s, addr: l.Addr().String(), pool: pool}
}

func (s *testServer) dial(t *testing.T) *tls.Conn {
	t.Helper()
	return proctest.DialTLS(t, s.addr, &tls.Config{RootCAs: s.pool})
}

// echo responds to every request with its target, after before has returned.
func echo(before func(target string)) func(exchange.Carrier, time.Time) *exchange.Exchange {
	return func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		if before != nil {
			before(string(c.Target()))
		}
		x.Send(200, "text/plain", bytes.Clone(c.Target()))
		return x
	}
}

// scriptConn is a connection whose client has already sent all its requests.
type scriptConn struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *scriptConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *scriptConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scriptConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// TestInternalClientsDoNotRetry checks that client-go does not retry requests to a server in its own process that has
// stopped.
func TestInternalClientsDoNotRetry(t *testing.T) {
	s := New(Config{})
	s.CloseMemory()
	client := http.Client{Transport: s.RoundTripper()}
	resp, err := client.Get("https://server.test/")
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) || utilnet.IsConnectionRefused(err) {
		t.Errorf("got error %v, on which client-go retries", err)
	}
}

// TestHandshakesTimeOut checks that a client has as much time for the handshake as for a header, as in net/http.
func TestHandshakesTimeOut(t *testing.T) {
	config, _ := testcert.Loopback(t)
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		c, began := tlsConn{Conn: tls.Server(server, config)}, time.Now()
		if err := c.handshake(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 32*time.Second {
			t.Errorf("the handshake ended with %v after %v, want ErrDeadlineExceeded after 32s", err, time.Since(began))
		}
	})
}

// TestIdleConnectionsHoldNoBuffers checks that an idle connection holds no buffer after a long header.
func TestIdleConnectionsHoldNoBuffers(t *testing.T) {
	s := New(Config{Handler: echo(nil), Limits: Limits{MaxHeaderBytes: 1 << 20}})
	script := "GET / HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("a", 100<<10) + "\r\n\r\n"
	ss := s.Session(&scriptConn{in: bytes.NewReader([]byte(script))})
	if !ss.await() || ss.in != nil {
		t.Fatal("the session has a buffer before the first byte, or ended")
	}
	if _, again := ss.requests(); !again {
		t.Fatal("the connection ended")
	}
	if ss.in != nil || ss.message != nil || ss.ahead != nil || ss.size != headerStart {
		t.Errorf("an idle session has a reader: %v, a message: %v, %d bytes, next buffer of %d; want none, none, 0, %d", ss.in != nil, ss.message != nil, len(ss.ahead), ss.size, headerStart)
	}
}
