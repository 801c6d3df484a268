package httpapi

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// stallLimit is how long, during shutdown, a client may read nothing of what waits for it,
// stallPoll how often that is looked at.
const (
	stallLimit = 5 * time.Second
	stallPoll  = 500 * time.Millisecond
)

// queued returns how many bytes the kernel holds for the peer that it has not
// acknowledged: 0 if there is no telling.
func queued(c net.Conn) int {
	raw, ok := socket(c)
	if !ok {
		return 0
	}
	bytes := 0
	_ = raw.Control(func(fd uintptr) { bytes, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }) // closed: 0
	return bytes
}

// cutStalled closes connections whose clients do not read, until ctx ends. It is for
// shutdown, which must not wait for them; it costs those who read nothing.
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
			bytes := queued(c)
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

// closeNow closes c without waiting for its peer: TLS says farewell only where there is
// room for that.
func closeNow(c net.Conn) {
	if secure, ok := c.(*conn); ok && queued(c) > 0 {
		secure.from.forget(secure)
		secure.NetConn().Close()
		return
	}
	c.Close()
}

// cutOff closes what is below TLS, so that whoever waits for c's peer waits no more.
func cutOff(c net.Conn) {
	if secure, ok := c.(*conn); ok {
		secure.NetConn().Close()
		return
	}
	c.Close()
}
