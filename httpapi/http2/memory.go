package http2

import (
	"sync"

	"k8s.io/klog/v2"

	"github.com/larder-io/larder/internal/invariants"
)

// memoryUsage counts the bytes that one connection keeps in memory for its client: headers until their exchanges end,
// bodies until they are read or discarded, and responses while they wait for the client. Conn.mu guards it.
//
// Each kind has a limit. Headers take at most maxHeaders, and the header that is being read twice MaxHeaderBytes. The
// window of the connection limits bodies. Each byte of that window is in one of three states: the client may send it
// (room), a stream has it (held), or it was freed but no WINDOW_UPDATE was sent for it (unreturned). Only the pool of
// the server limits responses.
//
// Invariant: room + held + unreturned == capacity, and headers <= maxHeaders.
//
// The capacity is the sum of the windows of all streams that may be open, of the grants to large bodies, and of the
// maximum of unreturned. So a client can always send as much as the window of any stream allows, and streams never wait
// for each other.
type memoryUsage struct {
	capacity      int64
	room          int64
	held          int64
	unreturned    int64
	maxUnreturned int64

	headers    int64
	maxHeaders int64
	gathered   int64 // size of the header that is still arriving

	// A body larger than the window of its stream is granted the rest when ReadBody requests it, in the order of
	// requests.
	large   int64     // bytes that can be granted
	waiting []*stream // streams that wait for their grant

	// Invariant: pooled is the sum of headers times headerCopies, of gathered, of the part of held that no ReadBody has
	// requested, and of the responses that wait for the client.
	pooled int64
	share  int64 // of the server's pool
}

const (
	// largeBodies is how many bodies of the maximum size a connection may send at a time. Bodies that fit into the
	// windows of their streams do not count.
	largeBodies = 8
	// largeHeaders is how many pending headers of the maximum size a connection may have. Usual headers are a thousand
	// times smaller.
	largeHeaders = 4
	// headerCopies is the memory of a header in the pool, as a multiple of its size: the exchange copies parts of it,
	// and an error may quote it.
	headerCopies = 4
)

func newMemoryUsage(config *Config) memoryUsage {
	large := largeBodies * config.MaxBodyBytes
	window := streamWindow(config)
	capacity := int64(config.MaxStreams+1)*window + large
	return memoryUsage{
		capacity: capacity, room: capacity, maxUnreturned: window, large: large,
		maxHeaders: largeHeaders * int64(config.MaxHeaderBytes),
	}
}

// defaultWindow is how much of a body kube-apiserver lets a client send before a handler reads it (apiserver
// pkg/server/secure_serving.go).
const defaultWindow = 256 << 10

// streamWindow is how much of a body a client may send before a handler asks for it. It is smaller if MaxStreams is
// very large, because the window of a connection is limited.
func streamWindow(config *Config) int64 {
	return min(defaultWindow, (maxWindow-largeBodies*config.MaxBodyBytes)/int64(config.MaxStreams+1))
}

// receive deducts n bytes from the client's window. It returns false if the window is smaller.
func (m *memoryUsage) receive(n int64) bool {
	if n > m.room {
		return false
	}
	m.room -= n
	m.held += n
	return true
}

// free releases n bytes. It returns the increase that the client's window must get.
func (m *memoryUsage) free(n int64) (more int64) {
	m.held -= n
	if m.unreturned += n; m.unreturned < m.maxUnreturned {
		return 0
	}
	more, m.unreturned = m.unreturned, 0
	m.room += more
	return more
}

// addHeader charges a header of n bytes, and reports whether there is room for it.
func (m *memoryUsage) addHeader(n int64) bool {
	if m.headers+n > m.maxHeaders {
		return false
	}
	m.headers += n
	m.pooled += headerCopies * n
	return true
}

// freeHeader undoes addHeader.
func (m *memoryUsage) freeHeader(n int64) {
	m.headers -= n
	m.pooled -= headerCopies * n
}

// waitCost is the memory of a stream whose response waits for the client: its goroutine, the exchange, and the request.
const waitCost = 24 << 10

// chargeLocked counts the response while it waits for the client. The writer of the response calls it, and refundLocked
// after that.
func (st *stream) chargeLocked() {
	st.charged = waitCost + st.owned
	st.c.memory.pooled += st.charged
	if invariants.Enabled {
		st.c.memoryHolders[st] = struct{}{} // checkLocked may have removed a stream that has ended
	}
}

func (st *stream) refundLocked() {
	st.c.memory.pooled -= st.charged
	st.charged = 0
}

// grant grants memory to the waiting streams in their order, until one needs more than is left.
func (m *memoryUsage) grant() {
	for len(m.waiting) > 0 {
		st := m.waiting[0]
		if n := st.body.wants; n > 0 {
			if n > m.large {
				return
			}
			m.large -= n
			st.body.granted, st.body.wants = n, 0
			st.increaseLocked(n)
		}
		m.waiting[0], m.waiting = nil, m.waiting[1:]
	}
	m.waiting = nil
}

// unlock releases c.mu after c.memory may have changed.
func (c *Conn) unlock() {
	c.checkLocked()
	var largest *Conn
	if share := (max(0, c.memory.pooled-poolFree) + poolStep - 1) / poolStep * poolStep; share != c.memory.share {
		c.memory.share = share
		largest = c.s.pool.setShare(c, share)
	}
	c.mu.Unlock()
	if largest != nil {
		klog.ErrorS(nil, "HTTP/2 requests and responses exceed their memory limit; closed the connection that held the most", "from", largest.conn.RemoteAddr())
		largest.broken()
	}
}

// checkLocked asserts, in builds tagged invariants, that c.memory agrees with the streams.
func (c *Conn) checkLocked() {
	if !invariants.Enabled {
		return
	}
	m := &c.memory
	var headers, held, granted int64
	pooled := m.gathered
	for st := range c.memoryHolders {
		headers += st.header
		pooled += headerCopies*st.header + st.charged
		if b := st.body; b != nil {
			held += int64(len(b.data))
			granted += b.granted
			if !b.whole {
				pooled += int64(len(b.data))
			}
		}
		if b := st.body; (st.sent || st.endReason != nil) && st.header+st.charged == 0 && (b == nil || len(b.data) == 0 && b.granted == 0) {
			delete(c.memoryHolders, st)
		}
	}
	invariants.Assertf(m.room+m.held+m.unreturned == m.capacity && m.room >= 0 && m.unreturned >= 0 && m.held == held,
		"httpapi: room %d + held %d (by streams %d) + unreturned %d is not %d", m.room, m.held, held, m.unreturned, m.capacity)
	invariants.Assertf(m.headers == headers && headers <= m.maxHeaders, "httpapi: headers %d (of streams %d) of at most %d", m.headers, headers, m.maxHeaders)
	invariants.Assertf(m.large >= 0 && m.large+granted == largeBodies*c.s.config.MaxBodyBytes, "httpapi: large %d, granted %d", m.large, granted)
	invariants.Assertf(m.pooled == pooled, "httpapi: pooled %d (of streams %d)", m.pooled, pooled)
}

// memoryPool is the memory that the connections of a server share for pooled bytes: request bodies that no handler has
// read yet, and responses that wait for their clients. A connection takes its share in steps, beyond poolFree. When the
// pool is empty, the connection with the largest share ends.
type memoryPool struct {
	mu     sync.Mutex
	left   int64           // guarded by mu
	shares map[*Conn]int64 // guarded by mu: of connections that have one
}

const (
	poolSize = 256 << 20
	// maxResponseCharge limits what one response with a Body or Reader counts for, so that a list of any size can be
	// sent.
	maxResponseCharge = poolSize / 4
	// poolFree is the memory that a connection may hold without a share of the pool: the headers of usual requests
	// and small bodies, or one waiting response.
	poolFree = 32 << 10
	poolStep = 32 << 10
)

// setShare sets the share of c. It returns the connection that must end because the pool is exhausted, or nil.
func (p *memoryPool) setShare(c *Conn, share int64) (largest *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.expelled {
		return nil
	}
	p.left += p.shares[c] - share
	if p.shares[c] = share; share == 0 {
		delete(p.shares, c)
	}
	if p.left >= 0 {
		return nil
	}
	for other, its := range p.shares {
		if largest == nil || its > p.shares[largest] {
			largest = other
		}
	}
	p.left += p.shares[largest]
	delete(p.shares, largest)
	largest.expelled = true
	return largest
}
