package http1

import (
	"context"
	"net"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
)

// stallLimit is how long, during shutdown, a client may read nothing of what was written to
// it; stallPoll is how often the server checks that.
const (
	stallLimit = 5 * time.Second
	stallPoll  = 500 * time.Millisecond
)

// cutStalled closes connections to clients that do not read, until ctx ends. It is for
// shutdown, which must not wait for them. Only clients that read nothing lose by it.
func (l *listener) cutStalled(ctx context.Context) {
	type standing struct {
		bytes int
		since time.Time
	}
	stands := make(map[*conn]standing)
	ticker := time.NewTicker(stallPoll)
	defer ticker.Stop()
	for {
		now := time.Now()
		for _, c := range l.list() {
			bytes := socket.Queued(c)
			before, known := stands[c]
			switch {
			case bytes == 0:
				delete(stands, c)
			case !known || before.bytes != bytes:
				stands[c] = standing{bytes, now}
			case now.Sub(before.since) >= stallLimit:
				c.NetConn().Close()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// closeNow closes c without waiting for its peer: it sends TLS's close_notify only if
// nothing else is waiting to be sent.
func closeNow(c net.Conn) {
	if secure, ok := c.(*conn); ok && socket.Queued(c) > 0 {
		secure.from.forget(secure)
		secure.NetConn().Close()
		return
	}
	c.Close()
}
