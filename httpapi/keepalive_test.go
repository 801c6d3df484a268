package httpapi

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// probing probes the streams of p all the time until the test ends, as Sweep does now and then.
func (p *pair) probing(t *testing.T) {
	stop := make(chan struct{})
	var probes sync.WaitGroup
	probes.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				p.streams.Probe()
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		probes.Wait()
	})
}

// TestConnectionsOutliveWatches checks that a connection serves watches and other requests in turn. Requests sent
// during a watch are served after it, as by net/http's server.
func TestConnectionsOutliveWatches(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	h, err := upstreamHandler(p.ours.registry)
	if err != nil {
		t.Fatal(err)
	}
	reference := httptest.NewServer(h)
	defer reference.Close()
	theirs, err := net.Dial("tcp", reference.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	p.probing(t)
	const (
		watch = "GET /api/v1/nodes?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: h\r\n\r\n"
		get   = "GET /api/v1/nodes HTTP/1.1\r\nHost: h\r\n\r\n"
	)
	for name, c := range map[string]net.Conn{"ours": p.dial(t), "theirs": theirs} {
		in := bufio.NewReader(c)
		var head *http.Response
		begin := func() {
			if _, err := io.WriteString(c, watch); err != nil {
				t.Fatal(err)
			}
			if head, err = http.ReadResponse(in, nil); err != nil || head.Close {
				t.Fatalf("%s: got watch response %v and error %v, want an open connection", name, head, err)
			}
		}
		end := func() {
			if rest, err := io.ReadAll(head.Body); err != nil || len(rest) > 0 {
				t.Fatalf("%s: got %q and error %v, want the end of the watch", name, rest, err)
			}
		}
		send := func(text string) {
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
		}
		listed := func() {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s: reading the list: %v", name, err)
			}
			if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"kind":"NodeList"`) || resp.Close {
				t.Fatalf("%s: got %q and error %v, want a NodeList", name, body, err)
			}
		}
		begin()
		end()
		send(get)
		listed()
		begin()
		const pipelined = 200 // more than a watch reads ahead
		send(strings.Repeat(get, pipelined))
		end()
		for range pipelined {
			listed()
		}
	}
}

// TestWatchesOfClientsThatLeave checks that a watch ends when its client leaves, whatever the client has sent before.
func TestWatchesOfClientsThatLeave(t *testing.T) {
	p := newPair(t)
	for name, c := range map[string]struct {
		sent  int
		leave func(*tls.Conn) error
	}{
		"closed":                            {0, (*tls.Conn).Close},
		"closed after a request":            {100, (*tls.Conn).Close},
		"closed after many bytes":           {100 << 10, (*tls.Conn).Close},
		"closed TLS":                        {0, (*tls.Conn).CloseWrite},
		"closed TLS after a request":        {100, (*tls.Conn).CloseWrite},
		"closed the socket":                 {0, func(c *tls.Conn) error { return c.NetConn().Close() }},
		"closed the socket after a request": {100, func(c *tls.Conn) error { return c.NetConn().Close() }},
	} {
		conn := p.dial(t)
		if _, err := io.WriteString(conn, "GET /api/v1/nodes?watch=1 HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(make([]byte, c.sent)); err != nil {
			t.Fatal(err)
		}
		p.streams.Probe()
		if n, _ := openStreams(p.streams); n != 1 {
			t.Errorf("%s: got %d open watches before that, want 1", name, n)
		}
		if err := c.leave(conn); err != nil {
			t.Fatal(err)
		}
		proctest.Eventually(t, name+": the watch ends", func() error {
			if n, _ := openStreams(p.streams); n > 0 {
				p.streams.Probe()
				return fmt.Errorf("%d are open", n)
			}
			return nil
		})
	}
}
