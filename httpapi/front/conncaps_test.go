package front

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestPeers: an IPv4 address is a place of its own, however it is written; of IPv6
// addresses the first half is.
func TestPeers(t *testing.T) {
	peer := func(ip string) any { return peerOf(&net.TCPAddr{IP: net.ParseIP(ip), Zone: "eth0"}) }
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1", "fe80::2", true},
	} {
		if got := peer(c.a) == peer(c.b); got != c.same {
			t.Errorf("%s and %s: the same %v, want %v (%v, %v)", c.a, c.b, got, c.same, peer(c.a), peer(c.b))
		}
	}
}

// held is a connection with a request under way.
func (f *testServer) held(t *testing.T) (c net.Conn, in *bufio.Reader) {
	t.Helper()
	tc := f.dial(t)
	if _, err := io.WriteString(tc, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return tc, bufio.NewReader(tc)
}

// TestConnectionCaps: where as many connections are open as may be, newcomers take the
// place of those that wait for a request, and are refused if there are none. It is
// counted.
func TestConnectionCaps(t *testing.T) {
	for reached, config := range [lastCap]Config{capAll: {MaxConns: 3}, capPeer: {MaxConnsPerIP: 3}} {
		t.Run(capFlag(reached), func(t *testing.T) {
			began, release := make(chan struct{}), make(chan struct{})
			f := newTestServer(t, config, holding(began, release))
			var ins []*bufio.Reader
			for range 2 {
				_, in := f.held(t)
				<-began
				ins = append(ins, in)
			}
			// The third place is taken again and again: its owner waits for a request each time.
			for i := range 5 {
				c := f.dial(t)
				if _, err := io.WriteString(c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("newcomer %d: %v, %v", i, resp, err)
				}
				f.awaitIdle(t, 1)
			}
			if n := f.counts.displaced[reached].Load(); n != 4 {
				t.Errorf("%d connections were displaced, want 4", n)
			}
			_, in := f.held(t)
			<-began
			ins = append(ins, in)
			if c, err := tls.Dial("tcp", f.addr, &tls.Config{RootCAs: f.pool}); err == nil {
				c.Close()
				t.Error("a fourth connection was accepted beside three that are used")
			}
			if n := f.counts.refused[reached].Load(); n != 1 {
				t.Errorf("%d connections were refused, want 1", n)
			}
			if n := f.counts.open.Load(); n != 3 {
				t.Errorf("%d connections are open, want 3", n)
			}
			close(release)
			for _, in := range ins {
				if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("one that was used: %v, %v", resp, err)
				}
			}
		})
	}
}

// TestNewcomersFindRoom: where most connections come from and all of them are used, a
// newcomer takes the place of one from another address that waits for a request; but not
// if the newcomer's address has more places already.
func TestNewcomersFindRoom(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	f := newTestServer(t, Config{MaxConns: 5}, holding(began, release))
	defer close(release)
	from := func(ip string) (net.Conn, error) {
		raw, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { raw.Close() })
		c := tls.Client(raw, &tls.Config{RootCAs: f.pool, ServerName: "127.0.0.1"})
		return c, c.Handshake()
	}
	ask := func(c net.Conn, path string) {
		t.Helper()
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		c, err := from("127.0.0.2")
		if err != nil {
			t.Fatal(err)
		}
		ask(c, "/hold")
		<-began
	}
	for range 2 {
		c, err := from("127.0.0.3")
		if err != nil {
			t.Fatal(err)
		}
		ask(c, "/x")
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	f.awaitIdle(t, 2)
	c, err := from("127.0.0.4")
	if err != nil {
		t.Fatalf("a newcomer was refused beside two connections that wait: %v", err)
	}
	ask(c, "/x")
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a newcomer: %v, %v", resp, err)
	}
	f.awaitIdle(t, 2)
	if _, err := from("127.0.0.2"); err == nil {
		t.Error("who has most places got one more, of somebody who has less")
	}
	if refused, displaced := f.counts.refused[capAll].Load(), f.counts.displaced[capAll].Load(); refused != 1 || displaced != 1 {
		t.Errorf("%d were refused and %d displaced, want one each", refused, displaced)
	}
}

// peerConn is a connection from an address that nothing is said on.
type peerConn struct {
	scriptConn
	addr net.TCPAddr
}

func (c *peerConn) RemoteAddr() net.Addr { return &c.addr }

// crowded is a listener with connections from n addresses, all of them used, and no room.
func crowded(n int) (*listener, func(i int) net.Conn) {
	l := newListener(nil, &tls.Config{}, Protocols(true), connCaps{all: n}, new(connCounts))
	from := func(i int) net.Conn {
		return &peerConn{addr: net.TCPAddr{IP: net.IPv4(10, byte(i>>16), byte(i>>8), byte(i))}}
	}
	for i := range n {
		v := new(visit)
		v.state.Store(visitActive)
		l.track(from(i)).visit.Store(v)
	}
	return l, from
}

// TestRefusalsStayCheap: what it costs to refuse a newcomer does not grow with how many
// addresses the others come from.
func TestRefusalsStayCheap(t *testing.T) {
	proctest.OfThread.CheckGrowth(t, 2000, func(n int) func() {
		l, from := crowded(n)
		return func() {
			for i := range n {
				if l.track(from(n+i)) != nil {
					t.Error("a newcomer got the place of one who uses it")
				}
			}
		}
	})
}

// TestIdleAreFoundLater: a connection that begins to wait after all were looked at gives
// way soon.
func TestIdleAreFoundLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2 * smallOrigin
		l, from := crowded(n)
		l.caps.all++
		for range n { // all but one from the same address
			l.caps.all++
			v := new(visit)
			v.state.Store(visitActive)
			l.track(from(0)).visit.Store(v)
		}
		l.caps.all--
		if l.track(from(n)) != nil {
			t.Fatal("there is room")
		}
		for c := range l.peers[peerOf(from(0).RemoteAddr())].conns {
			c.visit.Load().state.Store(visitIdle)
		}
		if l.track(from(n)) != nil {
			t.Error("all were looked at once more")
		}
		time.Sleep(searchInterval)
		if l.track(from(n)) == nil {
			t.Error("nobody found one that waits")
		}
		if got := l.counts.displaced[capAll].Load(); got != 1 || l.open != l.caps.all {
			t.Errorf("%d were displaced, %d are open", got, l.open)
		}
	})
}

// awaitIdle waits until so many connections wait for a request.
func (f *testServer) awaitIdle(t *testing.T, want int) {
	t.Helper()
	proctest.Eventually(t, "a connection waits for a request", func() error {
		f.outer.mu.Lock()
		defer f.outer.mu.Unlock()
		idle := 0
		for v := range f.outer.open {
			if v.state.Load() == visitIdle {
				idle++
			}
		}
		if idle != want {
			return fmt.Errorf("%d do", idle)
		}
		return nil
	})
}
