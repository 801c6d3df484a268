package httpapi

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-io/larder/httpapi/routes"
)

// heldConn holds written bytes until it is released.
type heldConn struct {
	net.Conn
	held    bytes.Buffer
	holding bool
}

func (c *heldConn) Write(p []byte) (int, error) {
	if c.holding {
		return c.held.Write(p)
	}
	return c.Conn.Write(p)
}

func (c *heldConn) release() error {
	c.holding = false
	_, err := c.Conn.Write(c.held.Bytes())
	c.held.Reset()
	return err
}

// TestRequestsReadTogetherAreServedAtOnce checks that a request that TLS has read together with an earlier one is served at
// once, although nothing more arrives on the socket.
func TestRequestsReadTogetherAreServedAtOnce(t *testing.T) {
	f := newTestServer(t, Config{}, func(routes *routes.Table) { routes.Handle("/x", http.HandlerFunc(echo)) })
	raw, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	held := &heldConn{Conn: raw}
	c := tls.Client(held, &tls.Config{RootCAs: f.pool, ServerName: "127.0.0.1"})
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(c)
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		held.holding = true
		for range n + 1 { // each is two TLS records
			io.WriteString(c, "GET /x HTTP/1.1\r\n")
			io.WriteString(c, "Host: h\r\n\r\n")
		}
		if err := held.release(); err != nil {
			t.Fatal(err)
		}
		for i := range n + 1 {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("reading response %d of %d: %v", i, n+1, err)
			}
			io.Copy(io.Discard, resp.Body)
		}
	}
}

// TestSlowReadersGetCompleteResponses checks that a client that reads late, and has closed its direction, gets a
// complete long response, while others are served.
func TestSlowReadersGetCompleteResponses(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 1<<20)
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(echo))
		routes.Handle("/long", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, long) }))
	})
	var back []*tls.Conn
	for range 5 {
		c := f.dial(t)
		io.WriteString(c, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n")
		c.CloseWrite()
		back = append(back, c)
	}
	for range 20 {
		if out := f.raw(t, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"); !strings.HasSuffix(out, "GET /x 0") {
			t.Fatalf("got %q, want the echo", out)
		}
	}
	for i, c := range back {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := got.ReadFrom(resp.Body); err != nil || got.String() != long {
			t.Errorf("client %d: got %d bytes and error %v, want %d bytes", i, got.Len(), err, len(long))
		}
	}
}

// BenchmarkKeptAlive measures small requests one after the other on a connection, with
// TLS and the network.
func BenchmarkKeptAlive(b *testing.B) {
	f := newTestServer(b, Config{}, func(routes *routes.Table) { routes.Handle("/x", http.HandlerFunc(echo)) })
	c := f.dial(b)
	in := bufio.NewReader(c)
	for b.Loop() {
		fmt.Fprint(c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
	}
}
