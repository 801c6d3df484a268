package httpapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// smallHeader is the size of the smallest buffer that a header must fit into.
const smallHeader = 4 << 10

// TestLongHeaders checks that a header may be as long as net/http allows, whatever its content, and that the next
// request on the connection is found.
func TestLongHeaders(t *testing.T) {
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			fmt.Fprintf(w, "%d %d %d", len(req.URL.Query().Get("labelSelector")), len(req.Header.Get("X-Token")), len(body))
		}))
	})
	const bound = 1<<20 + 4<<10
	request := func(selector, token, body int) string {
		return fmt.Sprintf("POST /x?labelSelector=%s HTTP/1.1\r\nHost: h\r\nX-Token: %s\r\nContent-Length: %d\r\n\r\n%s",
			strings.Repeat("s", selector), strings.Repeat("a", token), body, strings.Repeat("b", body))
	}
	rest := len(request(0, 0, 0))
	for _, c := range []struct {
		selector, token, body int
		refused               bool
	}{
		{10, 20, 30, false},
		{smallHeader, 1, 1, false},
		{600 << 10, 1, 1, false},
		{1, 200 << 10, 2 << 20, false},
		{smallHeader - rest, 0, 0, false}, {smallHeader - rest + 1, 0, 0, false}, {smallHeader - rest - 1, 0, 0, false},
		{16<<10 - rest, 0, 0, false}, {16<<10 - rest + 1, 0, 0, false},
		{bound - rest, 0, 0, false},
		{bound - rest + 1, 0, 0, true},
		{2 << 20, 0, 0, true},
	} {
		conn := f.dial(t)
		in := bufio.NewReader(conn)
		for range 2 { // the second finds the buffers that the first has grown
			text := request(c.selector, c.token, c.body)
			sent := make(chan error, 1)
			go func() { _, err := io.WriteString(conn, text+request(1, 2, 3)); sent <- err }()
			for i, want := range []string{fmt.Sprint(c.selector, c.token, c.body), "1 2 3"} {
				resp, err := http.ReadResponse(in, nil)
				if err != nil && c.refused {
					break // unsent bytes can reset the connection
				}
				if err != nil {
					t.Fatalf("%+v: request %d: %v", c, i, err)
				}
				body, _ := io.ReadAll(resp.Body)
				if c.refused {
					if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
						t.Errorf("%+v: got %d, want 431", c, resp.StatusCode)
					}
					break
				}
				if resp.StatusCode != http.StatusOK || string(body) != want {
					t.Errorf("%+v: request %d: %d %s, want %s", c, i, resp.StatusCode, body, want)
				}
			}
			err := <-sent
			if c.refused {
				break
			}
			if err != nil {
				t.Error(err)
			}
		}
		conn.Close()
	}
}

// TestOldClients checks that a client without chunked encoding gets a complete long response, and that a truncated
// one does not look complete.
func TestOldClients(t *testing.T) {
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/long", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, nethttp.MaxBuffered+1)) }))
		routes.Handle("/late", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Write(make([]byte, nethttp.MaxBuffered+1))
			panic("boom")
		}))
	})
	get := func(path string) string {
		c := f.dial(t)
		io.WriteString(c, "GET "+path+" HTTP/1.0\r\n\r\n")
		out, _ := io.ReadAll(c) // the server may reset the connection
		return string(out)
	}
	out := get("/long")
	head, body, _ := strings.Cut(out, "\r\n\r\n")
	if !strings.Contains(head, fmt.Sprintf("Content-Length: %d", nethttp.MaxBuffered+1)) || strings.Contains(head, "chunked") || len(body) != nethttp.MaxBuffered+1 {
		t.Errorf("got head %q and %d bytes of body, want a Content-Length of %d", head, len(body), nethttp.MaxBuffered+1)
	}
	if out := get("/late"); strings.HasPrefix(out, "HTTP/1.1 200") {
		t.Errorf("got %.40q after a panic, want no status 200", out)
	}
}

// pace is a step of a client: it sends a piece, and waits.
type pace struct {
	piece string
	wait  time.Duration
}

// TestSlowClients checks that a slow client has as much time as upstream's server gives, no less and not much more.
func TestSlowClients(t *testing.T) {
	const head = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n"
	drip := func(first string, piece string, n int, wait time.Duration) []pace {
		paces := []pace{{first, wait}}
		for range n {
			paces = append(paces, pace{piece, wait})
		}
		return paces
	}
	for _, c := range []struct {
		name     string
		paces    []pace
		status   string        // of the response; "" if there may be none
		from, to time.Duration // when it is received
	}{
		{"fast", []pace{{head + "\r\n0123456789", 0}}, "200", 0, 0},
		{"slow upload", append([]pace{{head + "\r\n", time.Second}}, drip("", "0", 10, 5*time.Second)...), "200", 50 * time.Second, 60 * time.Second},
		{"endless upload", append([]pace{{head + "\r\n", time.Second}}, drip("", "0", 8, 10*time.Second)...), "504", 60 * time.Second, 66 * time.Second},
		{"endless header", drip("GET /x HTTP/1.1\r\nHost: h\r\n", "A: b\r\n", 100, 2*time.Second), "408", 32 * time.Second, 40 * time.Second},
		{"endless line", drip("GET /x", "x", 1000, time.Second), "408", 32 * time.Second, 40 * time.Second},
		{"silence", []pace{{"", time.Hour}}, "", 32 * time.Second, 38 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkPace(t, c.paces, c.status, c.from, c.to) })
		})
	}
}

func checkPace(t *testing.T, paces []pace, status string, from, to time.Duration) {
	s := newIdleServer(t, Config{}, map[string]http.HandlerFunc{"/x": echo})
	client, server := net.Pipe()
	start := time.Now()
	var sending, serving sync.WaitGroup
	serving.Go(s.http1.Session(server).Serve)
	sending.Go(func() {
		for _, p := range paces {
			if p.piece != "" {
				if _, err := io.WriteString(client, p.piece); err != nil {
					return
				}
			}
			time.Sleep(p.wait)
		}
	})
	line, _ := bufio.NewReader(client).ReadString('\n')
	took := time.Since(start)
	if got, _, _ := strings.Cut(strings.TrimPrefix(line, "HTTP/1.1 "), " "); got != status || took < from || took > to {
		t.Errorf("%q after %v, want %s from %v to %v", line, took, status, from, to)
	}
	client.Close()
	sending.Wait()
	serving.Wait()
	s.handlers.Wait()
}

// TestIdleConnectionsEnd checks that an idle connection ends, but not before clients stop using one.
func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newIdleServer(t, Config{}, nil)
		client, server := net.Pipe()
		var serving sync.WaitGroup
		serving.Go(s.http1.Session(server).Serve)
		in := bufio.NewReader(client)
		for range 3 {
			if _, err := io.WriteString(client, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			time.Sleep(89 * time.Second)
		}
		start := time.Now()
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("read: %v", err)
		}
		if took := time.Since(start); took < time.Second || took > 8*time.Second {
			t.Errorf("the connection ended %v after the last request, want 90 to 97 seconds", 89*time.Second+took)
		}
		serving.Wait()
	})
}

// brokenListener accepts one connection and then fails for good.
type brokenListener struct {
	net.Listener
	accepted atomic.Bool
}

func (l *brokenListener) Accept() (net.Conn, error) {
	if l.accepted.Swap(true) {
		return nil, syscall.EINVAL
	}
	return l.Listener.Accept()
}

// TestRunEndsWhenNothingIsAccepted checks that the server ends when its listener fails, even with open connections.
func TestRunEndsWhenNothingIsAccepted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config, _ := testcert.Loopback(t)
	s := newServer(Config{Listener: &brokenListener{Listener: l}, TLS: config, Timeouts: Timeouts{ShutdownGrace: time.Millisecond}})
	c, err := net.Dial("tcp", l.Addr().String()) // and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := s.Run(t.Context()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Run: %v", err)
	}
}
