package http1

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/larder-io/larder/httpapi/http2"
)

// visit is a connection while it is served, from before the handshake on: by a [Session] or,
// if the client chooses HTTP/2, by a [http2.Conn]. It knows whether a request is under way.
type visit struct {
	conn  net.Conn
	began time.Time
	state atomic.Uint32              // one of those below
	http2 atomic.Pointer[http2.Conn] // nil for HTTP/1.1, and before that is known
}

const (
	visitNew uint32 = iota // no request has begun
	visitIdle
	visitActive
	visitClosed // retire ended it while it waited
)

// retire ends the visit if it waits for a request, and reports whether it did; the caller then
// closes the connection. It leaves time to clients that were told to go, and to those that have
// sent no request yet.
func (v *visit) retire() bool {
	if m := v.http2.Load(); m != nil {
		return m.Retire()
	}
	return v.state.CompareAndSwap(visitIdle, visitClosed) ||
		time.Since(v.began) > newGrace && v.state.CompareAndSwap(visitNew, visitClosed)
}

// begin says that a request has begun, and reports false if the visit is over.
func (v *visit) begin() bool {
	return v.state.CompareAndSwap(visitNew, visitActive) || v.state.CompareAndSwap(visitIdle, visitActive)
}

// multiplex notes that m serves the connection from here on, and reports false if the visit
// is over.
func (v *visit) multiplex(m *http2.Conn) bool {
	v.http2.Store(m)
	return v.begin()
}

// answers reports whether the door still has something to answer on the connection: not if
// only HTTP/2 streams that handlers have taken over are left.
func (v *visit) answers() bool {
	m := v.http2.Load()
	return m == nil || m.Answers()
}

// underWay returns a function that reports whether the requests that are under way now have
// been answered; nil if there are none.
func (v *visit) underWay() (answered func() bool) {
	if m := v.http2.Load(); m != nil {
		return m.UnderWay()
	}
	if v.state.Load() != visitActive {
		return nil
	}
	return func() bool { return v.state.Load() != visitActive }
}

// farewell sends GOAWAY to a client that speaks HTTP/2. HTTP/1.1 has no such message.
func (v *visit) farewell() {
	if m := v.http2.Load(); m != nil {
		m.GoAway()
	}
}
