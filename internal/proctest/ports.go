package proctest

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// Ports are chosen below the range that systems use for outgoing connections, so that no outgoing
// connection takes a port while its server does not run.
const (
	firstPort = 17000
	lastPort  = 30000
)

// Port returns a free loopback TCP port. No other test gets the same port until this one
// ends.
func Port(t testing.TB) int {
	t.Helper()
	const tries = 1000
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if reserve(t, port) {
			return port
		}
	}
	t.Fatalf("no free port in %d tries", tries)
	return 0
}

// Ports returns n different ports as Port does.
func Ports(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		ports[i] = Port(t)
	}
	return ports
}

// reserve reports whether a TCP port is free. It holds the UDP port of the same number until the test ends, so that no
// other test takes the port.
func reserve(t testing.TB, port int) bool {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	lock, err := net.ListenPacket("udp4", address)
	if err != nil {
		return false
	}
	for _, on := range []string{address, fmt.Sprintf("0.0.0.0:%d", port)} {
		l, err := net.Listen("tcp4", on)
		if err != nil {
			lock.Close()
			return false
		}
		l.Close()
	}
	t.Cleanup(func() { lock.Close() })
	return true
}

// DialTLS opens a connection that the test's end closes. Reads and writes fail after Patience.
func DialTLS(t testing.TB, address string, config *tls.Config) *tls.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", address, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		t.Fatal(err)
	}
	return c
}
