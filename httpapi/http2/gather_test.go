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

// gathering is a peer whose streams are taken over, and the frames it has received since the last check.
type gathering struct {
	*peer
	waiter socket.Waiter
	gates  map[uint32]socket.Writer
	taken  map[uint32]exchange.BodyStream
	seen   int
}

func newGathering(t *testing.T, streams uint32, settings ...http2.Setting) *gathering {
	taken := make(chan exchange.BodyStream, streams)
	g := &gathering{
		peer: newPeer(t, Config{}, stealing(taken), settings...), waiter: new(countingWaiter),
		gates: make(map[uint32]socket.Writer), taken: make(map[uint32]exchange.BodyStream),
	}
	for i := range streams {
		g.must(g.get(2*i+1, "/"))
		to := <-taken
		g.taken[2*i+1] = to
		g.gates[2*i+1] = socket.WriterTo(to.Conn)
	}
	g.came()
	return g
}

// came returns the frames that came since the last call: the stream and the data, or the kind.
func (g *gathering) came() (frames []string) {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.heard[g.seen:] {
		what := h.data
		if h.kind != http2.FrameData {
			what = h.kind.String()
		}
		frames = append(frames, fmt.Sprintf("%d:%s", h.id, what))
	}
	g.seen = len(g.heard)
	return frames
}

func (g *gathering) more(id uint32, data string) {
	g.t.Helper()
	g.must(g.gates[id].Send(g.taken[id].Conn, []byte(data), true, &g.waiter))
}

func (g *gathering) want(what string, want ...string) {
	g.t.Helper()
	if got := g.came(); !slices.Equal(got, want) {
		g.t.Errorf("%s: %q came, want %q", what, got, want)
	}
}

// TestGatheredFrames checks that frames sent with more set leave with the next frames, in order, and wait for nothing
// else.
func TestGatheredFrames(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, g *gathering){
		"the next send takes them along": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.more(3, "b")
			g.more(1, "c")
			g.want("before")
			g.must(g.gates[5].Send(g.taken[5].Conn, []byte("d"), false, &g.waiter))
			g.want("after", "1:a", "3:b", "1:c", "5:d")
			g.more(3, "e")
			g.want("anew")
		},
		"so does any other write": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.more(3, "b")
			if err := g.taken[3].End(); err != nil {
				t.Error(err)
			}
			g.want("after", "1:a", "3:b", "3:")
		},
		"flushing": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.gates[3].Group().Flush(&g.waiter)
			g.want("after", "1:a")
			g.gates[3].Group().Flush(&g.waiter)
			g.want("after nothing")
		},
		"control frames stay behind them": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.must(g.framer.WritePing(false, [8]byte{1}))
			g.want("ping", "1:a", "0:PING")
		},
		"a stream that is reset has none behind that": func(t *testing.T, g *gathering) {
			g.more(1, "a")
			g.taken[1].Conn.Close()
			g.want("reset", "1:a", "1:RST_STREAM")
		},
		"they are bounded": func(t *testing.T, g *gathering) {
			line, sent := strings.Repeat("x", 4000), 0
			for len(g.came()) == 0 {
				if g.more(1, line); sent > 2*burst {
					t.Fatalf("%d bytes are kept", sent)
				}
				sent += len(line)
			}
			if sent < exchange.RecordSize {
				t.Errorf("%d bytes are written as if nothing came behind them", sent)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, newGathering(t, 3)) })
		})
	}
	t.Run("a closed window holds nobody else up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGathering(t, 3, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4})
			g.more(1, "abc")
			sent := make(chan error)
			go func() { sent <- g.gates[3].Send(g.taken[3].Conn, []byte("defghi"), true, &g.waiter) }()
			g.want("while it is closed", "1:abc", "3:defg")
			g.must(g.framer.WriteWindowUpdate(3, 10))
			g.must(<-sent)
			g.want("opened")
			g.gates[3].Group().Flush(&g.waiter)
			g.want("flushed", "3:hi")
		})
	})
	t.Run("a connection that ends keeps none", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGathering(t, 3)
			g.more(1, "a")
			g.conn.Close()
			<-g.served
			g.gates[1].Group().Flush(&g.waiter)
			if err := g.gates[1].Send(g.taken[1].Conn, []byte("b"), true, &g.waiter); err == nil {
				t.Error("something is sent")
			}
		})
	})
}

// observed is a connection that records, for each write, the Waiter that would be notified.
type observed struct {
	net.Conn
	of   *Conn
	told []*socket.Waiter
}

func (o *observed) Write(p []byte) (int, error) {
	o.told = append(o.told, o.of.waiter)
	return len(p), nil
}

func (*observed) SetWriteDeadline(time.Time) error { return nil }

// TestWaitersLearnOfBlockedControlFrames checks that a goroutine that writes control frames before it unlocks
// writeMu, and may wait for the client, notifies its waiter.
func TestWaitersLearnOfBlockedControlFrames(t *testing.T) {
	o := &observed{}
	o.of = New(Config{WriteTimeout: time.Minute}).NewConn(o)
	o.of.unlockWrites() // writes the settings
	o.told = nil
	var waiter socket.Waiter = new(countingWaiter)
	st := &stream{c: o.of, id: 1, window: 10}
	o.of.mu.Lock()
	_ = o.of.framer.WritePing(true, [8]byte{})
	o.of.mu.Unlock()
	if err := st.Send(nil, []byte("a"), false, &waiter); err != nil {
		t.Fatal(err)
	}
	if want := []*socket.Waiter{&waiter, &waiter}; !slices.Equal(o.told, want) {
		t.Errorf("%v are told, want %v", o.told, want)
	}
	if o.of.flushControl(); o.of.waiter != nil {
		t.Error("somebody is told after writeMu was unlocked")
	}
}
