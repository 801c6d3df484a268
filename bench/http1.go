package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// http1Link is an HTTP/1.1 connection. Client and server share the machine, so that it writes
// requests itself: net/http's Transport needs two goroutines for each connection.
type http1Link struct {
	net.Conn
	r    *bufio.Reader
	base string
	head []byte // header lines that all requests have
	req  []byte
	stop func() bool
}

// dialHTTP1 opens an HTTP/1.1 connection.
func (t *Target) dialHTTP1(ctx context.Context, header http.Header, buffer int) (*http1Link, error) {
	raw, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	l := &http1Link{Conn: raw, r: bufio.NewReaderSize(raw, buffer), base: t.base}
	var head bytes.Buffer
	fmt.Fprintf(&head, " HTTP/1.1\r\nHost: %s\r\n", t.host)
	_ = header.Write(&head) // a bytes.Buffer takes all
	l.head = head.Bytes()
	l.stop = context.AfterFunc(ctx, l.abort)
	return l, nil
}

// connect opens a connection for HTTP/1.1.
func (t *Target) connect(ctx context.Context) (net.Conn, error) {
	dialing, cancel := t.dialing(ctx)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(dialing, "tcp", t.host)
	if err != nil {
		return nil, t.dialFailed(ctx, dialing, err)
	}
	if t.tls == nil {
		return raw, nil
	}
	config := t.tls
	if t.shared != nil { // the server speaks no HTTP/2
		config = config.Clone()
		config.NextProtos = nil
	}
	secured := tls.Client(raw, config)
	if err := secured.HandshakeContext(dialing); err != nil {
		raw.Close()
		return nil, t.dialFailed(ctx, dialing, err)
	}
	return secured, nil
}

// dialing returns a context that bounds the opening of a connection.
func (t *Target) dialing(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.Timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, t.Timeout)
}

// dialFailed says why no connection was opened.
func (t *Target) dialFailed(ctx, dialing context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(dialing.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: no connection to %s within %v", ErrTimeout, t.host, t.Timeout)
	}
	return fmt.Errorf("bench: %w", err)
}

func (l *http1Link) roundTrip(r *call) (*http.Response, error) {
	b := append(l.req[:0], r.method...)
	b = append(b, ' ')
	b = append(b, l.base...)
	b = append(b, r.path...)
	b = append(b, l.head...)
	b = append(b, "Accept: "...)
	b = append(b, r.accept...)
	if r.encoding != "" {
		b = append(b, "\r\nAccept-Encoding: "...)
		b = append(b, r.encoding...)
	}
	if r.body != nil {
		b = append(b, "\r\nContent-Type: "...)
		b = append(b, r.kind...)
		b = append(b, "\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
	}
	b = append(b, "\r\n\r\n"...)
	b = append(b, r.body...)
	l.req = b
	if _, err := l.Write(b); err != nil {
		return nil, err
	}
	return http.ReadResponse(l.r, nil)
}

// abort sets a deadline in the past, which ends reads and writes.
func (l *http1Link) abort() { _ = l.SetDeadline(time.Unix(1, 0)) }

func (l *http1Link) close() {
	l.stop()
	l.Close()
}

// shrink makes the kernel buffer few of the bytes that are left unread.
func (l *http1Link) shrink() {
	raw := l.Conn
	if secured, ok := raw.(*tls.Conn); ok {
		raw = secured.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(smallBuffer)
	}
}
