package socket

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestReadinessEnds: bytes, the end, a deadline and a close end waiting.
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
		"the end":  {func(client, _ net.Conn) { client.Close() }, nil},
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
			var r readiness
			waited := make(chan error, 1)
			if before {
				c.end(client, server)
			}
			go func() { waited <- r.wait(server.(*net.TCPConn)) }()
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

func TestAliveReportsClientsThatKeepSending(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		for {
			if _, err := client.Write(make([]byte, 512)); err != nil {
				return
			}
		}
	}()
	if !Alive(server) {
		t.Error("a client that sends is taken for gone")
	}
	server.Close()
	if Alive(server) {
		t.Error("a closed connection is taken for alive")
	}
}
