package http2

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

// gathering is a peer whose streams handlers have taken over.
type gathering struct {
	*peer
	waiter socket.Waiter
	gates  map[uint32]socket.Writer
	taken  map[uint32]exchange.BodyStream
	seen   int // frames that were checked
}

func newGathering(t *testing.T, streams uint32, settings ...http2.Setting) *gathering {
	taken := make(chan exchange.BodyStream, streams)
	g := &gathering{
		peer: newPeer(t, Config{}, streaming(taken), settings...), waiter: new(countingWaiter),
		gates: make(map[uint32]socket.Writer), taken: make(map[uint32]exchange.BodyStream),
	}
	for i := range streams {
		g.must(g.get(2*i+1, "/"))
		to := <-taken
		g.taken[2*i+1] = to
		g.gates[2*i+1] = socket.WriterTo(to.Conn)
	}
	g.received()
	return g
}

// received returns the frames since the last call: the stream, and the data or the type of the frame.
func (g *gathering) received() (frames []string) {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.frames[g.seen:] {
		what := h.data
		if h.kind != http2.FrameData {
			what = h.kind.String()
		}
		frames = append(frames, fmt.Sprintf("%d:%s", h.id, what))
	}
	g.seen = len(g.frames)
	return frames
}

// more sends data with more set.
func (g *gathering) more(id uint32, data string) {
	g.t.Helper()
	g.must(g.gates[id].Send(g.taken[id].Conn, []byte(data), true, &g.waiter))
}

func (g *gathering) want(what string, want ...string) {
	g.t.Helper()
	if got := g.received(); !slices.Equal(got, want) {
		g.t.Errorf("%s: received %q, want %q", what, got, want)
	}
}

// TestFramesAreGathered checks that frames sent with more set are written with the next frames, in order.
func TestFramesAreGathered(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, g *gathering){
		"the next send writes them": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.more(3, "b")
			g.more(1, "c")
			g.want("before")
			g.must(g.gates[5].Send(g.taken[5].Conn, []byte("d"), false, &g.waiter))
			g.want("after", "1:a", "3:b", "1:c", "5:d")
			g.more(3, "e")
			g.want("sent with more again")
		},
		"the end of another stream writes them": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.more(3, "b")
			if err := g.taken[3].End(); err != nil {
				t.Error(err)
			}
			g.want("after", "1:a", "3:b", "3:")
		},
		"Flush writes them": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.gates[3].Group().Flush(&g.waiter)
			g.want("after", "1:a")
			g.gates[3].Group().Flush(&g.waiter)
			g.want("flushed again")
		},
		"control frames follow them": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.must(g.framer.WritePing(false, [8]byte{1}))
			g.want("ping", "1:a", "0:PING")
		},
		"a reset follows them": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.taken[1].Conn.Close()
			g.want("reset", "1:a", "1:RST_STREAM")
		},
		"their size is limited": func(t *testing.T, g *gathering) {
			line, sent := strings.Repeat("x", 4000), 0
			for len(g.received()) == 0 {
				if g.more(1, line); sent > 2*burst {
					t.Fatalf("%d bytes are gathered, want at most %d", sent, 2*burst)
				}
				sent += len(line)
			}
			if sent < exchange.RecordSize {
				t.Errorf("%d bytes are written, want at least %d gathered", sent, exchange.RecordSize)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newGathering(t, 3)) })
		})
	}
	t.Run("a closed window does not delay other streams", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGathering(t, 3, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4})
			g.more(1, "abc")
			sent := make(chan error)
			go func() { sent <- g.gates[3].Send(g.taken[3].Conn, []byte("defghi"), true, &g.waiter) }()
			g.want("while the window is closed", "1:abc", "3:defg")
			g.must(g.framer.WriteWindowUpdate(3, 10))
			g.must(<-sent)
			g.want("after the window has opened")
			g.gates[3].Group().Flush(&g.waiter)
			g.want("flushed", "3:hi")
		})
	})
	t.Run("a closed connection writes none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGathering(t, 3)
			g.more(1, "a")
			g.conn.Close()
			<-g.served
			g.gates[1].Group().Flush(&g.waiter)
			if err := g.gates[1].Send(g.taken[1].Conn, []byte("b"), true, &g.waiter); err == nil {
				t.Error("Send on a closed connection returns no error")
			}
		})
	})
}

// observed is a connection that records, for each write, the Waiter of the Conn.
type observed struct {
	net.Conn
	of      *Conn
	waiters []*socket.Waiter
}

func (o *observed) Write(p []byte) (int, error) {
	o.waiters = append(o.waiters, o.of.waiter)
	return len(p), nil
}

func (*observed) SetWriteDeadline(time.Time) error { return nil }

// TestWritesOfControlFramesHaveAWaiter checks that a goroutine that writes control frames before it unlocks writeMu has
// set its waiter, because such a write may wait for the client.
func TestWritesOfControlFramesHaveAWaiter(t *testing.T) {
	o := &observed{}
	o.of = New(Config{WriteTimeout: time.Minute}).NewConn(o)
	o.of.unlockWrites() // writes the settings
	o.waiters = nil
	var waiter socket.Waiter = new(countingWaiter)
	st := &stream{c: o.of, id: 1, window: 10}
	o.of.mu.Lock()
	_ = o.of.framer.WritePing(true, [8]byte{})
	o.of.mu.Unlock()
	if err := st.Send(nil, []byte("a"), false, &waiter); err != nil {
		t.Fatal(err)
	}
	if want := []*socket.Waiter{&waiter, &waiter}; !slices.Equal(o.waiters, want) {
		t.Errorf("the waiters of the writes are %v, want %v", o.waiters, want)
	}
	if o.of.flushControl(); o.of.waiter != nil {
		t.Error("a waiter is set after writeMu was unlocked")
	}
}
