package http1

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/internal/proctest"
)

// TestIPv6AddressesCountByNetwork checks that each IPv4 address counts alone, also as an IPv6 address, and that IPv6
// addresses count by their /64.
func TestIPv6AddressesCountByNetwork(t *testing.T) {
	peer := func(ip string) any { return addressOf(&net.TCPAddr{IP: net.ParseIP(ip), Zone: "eth0"}) }
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
			t.Errorf("%s and %s count as one: %v, want %v (%v, %v)", c.a, c.b, got, c.same, peer(c.a), peer(c.b))
		}
	}
}

// TestConnectionsAboveALimitAreClosed checks that a connection above a limit is closed at once and counted, and that
// another is accepted when one has ended.
func TestConnectionsAboveALimitAreClosed(t *testing.T) {
	for reached, config := range [numLimits]Config{limitAll: {Limits: Limits{MaxConns: 3}}, limitAddress: {Limits: Limits{MaxConnsPerIP: 3}}} {
		t.Run(fmt.Sprint(config.MaxConns, config.MaxConnsPerIP), func(t *testing.T) {
			f := newTestServer(t, config, echo(nil))
			connect := func() error {
				c, err := tls.Dial("tcp", f.addr, &tls.Config{RootCAs: f.pool})
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return err
			}
			first := f.dial(t)
			for range 2 {
				if err := connect(); err != nil {
					t.Fatal(err)
				}
			}
			if connect() == nil {
				t.Error("a fourth connection was accepted")
			}
			if n := f.Network.refused[reached].Load(); n != 1 {
				t.Errorf("%d connections were refused, want 1", n)
			}
			if n := len(f.Network.list(true)); n != 3 {
				t.Errorf("%d connections are open, want 3", n)
			}
			first.Close()
			proctest.Eventually(t, "a connection is accepted again", connect)
			f.Network.abort()
			if n := len(f.Network.addresses); n != 0 {
				t.Errorf("%d addresses are counted without connections, want 0", n)
			}
		})
	}
}

// fullListener has no file descriptor for the first connections.
type fullListener struct {
	net.Listener
	failures int
}

func (l *fullListener) Accept() (net.Conn, error) {
	if l.failures--; l.failures >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return nil, io.EOF
}

// TestFailuresToAcceptAreLoggedOnceAMinute checks that a server without free file descriptors continues to accept.
func TestFailuresToAcceptAreLoggedOnceAMinute(t *testing.T) {
	out := logFrom(t, "0")
	synctest.Test(t, func(t *testing.T) {
		config := Config{Limits: Limits{MaxHeaderBytes: 1 << 20, MaxBodyBytes: 1 << 20}}
		in := &fullListener{failures: 100} // one a second
		if err := New(config).Network.accept(in, nil); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	})
	klog.Flush()
	if n := strings.Count(strings.Join(out.pieces, ""), syscall.EMFILE.Error()); n != 2 {
		t.Errorf("the error was logged %d times, want 2: %q", n, out.pieces)
	}
}
