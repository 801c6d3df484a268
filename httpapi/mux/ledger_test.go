package mux

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// modelStream is what the model knows of a stream.
type modelStream struct {
	id       uint32
	path     string
	header   int64 // what the ledger counts for it
	length   int64 // announced; -1: not announced
	sent     int64
	window   int64
	ended    bool // all was sent
	reset    bool // by the client
	refused  bool
	answered bool
	release  chan struct{} // closed: the handler answers
}

// held returns what the connection keeps of the stream's body.
func (s *modelStream) held() int64 {
	switch {
	case s.answered, s.refused:
		return 0
	case s.path == "/read": // until the handler has ended, even if the client has left
		return s.sent
	case s.path == "/hold" && !s.reset:
		return s.sent
	}
	return 0
}

// model drives a connection by random frames that keep to its windows, and counts what the
// server must hold.
type model struct {
	t       *testing.T
	r       *rand.Rand
	p       *peer
	streams []*modelStream
	next    uint32
	window  int64 // of the connection
	seen    int   // of what the peer has heard
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
		x.Taken = func(to exchange.Takeover) {
			n := int64(0)
			if to.Body != nil {
				n, _ = io.Copy(io.Discard, to.Body)
			}
			_ = to.Begin(http.StatusOK, nil)
			_, _ = fmt.Fprint(to.Conn, n)
			_ = to.End(nil)
			to.Conn.Close()
		}
		return x
	}
	x.Send(http.StatusOK, "text/plain", answer)
	return x
}

// open begins a stream.
func (m *model) open() {
	s := &modelStream{id: m.next, window: usualWindow, length: -1, release: make(chan struct{})}
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

// hear takes what has come from the server.
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
		case h.kind == http2.FrameRSTStream && h.code != http2.ErrCodeNo && h.code != http2.ErrCodeStreamClosed:
			m.t.Fatalf("stream %d was reset: %v", h.id, h.code)
		case h.kind == http2.FrameRSTStream, h.end:
			of.answered = true
		}
	}
	m.seen = len(m.p.heard)
}

// check compares what the server holds with what it must hold.
func (m *model) check() {
	m.hear()
	var held, headers int64
	for _, s := range m.streams {
		held += s.held()
		waits := (s.path == "/read" || s.path == "/hold") && !s.answered && !s.refused
		if waits {
			headers += s.header
		}
	}
	c := m.p.server
	c.mu.Lock()
	defer c.unlock() // which asserts the invariants
	l := &c.ledger
	if l.held != held || l.headers != headers || l.room != m.window {
		m.t.Fatalf("holds %d bytes of bodies and %d of headers, the client may send %d; want %d, %d, %d", l.held, l.headers, l.room, held, headers, m.window)
	}
}

// step does one thing.
func (m *model) step() {
	if len(m.streams) == 0 || m.r.IntN(12) == 0 {
		m.open()
		return
	}
	s := m.streams[m.r.IntN(len(m.streams))]
	gone := s.reset || s.refused || s.answered
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
	case !s.ended && !gone:
		m.send(s)
	}
}

// end has the handler of s answer.
func (m *model) end(s *modelStream) {
	if s.path != "/read" && s.path != "/hold" || s.refused || s.answered || s.path == "/read" && !s.ended && !s.reset {
		return
	}
	close(s.release)
	s.answered = true
}

// finish sends all bodies that are read to their ends, and has all streams answered.
func (m *model) finish() {
	for progress := true; progress; {
		progress = false
		for _, s := range m.streams {
			if s.reset || s.refused || s.answered {
				continue
			}
			for s.path != "/hold" && !s.ended && min(s.window, m.window) > 0 {
				m.send(s)
				m.hear()
				progress = true
			}
			if m.end(s); s.answered {
				progress = true
			}
			m.check()
		}
	}
	for _, s := range m.streams {
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
		if !s.answered {
			close(s.release)
		}
	}
}

// TestLedger: whatever a client sends within its windows, the connection holds what the streams
// that still need it have sent, and nothing else; when all is answered it holds nothing. No
// stream ever waits for another: every body can be sent to its end.
func TestLedger(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{t: t, r: rand.New(rand.NewPCG(seed, 0)), next: 1}
				window := []uint32{0, 5, 1 << 20}[seed%3] // for answers
				m.p = newPeer(t, Config{MaxStreams: 30}, m.handler, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				m.window = initialWindow
				defer m.release()
				for range 600 {
					m.step()
					m.check()
				}
				m.finish()
				if l := &m.p.server.ledger; l.held != 0 || l.headers != 0 || l.unasked != 0 || l.large != largeBodies*(1<<20) {
					t.Errorf("holds %d, %d, %d, %d when all is answered", l.held, l.headers, l.unasked, l.large)
				}
			})
		})
	}
}

// post opens a stream with a body.
func (p *peer) post(id uint32, path string) error {
	return p.ask(id, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", path)
}

// TestLargestHolderEnds: when the connections of a server hold more than they may together, the
// one that holds most is closed. Others go on, and so does who came last.
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
			send(p, 1, usualWindow)
			small = append(small, p)
		}
		large := newPeerOf(t, s)
		for i := range uint32(8) {
			send(large, 2*i+1, usualWindow)
		}
		small[0].must(small[0].framer.WritePing(false, [8]byte{}))
		for i := range uint32(8) { // until there is no room
			send(large, 2*i+17, usualWindow)
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

// TestNothingIsKeptThatNobodyReads: of a body that the handler has given up, or refused unread,
// nothing is kept, while the answer waits for a client that does not take it in.
func TestNothingIsKeptThatNobodyReads(t *testing.T) {
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
				if l := &p.server.ledger; l.held != 0 || l.unasked != 0 || l.headers != 0 {
					t.Fatalf("%s: %d bytes are held, %d of headers", path, l.held, l.headers)
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
