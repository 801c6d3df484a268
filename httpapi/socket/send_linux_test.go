package socket

import (
	"crypto/tls"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/larder-io/larder/internal/proctest/testcert"
)

// pair returns a TLS connection over a TCP, and the TCP. Its client reads everything and reports the size of each
// read.
func pair(t testing.TB) (*tls.Conn, *TCP, <-chan int) {
	t.Helper()
	config, pool := testcert.Loopback(t)
	config.DynamicRecordSizingDisabled = true
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	read := make(chan int, 1<<16)
	go func() {
		defer close(read)
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: pool})
		if err != nil {
			return
		}
		defer c.Close()
		for p := make([]byte, recordSize); ; {
			n, err := c.Read(p)
			if err != nil {
				return
			}
			read <- n
		}
	}()
	raw, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	tcp := NewTCP(raw.(*net.TCPConn))
	c := tls.Server(tcp, config)
	t.Cleanup(func() {
		c.Close()
		for range read {
		}
	})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	return c, tcp, read
}

// sent returns how many packets with data were sent, and how many bytes the kernel keeps for
// a packet to be filled.
func sent(t testing.TB, tcp *TCP) (packets, kept uint32) {
	t.Helper()
	var info *unix.TCPInfo
	var infoErr error
	if err := tcp.raw.Control(func(fd uintptr) {
		info, infoErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil || infoErr != nil {
		t.Fatal(err, infoErr)
	}
	return info.Data_segs_out, info.Notsent_bytes
}

// TestRecordsOfOneWriteLeaveTogether writes as much as several records hold: it makes fewer
// packets than records, and the last is not held back.
func TestRecordsOfOneWriteLeaveTogether(t *testing.T) {
	c, tcp, read := pair(t)
	for _, size := range []int{1, recordSize, recordSize + 1, 3*recordSize - 7, 3 * recordSize, 3*recordSize + 100} { // less than the client's window

		before, _ := sent(t, tcp)
		n, err := Write(c, make([]byte, size))
		if err != nil || n != size {
			t.Fatal(n, err)
		}
		after, kept := sent(t, tcp)
		if records, most := (size+recordSize-1)/recordSize, 2; int(after-before) > min(records, most) {
			t.Errorf("%d bytes, %d records, made %d packets", size, records, after-before)
		}
		if kept > 0 {
			t.Errorf("%d of %d bytes are not sent", kept, size)
		}
		for n > 0 {
			n -= <-read
		}
		if coming := tcp.coming.Load(); coming != 0 {
			t.Errorf("%d bytes are still to come after a write", coming)
		}
	}
}

// TestMoreLeavesWithTheNext checks that bytes sent with more are kept until the next write, and leave with it in one
// packet.
func TestMoreLeavesWithTheNext(t *testing.T) {
	c, tcp, read := pair(t)
	for _, size := range []int{1, 1000, recordSize - 100, recordSize} {
		before, _ := sent(t, tcp)
		if err := tcp.Send(c, make([]byte, size), true, nil); err != nil {
			t.Fatal(err)
		}
		if after, kept := sent(t, tcp); after != before || int(kept) < size {
			t.Errorf("%d bytes made %d packets, and %d are kept", size, after-before, kept)
		}
		if err := tcp.Send(c, make([]byte, size), false, nil); err != nil {
			t.Fatal(err)
		}
		after, kept := sent(t, tcp)
		if after-before != 1 || kept > 0 {
			t.Errorf("twice %d bytes made %d packets, and %d are kept", size, after-before, kept)
		}
		for n := 2 * size; n > 0; {
			n -= <-read
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	c, _, read := pair(b)
	go func() {
		for range read {
		}
	}()
	p := make([]byte, 4*recordSize)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Write(c, p); err != nil {
			b.Fatal(err)
		}
	}
}
