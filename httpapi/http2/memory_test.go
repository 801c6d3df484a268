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
	ended    bool          // all was sent
	reset    bool          // by the client
	refused  bool          // by the server
	released bool          // release is closed
	release  chan struct{} // closed: the handler answers

	padding int    // of the response
	answer  string // is complete when the head of the response has come
	credit  int64  // bytes that the server may send
	got     int64  // of the response
	begun   bool   // the head of the response has come
	over    bool   // its end has come, or a reset
}

// answered reports whether the handler has responded.
func (s *modelStream) answered() bool { return s.begun || s.released && s.reset }

// awaitsEnd reports whether the client waits for the end of a response.
func (s *modelStream) awaitsEnd() bool { return s.begun && !s.over && !s.reset }

// held returns the number of bytes of the stream's body that the connection keeps.
func (s *modelStream) held() int64 {
	switch {
	case s.answered(), s.refused:
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
	seen    int   // of the frames that the peer has received

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
	answer := []byte(path)
	switch path {
	case "/read":
		data, err := c.ReadBody(time.Now().Add(100 * time.Hour))
		<-s.release
		answer = fmt.Appendf(nil, "%d %v", len(data), err)
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
			s.answer = fmt.Sprint(n, strings.Repeat("y", s.padding))
			if _, err := io.WriteString(to.Conn, s.answer); err == nil {
				_ = to.End(nil)
			}
		}
		return x
	}
	answer = append(answer, strings.Repeat("y", s.padding)...)
	s.answer = string(answer)
	x.Send(http.StatusOK, "text/plain", answer)
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
	m.p.must(m.p.ask(s.id, s.ended, fields...))
}

// send sends a piece of a stream's body.
func (m *model) send(s *modelStream) {
	room := min(m.window, s.window, initialFrame)
	if s.length >= 0 {
		room = min(room, s.length-s.sent)
	} else {
		room = min(room, 1<<20-s.sent) // the most that is read
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

// hear reads the server's frames.
func (m *model) hear() {
	synctest.Wait()
	m.p.mu.Lock()
	defer m.p.mu.Unlock()
	for _, h := range m.p.heard[m.seen:] {
		var of *modelStream
		for _, s := range m.streams {
			if s.id == h.id {
				of = s
			}
		}
		switch {
		case h.kind == http2.FrameGoAway || h.over:
			m.t.Fatalf("the connection ends: %+v", h)
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
			if of.over = h.end; h.end && !of.reset && of.got != int64(len(of.answer)) {
				m.t.Fatalf("stream %d: %d bytes of %d came", h.id, of.got, len(of.answer))
			}
		}
	}
	m.seen = len(m.p.heard)
}

// check compares the memory that the server holds with the model's.
func (m *model) check() {
	m.hear()
	var held, headers, pooled int64
	for _, s := range m.streams {
		held += s.held()
		if s.path != "/read" { // otherwise the body was read
			pooled += s.held()
		}
		handled := (s.path == "/read" || s.path == "/hold") && !s.answered() && !s.refused
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
			pooled += int64(len(s.answer))
		}
		if s.credit > 0 && m.credit > 0 {
			m.t.Fatalf("stream %d waits though %d bytes may be sent on it, and %d on the connection", s.id, s.credit, m.credit)
		}
	}
	pooled += headerCopies * headers
	c := m.p.server
	c.mu.Lock()
	defer c.unlock() // which asserts the invariants
	for _, st := range c.streams {
		if b := st.body; b != nil && cap(b.data) > 2*len(b.data)+initialFrame {
			m.t.Fatalf("stream %d has room for %d bytes of its body, of which %d have come", st.id, cap(b.data), len(b.data))
		}
	}
	l := &c.memory
	if l.held != held || l.headers != headers || l.room != m.window || l.pooled != pooled {
		m.t.Fatalf("holds %d bytes of bodies and %d of headers, %d are pooled, the client may send %d; want %d, %d, %d, %d",
			l.held, l.headers, l.pooled, l.room, held, headers, pooled, m.window)
	}
}

// step does one thing.
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

// finish sends all bodies that are read to their ends, and has all streams responded.
func (m *model) finish() {
	for progress := true; progress; {
		progress = false
		for _, s := range m.streams {
			if s.reset || s.refused || s.over {
				continue
			}
			if s.awaitsEnd() {
				m.widen(s, max(1, int64(len(s.answer))-s.got-s.credit))
				m.widen(nil, max(1, int64(len(s.answer))-m.credit))
				m.check()
				progress = true
				continue
			}
			for s.path != "/hold" && !s.ended && !s.begun && min(s.window, m.window) > 0 {
				m.send(s)
				m.hear()
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
			m.t.Errorf("stream %d: %d bytes of the response came", s.id, s.got)
		}
		if s.path == "/read" && !s.ended && !s.reset && !s.refused {
			m.t.Errorf("the client may send no more than %d of %d bytes on stream %d", s.sent, s.length, s.id)
		}
		m.end(s)
	}
	m.hear()
}

// release has all handlers end.
func (m *model) release() {
	for _, s := range m.streams {
		if !s.released {
			close(s.release)
		}
	}
}

// TestConnectionMemoryMatchesItsModel checks that a connection holds only what its streams still need, and nothing
// when all are answered. The client sends anything within its windows, and reads slowly. No stream waits for another:
// every body can be sent to its end. A response waits only for its windows.
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
					t.Errorf("holds %d, %d, %d, %d when all is answered", l.held, l.headers, l.pooled, l.large)
				}
			})
		})
	}
}

// post opens a stream with a body.
func (p *peer) post(id uint32, path string) error {
	return p.ask(id, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", path)
}

// TestLargestHolderEnds checks that when the connections of a server together hold more than their limit, the server
// closes the one that holds the most. Others continue, including the newest.
func TestLargestHolderEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		s := newServer(Config{Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			if string(c.Target()) == "/hold" {
				<-release
			}
			return answering(c, received)
		}})
		const size = 3 << 20
		s.pool.left = size
		send := func(p *peer, id uint32, n int) {
			_ = p.post(id, "/hold") // the server may have hung up
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
		large.await("the end", func(h heard) bool { return h.over })
		close(release)
		<-large.served
		for _, p := range small {
			p.must(p.get(3, "/after"))
			if _, body, _ := p.ended(3); body != "/after" {
				t.Errorf("another client: %q", body)
			}
			if _, body, _ := p.ended(1); body != "/hold" {
				t.Errorf("what another client has sent: %q", body)
			}
		}
		synctest.Wait()
		if s.pool.left != size || len(s.pool.shares) != 0 {
			t.Errorf("%d of %d bytes are left when all is answered, %v", s.pool.left, size, s.pool.shares)
		}
	})
}

// TestUnreadBodiesAreNotKept checks that a body that the handler has abandoned, or refused without reading, takes no
// memory while the response waits for a slow client.
func TestUnreadBodiesAreNotKept(t *testing.T) {
	for path, frames := range map[string]int{"/read": 100, "/late": 10, "/refuse": 10} {
		synctest.Test(t, func(t *testing.T) {
			gaveUp := make(chan error, 1)
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := answering(c, received)
				switch path {
				case "/read":
					_, err := c.ReadBody(time.Now().Add(time.Hour))
					gaveUp <- err
				case "/late":
					_, err := c.ReadBody(time.Now())
					gaveUp <- err
				}
				return x
			}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			p.must(p.post(1, path))
			if path == "/read" { // more than a body may have
				for range 1<<20/initialFrame + 1 {
					p.must(p.framer.WriteData(1, false, make([]byte, initialFrame)))
				}
			}
			if path != "/refuse" {
				if err := <-gaveUp; err == nil {
					t.Error("the body is read")
				}
			}
			synctest.Wait()
			for range frames {
				if p.framer.WriteData(1, false, make([]byte, initialFrame)) != nil {
					t.Fatal("the connection has ended")
				}
				synctest.Wait()
				if l := &p.server.memory; l.held != 0 {
					t.Fatalf("%s: %d bytes are held", path, l.held)
				}
				if st := p.server.streams[1]; st == nil || st.body.left <= initialFrame {
					break
				}
			}
			p.must(p.get(3, "/after"))
			p.must(p.framer.WriteWindowUpdate(3, 100))
			if _, body, _ := p.ended(3); body != "/after" {
				t.Errorf("another stream: %q", body)
			}
		})
	}
}

// TestAnswersThatWaitAreCounted checks that a connection whose client does not read ends when its waiting responses
// fill the pool. Other clients get their responses.
func TestAnswersThatWaitAreCounted(t *testing.T) {
	const large = 300_000
	for name, answer := range map[string]func(x *exchange.Exchange){
		"bytes":  func(x *exchange.Exchange) { x.Bytes = make([]byte, large) },
		"a body": func(x *exchange.Exchange) { x.Bytes, x.Body, x.Size, x.HeldBytes = nil, pattern(large), large, large },
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { answersFillPool(t, answer) }) })
	}
}

func answersFillPool(t *testing.T, answer func(x *exchange.Exchange)) {
	s := newServer(Config{Handler: func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := answering(c, received)
		if string(c.Target()) == "/large" {
			answer(x)
		}
		return x
	}})
	const size = 1 << 20
	s.pool.left = size
	slow, other := newPeerOf(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}), newPeerOf(t, s)
	for i := range uint32(5) {
		_ = slow.get(2*i+1, "/large") // the server may have hung up
	}
	slow.await("the end", func(h heard) bool { return h.over })
	other.must(other.get(1, "/after"))
	if _, body, _ := other.ended(1); body != "/after" {
		t.Errorf("another client: %q", body)
	}
	<-slow.served
	if s.pool.left != size || len(s.pool.shares) != 0 {
		t.Errorf("%d of %d bytes are left when all is answered, %v", s.pool.left, size, s.pool.shares)
	}
}

// TestAnswersThatWaitForTheirTurnAreCounted checks that responses to a client that does not read from its socket
// count, although it has given windows for them. Goroutines that wait for a lock do not let time pass in a bubble, so
// the test uses none.
func TestAnswersThatWaitForTheirTurnAreCounted(t *testing.T) {
	client, server := net.Pipe()
	p := &peer{t: t, conn: client, framer: http2.NewFramer(client, client), server: newServer(Config{Handler: answering}).NewConn(server)}
	p.header = hpack.NewEncoder(&p.block)
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.server.Serve()
	}()
	for range 2 { // the server's first frames; nothing is read after that
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
	counted := func() (headers, answers int64) {
		p.server.mu.Lock()
		defer p.server.unlock()
		l := &p.server.memory
		return l.headers, l.pooled - headerCopies*l.headers
	}
	for headers, answers := counted(); headers == 0 || answers != requests*int64(waitCost+len("/a")); headers, answers = counted() {
		runtime.Gosched()
	}
	client.Close()
	<-served
	if headers, answers := counted(); headers != 0 || answers != 0 {
		t.Errorf("%d bytes of headers and %d of responses are counted at the end", headers, answers)
	}
}
