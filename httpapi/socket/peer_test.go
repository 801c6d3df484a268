package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/larder-io/larder/internal/proctest"
)

// TestReadinessEnds checks that bytes, the peer's end, a deadline and Close end the wait.
func TestReadinessEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, c := range map[string]struct {
		end  func(client, server net.Conn)
		want error
	}{
		"bytes":    {func(client, _ net.Conn) { client.Write([]byte("a")) }, nil},
		"the end":  {func(client, _ net.Conn) { client.Close() }, io.EOF},
		"deadline": {func(_, server net.Conn) { server.SetReadDeadline(time.Now()) }, os.ErrDeadlineExceeded},
		"close":    {func(_, server net.Conn) { server.Close() }, net.ErrClosed},
	} {
		for _, before := range []bool{true, false} {
			client, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			if before {
				c.end(client, server)
			}
			go func() {
				s := NewTCP(server.(*net.TCPConn))
				_, err := s.AwaitRead(s, make([]byte, 1))
				waited <- err
			}()
			if !before {
				c.end(client, server)
			}
			if err := <-waited; !errors.Is(err, c.want) {
				t.Errorf("%s, before waiting %t: %v, want %v", name, before, err, c.want)
			}
			client.Close()
			server.Close()
		}
	}
}

// TestFailedWritesAreErrors checks that a write returns the error of the kernel, and a passed deadline.
func TestFailedWritesAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(*net.TCPConn) error
		want error
	}{
		"end":      {(*net.TCPConn).CloseWrite, unix.EPIPE},
		"deadline": {func(c *net.TCPConn) error { return c.SetWriteDeadline(time.Now()) }, os.ErrDeadlineExceeded},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := NewTCP(conn.(*net.TCPConn))
		if err := c.fail(s.TCPConn); err != nil {
			t.Fatal(err)
		}
		if n, err := s.Write([]byte("a")); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: wrote %d bytes, %v", name, n, err)
		}
		conn.Close()
		l.Close()
	}
}

// TestAliveReadsAheadWithinItsBudget checks that a client that keeps sending blocks Alive no longer than any other,
// and that Alive keeps its bytes up to the budget.
func TestAliveReadsAheadWithinItsBudget(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		for {
			if _, err := client.Write(bytes.Repeat([]byte("a"), 500)); err != nil {
				return
			}
		}
	}()
	var early []byte
	for len(early) < MaxEarly {
		if !Alive(server, &early) {
			t.Fatal("a client that sends is taken for gone")
		}
	}
	if !Alive(server, &early) || !bytes.Equal(early, bytes.Repeat([]byte("a"), MaxEarly)) {
		t.Errorf("kept %d bytes", len(early))
	}
	server.Close()
	if Alive(server, &early) {
		t.Error("a closed connection is taken for alive")
	}
}

// TestAliveSeesTheEndBehindBytes checks that a client that has sent more than the budget and then leaves is detected
// as gone.
func TestAliveSeesTheEndBehindBytes(t *testing.T) {
	client, server := connected(t)
	if _, err := client.Write(make([]byte, 4*MaxEarly)); err != nil {
		t.Fatal(err)
	}
	var early []byte
	for len(early) < MaxEarly {
		if !Alive(server, &early) {
			t.Fatal("a client that sends is taken for gone")
		}
	}
	if !Alive(server, &early) || len(early) != MaxEarly {
		t.Errorf("kept %d bytes", len(early))
	}
	client.Close()
	proctest.Eventually(t, "the client has left", func() error {
		if Alive(server, &early) {
			return errors.New("it is taken for alive")
		}
		return nil
	})
}

// TestAliveReadsNothingForAFullSocket checks that Alive does not read from a client that does not read: TLS might
// have to respond, and that write would wait for the client.
func TestAliveReadsNothingForAFullSocket(t *testing.T) {
	client, server := connected(t)
	if _, err := client.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	raw, _ := rawConn(server)
	for full := false; !full; {
		_ = server.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = server.Write(make([]byte, 1<<20)) // until the deadline
		_ = raw.Control(func(fd uintptr) { full = poll(fd)&unix.POLLOUT == 0 })
	}
	var early []byte
	if !Alive(server, &early) || len(early) > 0 {
		t.Errorf("read %q, or taken for gone", early)
	}
	client.Close()
	proctest.Eventually(t, "the client has left", func() error {
		if Alive(server, &early) {
			return errors.New("it is taken for alive")
		}
		return nil
	})
}

// connected returns the ends of a TCP connection, which the end of the test closes.
func connected(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}
