package http2

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-io/larder/httpapi/exchange"
)

// modelStream is the model's state of a stream.
type modelStream struct {
	id       uint32
	path     string
	header   int64 // the bytes that the memory accounting counts
	length   int64 // announced; -1: not announced
	sent     int64
	window   int64
	ended    bool          // the client has sent the whole body
	reset    bool          // by the client
	refused  bool          // by the server
	released bool          // release is closed
	release  chan struct{} // closed when the handler may respond

	padding  int    // of the response
	response string // set before the handler responds
	credit   int64  // bytes that the server may send
	got      int64  // bytes received of the response
	begun    bool   // the header of the response was received
	over     bool   // the end of the response, or a reset, was received
}

// responded reports whether the handler has responded.
func (s *modelStream) responded() bool { return s.begun || s.released && s.reset }

// awaitsEnd reports whether the client waits for the end of a response.
func (s *modelStream) awaitsEnd() bool { return s.begun && !s.over && !s.reset }

// held returns the number of bytes of the stream's body that the connection holds.
func (s *modelStream) held() int64 {
	switch {
	case s.responded(), s.refused:
		return 0
	case s.path == "/read": // until the handler has ended, even if the client has left
		return s.sent
	case s.path == "/hold" && !s.reset:
		return s.sent
	}
	return 0
}

// model drives a connection by random frames within its windows, and computes the memory that the server must hold.
type model struct {
	t       *testing.T
	r       *rand.Rand
	p       *peer
	streams []*modelStream
	next    uint32
	window  int64 // of the connection
	seen    int   // frames that were processed

	credit  int64 // bytes that the server may send on the connection
	initial int64 // bytes that it may send on a new stream
}

func (m *model) handler(c exchange.Carrier, received time.Time) *exchange.Exchange {
	x := new(exchange.Exchange)
	x.Init(c, received, nil)
	path, which, _ := strings.Cut(string(c.Target()), "?")
	var s *modelStream
	for _, s = range m.streams {
		if fmt.Sprint(s.id) == which {
			break
		}
	}
	response := []byte(path)
	switch path {
	case "/read":
		data, err := c.ReadBody(time.Now().Add(100 * time.Hour))
		<-s.release
		response = fmt.Appendf(nil, "%d %v", len(data), err)
	case "/hold":
		<-s.release
	case "/take":
		x.Hijack = func(to exchange.Hijacked) {
			defer to.Conn.Close()
			n := int64(0)
			if to.Body != nil {
				n, _ = io.Copy(io.Discard, to.Body)
			}
			_ = to.Begin(http.StatusOK, nil)
			s.response = fmt.Sprint(n, strings.Repeat("y", s.padding))
			if _, err := io.WriteString(to.Conn, s.response); err == nil {
				_ = to.End(nil)
			}
		}
		return x
	}
	response = append(response, strings.Repeat("y", s.padding)...)
	s.response = string(response)
	x.Send(http.StatusOK, "text/plain", response)
	return x
}

// open begins a stream.
func (m *model) open() {
	s := &modelStream{id: m.next, window: defaultWindow, length: -1, release: make(chan struct{}), credit: m.initial}
	s.padding = []int{0, 0, 100, 3000, 40_000, 200_000}[m.r.IntN(6)]
	m.next += 2
	s.path = []string{"/read", "/read", "/hold", "/refuse", "/take"}[m.r.IntN(5)]
	target := fmt.Sprint(s.path, "?", s.id)
	filler := strings.Repeat("x", []int{1, 100, 3000, 900_000}[m.r.IntN(4)])
	fields := []string{":method", "POST", ":scheme", "https", ":authority", "h", ":path", target, "filler", filler}
	s.header = int64(len("POST"+"https"+"h"+target)+4) + int64(len("filler"+filler)) + int64(unsafe.Sizeof(line{}))
	if s.ended = m.r.IntN(4) == 0; !s.ended && m.r.IntN(2) == 0 {
		s.length = []int64{0, 10, 5000, 200_000, 400_000, 1 << 20}[m.r.IntN(6)]
		length := fmt.Sprint(s.length)
		fields = append(fields, "content-length", length)
		s.header += int64(len("content-length"+length)) + int64(unsafe.Sizeof(line{}))
	}
	m.streams = append(m.streams, s)
	m.p.must(m.p.request(s.id, s.ended, fields...))
}

// send sends a piece of a stream's body.
func (m *model) send(s *modelStream) {
	room := min(m.window, s.window, initialFrame)
	if s.length >= 0 {
		room = min(room, s.length-s.sent)
	} else {
		room = min(room, 1<<20-s.sent) // the limit of a body
	}
	n := room
	if m.r.IntN(3) == 0 && room > 0 {
		n = m.r.Int64N(room + 1)
	}
	end := s.length >= 0 && s.sent+n == s.length || s.length < 0 && (s.sent+n == 1<<20 || m.r.IntN(100) == 0)
	padding := 0
	if m.r.IntN(4) == 0 && n+256 < room {
		padding = m.r.IntN(255) + 1
	}
	if n == 0 && !end {
		return
	}
	size := n
	if padding > 0 {
		size += int64(padding)
		m.p.must(m.p.framer.WriteDataPadded(s.id, end, make([]byte, n), make([]byte, padding-1)))
	} else {
		m.p.must(m.p.framer.WriteData(s.id, end, make([]byte, n)))
	}
	s.sent += n
	s.window -= size
	m.window -= size
	s.ended = end
}

// receive processes the server's frames.
func (m *model) receive() {
	synctest.Wait()
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	for _, h := range m.p.frames[m.seen:] {
		var of *modelStream
		for _, s := range m.streams {
			if s.id == h.id {
				of = s
			}
		}
		switch {
		case h.kind == http2.FrameGoAway || h.over:
			m.t.Fatalf("the connection ended: %+v", h)
		case h.kind == http2.FrameWindowUpdate && h.id == 0:
			m.window += h.more
		case of == nil:
		case h.kind == http2.FrameWindowUpdate:
			of.window += h.more
		case h.kind == http2.FrameRSTStream && h.code == http2.ErrCodeRefusedStream:
			of.refused = true
		case h.kind == http2.FrameRSTStream && h.code == http2.ErrCodeInternal && of.awaitsEnd() && of.path != "/take":
			of.over = true // the client has not read the response for WriteTimeout
		case h.kind == http2.FrameRSTStream && h.code == http2.ErrCodeCancel && of.awaitsEnd() && of.path == "/take":
			of.over = true
		case h.kind == http2.FrameRSTStream && h.code != http2.ErrCodeNo && h.code != http2.ErrCodeStreamClosed:
			m.t.Fatalf("stream %d was reset: %v", h.id, h.code)
		case h.kind == http2.FrameHeaders:
			of.begun, of.over = true, h.end
		case h.kind == http2.FrameData:
			of.got += int64(len(h.data))
			of.credit -= int64(len(h.data))
			m.credit -= int64(len(h.data))
			if of.over = h.end; h.end && !of.reset && of.got != int64(len(of.response)) {
				m.t.Fatalf("stream %d: received %d bytes, want %d", h.id, of.got, len(of.response))
			}
		}
	}
	m.seen = len(m.p.frames)
}

// check compares the memory that the server holds with the model's.
func (m *model) check() {
	m.receive()
	var held, headers, pooled int64
	for _, s := range m.streams {
		held += s.held()
		if s.path != "/read" { // otherwise the body was read
			pooled += s.held()
		}
		handled := (s.path == "/read" || s.path == "/hold") && !s.responded() && !s.refused
		if handled || s.awaitsEnd() && s.path != "/take" {
			headers += s.header
		}
		if !s.awaitsEnd() {
			continue
		}
		pooled += waitCost
		if s.path == "/take" {
			pooled += exchange.ChunkSize
		} else {
			pooled += int64(len(s.response))
		}
		if s.credit > 0 && m.credit > 0 {
			m.t.Fatalf("stream %d waits although %d bytes may be sent on it, and %d on the connection", s.id, s.credit, m.credit)
		}
	}
	pooled += headerCopies * headers
	c := m.p.server
	c.mu.Lock()
	defer c.unlock() // which asserts the invariants
	for _, st := range c.streams {
		if b := st.body; b != nil && cap(b.data) > 2*len(b.data)+initialFrame {
			m.t.Fatalf("stream %d has a buffer of %d bytes for %d bytes of its body", st.id, cap(b.data), len(b.data))
		}
	}
	l := &c.memory
	if l.held != held || l.headers != headers || l.room != m.window || l.pooled != pooled {
		m.t.Fatalf("the connection counts %d bytes of bodies, %d of headers, %d pooled, and a window of %d; want %d, %d, %d, %d",
			l.held, l.headers, l.pooled, l.room, held, headers, pooled, m.window)
	}
}

// step takes one random action.
func (m *model) step() {
	if len(m.streams) == 0 || m.r.IntN(12) == 0 {
		m.open()
		return
	}
	s := m.streams[m.r.IntN(len(m.streams))]
	gone := s.reset || s.refused || s.over
	switch what := m.r.IntN(40); {
	case what == 0 && !gone:
		m.p.must(m.p.framer.WriteRSTStream(s.id, http2.ErrCodeCancel))
		s.reset = true
	case what <= 2:
		m.end(s)
	case what == 3:
		m.p.must(m.p.framer.WritePing(false, [8]byte{}))
	case what == 4:
		time.Sleep(time.Second)
	case what == 5:
		m.resize([]int64{0, 5, 3000, 100_000}[m.r.IntN(4)])
	case what <= 7 && m.credit < 1<<20:
		m.widen(nil, m.r.Int64N(100_000)+1)
	case what <= 10 && !gone && s.credit < 1<<20:
		m.widen(s, m.r.Int64N(100_000)+1)
	case !s.ended && !gone && !s.begun:
		m.send(s)
	}
}

// end lets the handler of s respond.
func (m *model) end(s *modelStream) {
	if s.path != "/read" && s.path != "/hold" || s.refused || s.released || s.path == "/read" && !s.ended && !s.reset {
		return
	}
	close(s.release)
	s.released = true
}

// widen lets the server send n more bytes on s, or on the connection if s is nil.
func (m *model) widen(s *modelStream, n int64) {
	if s == nil {
		m.credit += n
		m.p.must(m.p.framer.WriteWindowUpdate(0, uint32(n)))
		return
	}
	s.credit += n
	m.p.must(m.p.framer.WriteWindowUpdate(s.id, uint32(n)))
}

// resize changes how much the server may send on each stream, which can make windows negative.
func (m *model) resize(initial int64) {
	for _, s := range m.streams {
		s.credit += initial - m.initial
	}
	m.initial = initial
	m.p.must(m.p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(initial)}))
}

// finish sends all bodies that are read to their ends, and waits until all streams have a response.
func (m *model) finish() {
	for progress := true; progress; {
		progress = false
		for _, s := range m.streams {
			if s.reset || s.refused || s.over {
				continue
			}
			if s.awaitsEnd() {
				m.widen(s, max(1, int64(len(s.response))-s.got-s.credit))
				m.widen(nil, max(1, int64(len(s.response))-m.credit))
				m.check()
				progress = true
				continue
			}
			for s.path != "/hold" && !s.ended && !s.begun && min(s.window, m.window) > 0 {
				m.send(s)
				m.receive()
				progress = true
			}
			if before := s.released; !before {
				m.end(s)
				progress = progress || s.released
			}
			m.check()
		}
	}
	for _, s := range m.streams {
		if s.begun && !s.over && !s.reset {
			m.t.Errorf("stream %d: received %d bytes of the response, and not its end", s.id, s.got)
		}
		if s.path == "/read" && !s.ended && !s.reset && !s.refused {
			m.t.Errorf("the client may send no more than %d of %d bytes on stream %d", s.sent, s.length, s.id)
		}
		m.end(s)
	}
	m.receive()
}

// release lets all handlers end.
func (m *model) release() {
	for _, s := range m.streams {
		if !s.released {
			close(s.release)
		}
	}
}

// TestConnectionMemoryMatchesItsModel checks that a connection holds only memory that its streams still need, and none
// when all have a response. The client sends random frames within its windows, and reads slowly. No stream waits for
// another: every body can be sent to its end. A response waits only for its windows.
func TestConnectionMemoryMatchesItsModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{t: t, r: rand.New(rand.NewPCG(seed, 0)), next: 1}
				window := []uint32{0, 5, 1 << 20}[seed%3] // for responses
				m.p = newPeer(t, Config{MaxStreams: 30}, m.handler, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				m.window, m.credit, m.initial = initialWindow, initialWindow, int64(window)
				defer m.release()
				for range 600 {
					m.step()
					m.check()
				}
				m.finish()
				if l := &m.p.server.memory; l.held != 0 || l.headers != 0 || l.pooled != 0 || l.large != largeBodies*(1<<20) {
					t.Errorf("after all responses the connection counts %d, %d, %d, %d; want 0, 0, 0, %d", l.held, l.headers, l.pooled, l.large, largeBodies*(1<<20))
				}
			})
		})
	}
}

// post opens a stream with a body.
func (p *peer) post(id uint32, path string) error {
	return p.request(id, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", path)
}

// TestConnectionWithTheMostMemoryIsClosed checks that when the connections of a server together hold more than their
// limit, the server closes the one that holds the most. Others continue, including the newest.
func TestConnectionWithTheMostMemoryIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := newServer(Config{Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			if string(c.Target()) == "/hold" {
				<-release
			}
			return echo(c, received)
		}})
		const size = 3 << 20
		s.pool.left = size
		send := func(p *peer, id uint32, n int) {
			_ = p.post(id, "/hold") // the server may have closed the connection
			for range n / initialFrame {
				_ = p.framer.WriteData(id, false, make([]byte, initialFrame))
			}
			synctest.Wait()
		}
		var small []*peer
		for range 3 {
			p := newPeerOf(t, s)
			send(p, 1, defaultWindow)
			small = append(small, p)
		}
		large := newPeerOf(t, s)
		for i := range uint32(8) {
			send(large, 2*i+1, defaultWindow)
		}
		small[0].must(small[0].framer.WritePing(false, [8]byte{}))
		for i := range uint32(8) { // until the memory is full
			send(large, 2*i+17, defaultWindow)
		}
		large.await("the end", func(h receivedFrame) bool { return h.over })
		close(release)
		<-large.served
		for _, p := range small {
			p.must(p.get(3, "/after"))
			if _, body, _ := p.ended(3); body != "/after" {
				t.Errorf("another client got %q, want /after", body)
			}
			if _, body, _ := p.ended(1); body != "/hold" {
				t.Errorf("another client's earlier request got %q, want /hold", body)
			}
		}
		synctest.Wait()
		if s.pool.left != size || len(s.pool.shares) != 0 {
			t.Errorf("after all responses %d bytes are left, want %d; shares %v", s.pool.left, size, s.pool.shares)
		}
	})
}

// TestUnreadBodiesTakeNoMemory checks that a body that the handler did not read to its end takes no memory while the
// response waits for a slow client.
func TestUnreadBodiesTakeNoMemory(t *testing.T) {
	for path, frames := range map[string]int{"/read": 100, "/late": 10, "/refuse": 10} {
		synctest.Test(t, func(t *testing.T) {
			readErr := make(chan error, 1)
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := echo(c, received)
				switch path {
				case "/read":
					_, err := c.ReadBody(time.Now().Add(time.Hour))
					readErr <- err
				case "/late":
					_, err := c.ReadBody(time.Now())
					readErr <- err
				}
				return x
			}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			p.must(p.post(1, path))
			if path == "/read" { // more than the limit of a body
				for range 1<<20/initialFrame + 1 {
					p.must(p.framer.WriteData(1, false, make([]byte, initialFrame)))
				}
			}
			if path != "/refuse" {
				if err := <-readErr; err == nil {
					t.Error("ReadBody returned no error")
				}
			}
			synctest.Wait()
			for range frames {
				if p.framer.WriteData(1, false, make([]byte, initialFrame)) != nil {
					t.Fatal("the server closed the connection")
				}
				synctest.Wait()
				if l := &p.server.memory; l.held != 0 {
					t.Fatalf("%s: %d bytes of bodies are held, want 0", path, l.held)
				}
				if st := p.server.streams[1]; st == nil || st.body.left <= initialFrame {
					break
				}
			}
			p.must(p.get(3, "/after"))
			p.must(p.framer.WriteWindowUpdate(3, 100))
			if _, body, _ := p.ended(3); body != "/after" {
				t.Errorf("another stream got %q, want /after", body)
			}
		})
	}
}

// TestResponsesThatWaitForWindowsCount checks that a connection whose client does not read is closed when its waiting
// responses fill the pool. Other clients get their responses.
func TestResponsesThatWaitForWindowsCount(t *testing.T) {
	const large = 300_000
	for name, respond := range map[string]func(x *exchange.Exchange){
		"bytes":  func(x *exchange.Exchange) { x.Bytes = make([]byte, large) },
		"a body": func(x *exchange.Exchange) { x.Bytes, x.Body, x.Size, x.HeldBytes = nil, pattern(large), large, large },
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { responsesFillPool(t, respond) }) })
	}
}

func responsesFillPool(t *testing.T, respond func(x *exchange.Exchange)) {
	s := newServer(Config{Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := echo(c, received)
		if string(c.Target()) == "/large" {
			respond(x)
		}
		return x
	}})
	const size = 1 << 20
	s.pool.left = size
	slow, other := newPeerOf(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}), newPeerOf(t, s)
	for i := range uint32(5) {
		_ = slow.get(2*i+1, "/large") // the server may have closed the connection
	}
	slow.await("the end", func(h receivedFrame) bool { return h.over })
	other.must(other.get(1, "/after"))
	if _, body, _ := other.ended(1); body != "/after" {
		t.Errorf("another client got %q, want /after", body)
	}
	<-slow.served
	if s.pool.left != size || len(s.pool.shares) != 0 {
		t.Errorf("after all responses %d bytes are left, want %d; shares %v", s.pool.left, size, s.pool.shares)
	}
}

// TestResponsesThatWaitForTheSocketCount checks that responses to a client that does not read from its socket count,
// although its windows have room for them. In a synctest bubble goroutines that wait for a lock would stop the clock, so
// the test uses none.
func TestResponsesThatWaitForTheSocketCount(t *testing.T) {
	client, server := net.Pipe()
	p := &peer{t: t, conn: client, framer: http2.NewFramer(client, client), server: newServer(Config{Handler: echo}).NewConn(server)}
	p.header = hpack.NewEncoder(&p.block)
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.server.Serve()
	}()
	for range 2 { // the server's first frames; the client reads no others
		_, err := p.framer.ReadFrame()
		p.must(err)
	}
	_, err := io.WriteString(client, http2.ClientPreface)
	p.must(err)
	p.must(p.framer.WriteSettings())
	const requests = 10
	for i := range uint32(requests) {
		p.must(p.get(2*i+1, "/a"))
	}
	counted := func() (headers, responses int64) {
		p.server.mu.Lock()
		defer p.server.unlock()
		l := &p.server.memory
		return l.headers, l.pooled - headerCopies*l.headers
	}
	for headers, responses := counted(); headers == 0 || responses != requests*int64(waitCost+len("/a")); headers, responses = counted() {
		runtime.Gosched()
	}
	client.Close()
	<-served
	if headers, responses := counted(); headers != 0 || responses != 0 {
		t.Errorf("%d bytes of headers and %d of responses are counted at the end, want 0", headers, responses)
	}
}
