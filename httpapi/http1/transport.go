package http1

import (
	"context"
	"net"
	"net/http"
	"sync"

	"github.com/valyala/fasthttp/fasthttputil"
)

// memoryListener accepts connections from within the process. Requests on them go through
// the same server code as requests from the network, and carry the identity of the process.
type memoryListener struct {
	*fasthttputil.InmemoryListener
	close func() error

	mu   sync.Mutex
	open map[*memoryConn]struct{} // guarded by mu
}

// memoryConn is the server's end of such a connection.
type memoryConn struct {
	net.Conn
	from *memoryListener
}

func newMemoryListener() *memoryListener {
	l := fasthttputil.NewInmemoryListener()
	return &memoryListener{
		InmemoryListener: l,
		close:            sync.OnceValue(l.Close),
		open:             make(map[*memoryConn]struct{}),
	}
}

// Close ends accepting. It may be called more than once.
func (l *memoryListener) Close() error { return l.close() }

// Accept implements net.Listener.
func (l *memoryListener) Accept() (net.Conn, error) {
	raw, err := l.InmemoryListener.Accept()
	if err != nil {
		return nil, err
	}
	c := &memoryConn{Conn: raw, from: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return c, nil
}

// RemoteAddr implements net.Conn. Audit records name it as the source of the request.
func (c *memoryConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// Close ends the connection.
func (c *memoryConn) Close() error {
	c.from.mu.Lock()
	delete(c.from.open, c)
	c.from.mu.Unlock()
	return c.Conn.Close()
}

func (l *memoryListener) closeAll() {
	l.mu.Lock()
	open := make([]*memoryConn, 0, len(l.open))
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}

// client returns a transport that dials l whatever host it is told, with "https"
// meaning the same as "http": nothing leaves the process.
func (l *memoryListener) client() *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return l.Dial()
	}
	return &http.Transport{
		DialContext:         dial,
		DialTLSContext:      dial,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 64,
	}
}
