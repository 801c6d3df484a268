package consistency

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// link stands for the connections that one process opens to another.
type link struct{ from, to string }

// network carries every connection between the members of etcd, and from Larders to members, so that a test can cut
// links.
type network struct {
	mu      sync.Mutex
	changed *sync.Cond // signals changes of cut, mute and closed
	cut     map[link]bool
	mute    bool // cut links delay bytes; otherwise they break connections
	closed  bool
	conns   map[net.Conn]link // open connections

	listeners []net.Listener
	running   sync.WaitGroup
}

func newNetwork(t *testing.T) *network {
	n := &network{conns: make(map[net.Conn]link)}
	n.changed = sync.NewCond(&n.mu)
	t.Cleanup(n.close)
	return n
}

func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	for conn := range n.conns {
		conn.Close()
	}
	n.mu.Unlock()
	n.changed.Broadcast()
	for _, l := range n.listeners {
		l.Close()
	}
	n.running.Wait()
}

// sever cuts links until heal. With mute, the links delay all bytes; otherwise their connections break.
func (n *network) sever(mute bool, links ...link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mute, n.cut = mute, make(map[link]bool)
	for _, l := range links {
		n.cut[l] = true
	}
	for conn, l := range n.conns {
		if !mute && n.cut[l] {
			conn.Close()
		}
	}
}

// heal repairs all links; delayed bytes arrive.
func (n *network) heal() {
	n.mu.Lock()
	n.cut = nil
	n.mu.Unlock()
	n.changed.Broadcast()
}

// pass waits until the link works, and reports false if its connections are broken.
func (n *network) pass(l link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.cut[l] && n.mute && !n.closed {
		n.changed.Wait()
	}
	return !n.cut[l] && !n.closed
}

// hold records an open connection and its link. The returned function closes the connection.
func (n *network) hold(conn net.Conn, l link) func() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[conn] = l
	if n.closed {
		conn.Close()
	}
	return func() {
		conn.Close()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.conns, conn)
	}
}

// listen returns the address of a proxy to target, the process named to. from returns the name of the process that
// opened a connection, from the connection's first bytes. The proxy forwards no bytes until from returns ok.
func (n *network) listen(t *testing.T, to, target string, from func(begin []byte) (name string, ok bool)) string {
	t.Helper()
	return n.balance(t, to, []string{target}, from)
}

// balance is listen with several targets. Each connection goes to a random one.
func (n *network) balance(t *testing.T, to string, targets []string, from func(begin []byte) (name string, ok bool)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.listeners = append(n.listeners, l)
	n.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.running.Go(func() { n.carry(conn, to, targets[rand.IntN(len(targets))], from) })
		}
	})
	return l.Addr().String()
}

// carry forwards one connection.
func (n *network) carry(near net.Conn, to, target string, from func([]byte) (string, bool)) {
	defer n.hold(near, link{})()
	var begin []byte
	name, known := from(nil)
	for buffer := make([]byte, 4096); !known; name, known = from(begin) {
		count, err := near.Read(buffer)
		if err != nil {
			return
		}
		begin = append(begin, buffer[:count]...)
	}
	l := link{name, to}
	n.hold(near, l)
	if !n.pass(l) {
		return
	}
	far, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer n.hold(far, l)()
	var back sync.WaitGroup
	back.Go(func() {
		n.pump(near, far, l)
		near.Close()
	})
	n.pump(far, io.MultiReader(bytes.NewReader(begin), near), l)
	far.Close()
	near.Close()
	back.Wait()
}

// pump copies bytes until one side of the connection is closed.
func (n *network) pump(to io.Writer, from io.Reader, l link) {
	buffer := make([]byte, 64<<10)
	for {
		count, err := from.Read(buffer)
		if count > 0 {
			if !n.pass(l) {
				return
			}
			if _, err := to.Write(buffer[:count]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// always returns a from for links that only one process uses.
func always(name string) func([]byte) (string, bool) {
	return func([]byte) (string, bool) { return name, true }
}

// sender returns the ID of the member that opened a connection. etcd sends its ID with most requests to a peer
// (server/etcdserver/api/rafthttp). For other requests, such as those for the version, sender returns "".
func sender(begin []byte) (id string, ok bool) {
	head, _, complete := bytes.Cut(begin, []byte("\r\n\r\n"))
	_, after, _ := bytes.Cut(head, []byte("\r\nX-Server-From: "))
	from, _, _ := bytes.Cut(after, []byte("\r\n"))
	return string(from), complete
}

// TestNetwork checks that bytes do not pass severed links, and that links work again once healed.
func TestNetwork(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var echoes sync.WaitGroup
	defer echoes.Wait()
	defer server.Close()
	echoes.Go(func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			echoes.Go(func() {
				defer conn.Close()
				io.Copy(conn, conn)
			})
		}
	})
	n := newNetwork(t)
	defer n.close() // closes the connections, which ends the echoes
	way := func(from string) string { return n.listen(t, "server", server.Addr().String(), always(from)) }
	left, right := way("left"), way("right")
	dial := func(address string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	echo := func(conn net.Conn, text string) error {
		if _, err := io.WriteString(conn, text); err != nil {
			return err
		}
		got := make([]byte, len(text))
		_, err := io.ReadFull(conn, got)
		return err
	}
	l, r := dial(left), dial(right)
	for _, conn := range []net.Conn{l, r} {
		if err := echo(conn, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	n.sever(true, link{"left", "server"})
	kept := make(chan error, 2)
	go func() { kept <- echo(l, "kept back") }()
	fresh := dial(left)
	go func() { kept <- echo(fresh, "held") }()
	if err := echo(r, "not cut"); err != nil {
		t.Error(err)
	}
	select {
	case err := <-kept:
		t.Errorf("bytes passed a severed link, error %v", err)
	default:
	}
	n.heal()
	for range 2 {
		if err := <-kept; err != nil {
			t.Errorf("after the link is healed: %v", err)
		}
	}
	n.sever(false, link{"left", "server"})
	if err := echo(l, "broken"); err == nil {
		t.Error("a connection survived although its link is broken")
	}
	if err := echo(dial(left), "broken"); err == nil {
		t.Error("a connection was opened over a broken link")
	}
	if err := echo(r, "not cut"); err != nil {
		t.Error(err)
	}
	n.heal()
	if err := echo(dial(left), "whole"); err != nil {
		t.Error(err)
	}
}

// TestSender checks that the sender of a connection is known after the header of its first request.
func TestSender(t *testing.T) {
	const head = "GET /raft/stream HTTP/1.1\r\nHost: x\r\nX-Server-From: 8211f1d0f64f3269\r\nX-Raft-To: 1\r\n\r\n"
	for begin, want := range map[string]string{
		"": "", head[:60]: "", head: "8211f1d0f64f3269", head + "body": "8211f1d0f64f3269",
		"GET /version HTTP/1.1\r\nHost: x\r\n\r\nX-Server-From: y": "",
	} {
		id, known := sender([]byte(begin))
		if id != want && known || known != bytes.Contains([]byte(begin), []byte("\r\n\r\n")) {
			t.Errorf("%q: sender %q, known %v; want %q", begin, id, known, want)
		}
	}
}
