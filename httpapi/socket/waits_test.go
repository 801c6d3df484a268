package socket

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// locked is a connection that writes one message after the other, like TLS.
type locked struct {
	*TCP
	mu sync.Mutex
}

func (l *locked) NetConn() net.Conn { return l.TCP }

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.TCP.Write(p)
}

// counts is a Waiter that counts its calls.
type counts struct{ waits, goesOn atomic.Int32 }

func (c *counts) Waits()   { c.waits.Add(1) }
func (c *counts) Resumed() { c.goesOn.Add(1) }

// TestWritersBehindTLS checks writes by TLS from the goroutine that reads. While such a write waits for the client, a
// second write must wait as well, and calls its Waiter. Each call of Waits is followed by a call of Resumed of the
// same Waiter.
func TestWritersBehindTLS(t *testing.T) {
	for name, early := range map[string]bool{"no writer before": false, "a writer before": true} {
		t.Run(name, func(t *testing.T) {
			l, client := lockedPair(t)
			WriterTo(l)
			var first, second counts
			one, two := Waiter(&first), Waiter(&second)
			if early {
				l.waiter.Store(&one)
			}
			var both sync.WaitGroup
			defer both.Wait()
			both.Go(func() { _, _ = l.Write(make([]byte, 32<<20)) })
			await := func(what string, done func() bool) {
				proctest.Eventually(t, what, func() error {
					if !done() {
						return errors.New("not yet")
					}
					return nil
				})
			}
			await("the response waits", l.blocked.Load)
			both.Go(func() {
				if err := l.Send(l, []byte("x"), false, &two); err != nil {
					t.Error(err)
				}
			})
			await("the second writer waits", func() bool { return second.waits.Load() == 1 })
			if n, err := io.CopyN(io.Discard, client, 32<<20+1); err != nil {
				t.Fatal(n, err)
			}
			both.Wait()
			if n := first.waits.Load(); n != first.goesOn.Load() || (n == 1) != early || second.goesOn.Load() != second.waits.Load() {
				t.Errorf("the writers waited %d and %d times, and continued %d and %d times", n, second.waits.Load(), first.goesOn.Load(), second.goesOn.Load())
			}
		})
	}
}

// lockedPair returns a connection and its client.
func lockedPair(t *testing.T) (*locked, net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return &locked{TCP: NewTCP(server.(*net.TCPConn))}, client
}
