package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/proctest"
)

// watched is the whole body of the streamed responses in these tests.
const watched = "7\r\nwatched\r\n0\r\n\r\n"

// streaming responds to requests for "/watch" with a stream that end ends, and to others with their target.
func streaming(end func(to exchange.BodyStream)) func(exchange.Carrier, time.Time) *exchange.Exchange {
	plain := echo(nil)
	return func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		if string(c.Target()) != "/watch" {
			return plain(c, received)
		}
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		end(x.StartStream(http.StatusOK, nil))
		return x
	}
}

// finish writes the response and returns the connection with the bytes that were read early, as the owner of a stream
// does.
func finish(to exchange.BodyStream, early []byte) {
	_, err := to.Conn.Write(append(to.Head, watched...))
	if err != nil || to.Next == nil {
		to.Conn.Close()
		return
	}
	to.Next(early)
}

// boundedConn is a scriptConn whose reads fail without a deadline and return at most piece bytes.
type boundedConn struct {
	scriptConn
	piece int
	until time.Time
}

func (c *boundedConn) SetDeadline(until time.Time) error { return c.SetReadDeadline(until) }

func (c *boundedConn) SetReadDeadline(until time.Time) error {
	c.until = until
	return nil
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if left := time.Until(c.until); left <= 0 || left > idleTimeout+slack {
		return 0, fmt.Errorf("the deadline of a read is in %v", left)
	}
	return c.scriptConn.Read(p[:min(len(p), c.piece)])
}

// serveScript calls before, and serves c, as a connection of an hour ago, until its script ends, including the sessions
// after streamed responses.
func (s *Server) serveScript(c net.Conn, before func()) {
	conn := &connection{from: s.Network, began: time.Now().Add(-time.Hour)}
	conn.conn = &memoryConn{Conn: c, of: conn}
	s.Network.add(conn)
	before()
	s.Network.start(conn.serve)
	s.Network.running.Wait()
}

// TestRequestsAfterAStreamAreServed sends further requests with the request of a watch, during the watch, and after it.
// They are served as without watches, and reads of them have a deadline.
func TestRequestsAfterAStreamAreServed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOfN(rapid.SampledFrom([]string{
			"GET /watch HTTP/1.1\r\nHost: h\r\n\r\n", "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n",
			"POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 35\r\n\r\nGET /watch HTTP/1.1\r\nHost: body\r\n\r\n",
			"POST /d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n23\r\nGET /watch HTTP/1.1\r\nHost: body\r\n\r\n\r\n0\r\n\r\n",
			"GET /e HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("a", 300) + "\r\n\r\n",
		}), 1, 8).Draw(t, "requests")
		sizes := rapid.SliceOfN(rapid.IntRange(0, 200), len(requests), len(requests)).Draw(t, "early")
		c := &boundedConn{
			scriptConn: scriptConn{in: bytes.NewReader([]byte(strings.Join(requests, "")))},
			piece:      rapid.IntRange(1, 300).Draw(t, "piece"),
		}
		s := New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20, MaxBodyBytes: 1 << 20}, BodyTimeout: idleTimeout, Draining: make(chan struct{}), Handler: streaming(func(to exchange.BodyStream) {
			early := make([]byte, sizes[0])
			sizes = sizes[1:]
			n, _ := c.scriptConn.Read(early) // as the owner of a stream does to detect that the client has left
			finish(to, early[:n])
		})})
		s.serveScript(c, func() {})
		for i, request := range requests {
			method, rest, _ := strings.Cut(strings.TrimSpace(request), " ")
			want, _, _ := strings.Cut(rest, " ")
			if want == "/watch" {
				want = "watched"
			}
			if got := nextBody(&c.out, method); got != want {
				t.Fatalf("response %d is %q, want %q", i, got, want)
			}
		}
		if c.out.Len() > 0 {
			t.Fatalf("further responses were sent: %q", c.out.Bytes())
		}
	})
}

// TestBlankLineBeforeARequestMayBeSplit checks that a request is served if the CR of the blank line before it was read
// early, and the LF was not.
func TestBlankLineBeforeARequestMayBeSplit(t *testing.T) {
	const watch, next = "GET /watch HTTP/1.1\r\nHost: h\r\n\r\n", "\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n"
	c := &boundedConn{scriptConn: scriptConn{in: bytes.NewReader([]byte(watch + next + next))}, piece: 1}
	config := Config{Limits: Limits{MaxHeaderBytes: 1 << 20}, BodyTimeout: idleTimeout, Draining: make(chan struct{})}
	config.Handler = streaming(func(to exchange.BodyStream) {
		early := make([]byte, len(next)+1)
		n, _ := c.scriptConn.Read(early)
		finish(to, early[:n])
	})
	New(config).serveScript(c, func() {})
	for _, want := range []string{"watched", "/b", "/b"} {
		if got := nextBody(&c.out, http.MethodGet); got != want {
			t.Errorf("got response %q, want %q", got, want)
		}
	}
}

// TestRequestsReadEarlyAreServed checks that a request is served that was read early and does not fit into the buffer.
func TestRequestsReadEarlyAreServed(t *testing.T) {
	const begin, end = "GET /a HTTP/1.1\r\nHost: h\r\nA: ", "\r\n\r\n"
	early := begin + strings.Repeat("a", headerStart-len(begin+end)) + end + "GET /b HTTP/1.1\r\nHost: h\r\n\r\n"
	c := &scriptConn{in: bytes.NewReader(nil)}
	s := New(Config{Handler: echo(nil), Limits: Limits{MaxHeaderBytes: 1 << 20}})
	(&connection{conn: c, from: s.Memory, began: time.Now()}).session([]byte(early)).Serve()
	for _, want := range []string{"/a", "/b"} {
		if got := nextBody(&c.out, http.MethodGet); got != want {
			t.Errorf("got response %q, want %q", got, want)
		}
	}
}

// nextBody reads a response from in and returns its body.
func nextBody(in *bytes.Buffer, method string) string {
	b := bufio.NewReaderSize(oneByte{in}, 16)
	resp, err := http.ReadResponse(b, &http.Request{Method: method})
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || b.Buffered() > 0 {
		return fmt.Sprint(err, b.Buffered())
	}
	return string(body)
}

// oneByte reads one byte at a time, so that a bufio.Reader takes no bytes of the next response.
type oneByte struct{ from io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.from.Read(p[:min(1, len(p))]) }

// TestStreamsWithoutKeepAliveEndTheConnection checks requests after whose stream no other request is served. The header
// of the response must have Connection: close.
func TestStreamsWithoutKeepAliveEndTheConnection(t *testing.T) {
	for name, request := range map[string]string{
		"HTTP/1.0":             "GET /watch HTTP/1.0\r\nHost: h\r\n\r\n",
		"HTTP/1.0, keep-alive": "GET /watch HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n",
		"close":                "GET /watch HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n",
		"a body":               "GET /watch HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1",
		"a body in chunks":     "GET /watch HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HEAD":                 "HEAD /watch HTTP/1.1\r\nHost: h\r\n\r\n",
		"too many bytes ahead": "GET /watch HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("a", 2*socket.MaxEarly) + "\r\n\r\n" + strings.Repeat("\r\n", socket.MaxEarly),
	} {
		c := &scriptConn{in: bytes.NewReader([]byte(request + "GET /behind HTTP/1.1\r\nHost: h\r\n\r\n"))}
		s := New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20}, Draining: make(chan struct{}), Handler: streaming(func(to exchange.BodyStream) { finish(to, nil) })})
		s.serveScript(c, func() {})
		out := c.out.String()
		if !strings.Contains(out, "\r\nConnection: close\r\n\r\n") || strings.Contains(out, "/behind") || len(s.Network.list(true)) > 0 {
			t.Errorf("%s: %d connections are open after %q", name, len(s.Network.list(true)), out)
		}
	}
}

// TestStreamsEndTheConnectionDuringShutdown checks that no request is served after a stream that began before shutdown or
// during it.
func TestStreamsEndTheConnectionDuringShutdown(t *testing.T) {
	for name, begin := range map[string]func(s *Server, draining chan struct{}){
		"closing":  func(s *Server, _ chan struct{}) { s.Network.Close() },
		"draining": func(_ *Server, draining chan struct{}) { close(draining) },
	} {
		for _, before := range []bool{true, false} {
			draining := make(chan struct{})
			var s *Server
			s = New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20}, Draining: draining, Handler: streaming(func(to exchange.BodyStream) {
				if before {
					begin(s, draining)
				}
				if (to.Next != nil) != before {
					t.Errorf("%s: the stream begins before shutdown: %t, StartStream allows a next request: %t", name, before, to.Next != nil)
				}
				finish(to, []byte("GET /behind HTTP/1.1\r\nHost: h\r\n\r\n"))
			})})
			c := &scriptConn{in: bytes.NewReader([]byte("GET /watch HTTP/1.1\r\nHost: h\r\n\r\n"))}
			s.serveScript(c, func() {
				if !before {
					begin(s, draining)
				}
			})
			if strings.Contains(c.out.String(), "/behind") || len(s.Network.list(true)) > 0 {
				t.Errorf("%s: %d connections are open after %q", name, len(s.Network.list(true)), &c.out)
			}
		}
	}
}

// TestShutdownClosesConnectionsThatHadStreams checks that a connection serves requests after a stream, and that shutdown
// closes it when it is idle.
func TestShutdownClosesConnectionsThatHadStreams(t *testing.T) {
	ends := make(chan exchange.BodyStream, 1)
	s := newTestServer(t, Config{}, streaming(func(to exchange.BodyStream) { ends <- to }))
	c := s.dial(t)
	in := bufio.NewReader(c)
	for range 3 {
		if _, err := io.WriteString(c, "GET /watch HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		to := <-ends
		if open, served := len(s.Network.list(true)), len(s.Network.list(false)); open != 1 || served != 0 {
			t.Fatalf("during the stream %d connections are open, %d are served", open, served)
		}
		finish(to, nil)
		if open, served := len(s.Network.list(true)), len(s.Network.list(false)); open != 1 || served != 1 {
			t.Fatalf("after the stream %d connections are open, %d are served", open, served)
		}
		if _, err := io.WriteString(c, "GET /plain HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"watched", "/plain"} {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != want {
				t.Fatalf("got body %q and error %v, want %q", body, err, want)
			}
		}
	}
	s.Network.Close()
	if err := s.Network.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("read after shutdown: got error %v, want EOF", err)
	}
	proctest.Eventually(t, "the connection is closed", func() error {
		if open := s.Network.list(true); len(open) > 0 {
			return fmt.Errorf("%d are open", len(open))
		}
		return nil
	})
}

// TestNextHeadersHaveADeadline checks that a client has the usual time for a header from the first byte on, also if its
// first bytes were read during a watch.
func TestNextHeadersHaveADeadline(t *testing.T) {
	for _, early := range []string{"", "G", "GET /", "GET / HTTP/1.1\r\nHost: h\r\n"} {
		c := &slowConn{}
		s := New(Config{Limits: Limits{MaxHeaderBytes: 1 << 20}})
		conn := &connection{conn: c, from: s.Network, began: time.Now()}
		conn.state.Store(stateIdle)
		conn.session([]byte(early)).Serve()
		if most := idleTimeout + headerTimeout + 2*slack; c.waited > most || c.waited < most-headerTimeout/2 {
			t.Errorf("%q: a client that sends one byte at a time has %v, want about %v", early, c.waited, most)
		}
		if !slices.ContainsFunc(c.responses, func(p string) bool { return strings.HasPrefix(p, "HTTP/1.1 408 ") }) {
			t.Errorf("%q: got responses %q, want status 408", early, c.responses)
		}
	}
}

// slowConn is a connection whose client sends one byte at the end of each read deadline, and nothing once the
// deadline does not move.
type slowConn struct {
	scriptConn
	set, passed time.Time
	waited      time.Duration
	responses   []string
}

func (c *slowConn) Write(p []byte) (int, error) {
	c.responses = append(c.responses, string(p))
	return len(p), nil
}

func (c *slowConn) SetReadDeadline(until time.Time) error {
	c.set = until
	return nil
}

func (c *slowConn) Read(p []byte) (int, error) {
	if c.set.IsZero() {
		return 0, errors.New("no deadline")
	}
	if c.set.Equal(c.passed) {
		return 0, context.DeadlineExceeded
	}
	c.waited += time.Until(c.set)
	c.passed = c.set
	p[0] = 'a'
	return 1, nil
}
