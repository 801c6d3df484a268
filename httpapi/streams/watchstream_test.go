package streams

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/socket"
)

// sink is a connection that records written bytes.
type sink struct {
	net.Conn
	all bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) { return s.all.Write(p) }

func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// holding is the writer of a sink. It buffers bytes that more follow.
type holding struct {
	*sink
	held []byte
}

func (h *holding) Send(_ net.Conn, p []byte, more bool, _ *socket.Waiter) (err error) {
	if h.held = append(h.held, p...); !more {
		_, err = h.Write(h.held)
		h.held = nil
	}
	return err
}

func (h *holding) Group() socket.Group { return nil }

func (h *holding) Release() {}

// TestChunksCarryFrames checks that frames are sent completely and in order, whatever their sizes and wherever
// they are split into chunks.
func TestChunksCarryFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &sink{}
		ws := &watchStream{response: response{chunked: rapid.Bool().Draw(t, "chunked")}}
		ws.Conn = s
		gate := &holding{sink: s}
		if rapid.Bool().Draw(t, "gate") {
			ws.writer = gate
		}
		b := getBatch()
		defer b.release()
		var want []byte
		left := func(most int) {
			if len(b.buf) >= chunkHead+most {
				t.Fatalf("%d bytes are left", len(b.buf))
			}
			if len(gate.held) > 0 && len(b.buf) == chunkHead {
				t.Fatalf("%d bytes remain buffered although nothing follows", len(gate.held))
			}
		}
		for i, size := range rapid.SliceOfN(rapid.OneOf(
			rapid.IntRange(1, 9000),
			rapid.IntRange(pieceSize-3, pieceSize+3),
			rapid.IntRange(2*pieceSize-3, 2*pieceSize+3),
			rapid.IntRange(1, 5*pieceSize),
		), 0, 12).Draw(t, "sizes") {
			frame := bytes.Repeat([]byte{byte('a' + i)}, size)
			want = append(want, frame...)
			if rapid.Bool().Draw(t, "large") {
				if err := ws.sendLarge(b, frame); err != nil {
					t.Fatal(err)
				}
				left(1)
				continue
			}
			b.buf = append(b.buf, frame...)
			if len(b.buf) >= chunkHead+pieceSize {
				if err := ws.flushPieces(b); err != nil {
					t.Fatal(err)
				}
			}
			left(pieceSize)
			if rapid.IntRange(0, 3).Draw(t, "flush") == 0 {
				if err := ws.flush(b); err != nil || len(b.buf) != chunkHead {
					t.Fatal(err, len(b.buf))
				}
			}
		}
		if err := ws.flush(b); err != nil {
			t.Fatal(err)
		}
		left(1)
		got := s.all.Bytes()
		if ws.chunked {
			s.all.WriteString("0\r\n\r\n")
			var err error
			if got, err = io.ReadAll(httputil.NewChunkedReader(&s.all)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) || ws.size != len(want) {
			t.Fatalf("got %d bytes, counted %d, want %d", len(got), ws.size, len(want))
		}
	})
}

// TestPanicsEndOneWatch checks that a panic of one watch ends neither its goroutine nor another watch, and that
// the bytes in its batch are discarded.
func TestPanicsEndOneWatch(t *testing.T) {
	ss := New()
	s := &sink{}
	ws := &watchStream{streams: ss, timer: time.NewTimer(time.Hour), response: response{chunked: true}} // no watcher: drain panics
	ws.Conn = closing{s}
	b := getBatch()
	defer b.release()
	b.buf = append(b.buf, "of another"...)
	if v := ws.run(b); v != over {
		t.Errorf("verdict %d", v)
	}
	if len(b.buf) != chunkHead || s.all.Len() != 0 {
		t.Errorf("%q is left, %q was sent", b.buf[chunkHead:], s.all.Bytes())
	}
}

// TestEndsAreCountedFirst checks that the metrics count the end of a watch before the client can see it.
func TestEndsAreCountedFirst(t *testing.T) {
	book := new(apimetrics.Resources)
	m := book.Of(schema.GroupVersionResource{Group: "ends.test", Version: "v1", Resource: "counted"}, "").Of("watch", "cluster")
	c := &witness{seen: func() string {
		return fmt.Sprint(value(t, book, "apiserver_longrunning_requests"), " open, ", value(t, book, "apiserver_request_total"), " ended")
	}}
	ss := New()
	ws := &watchStream{streams: ss, response: response{chunked: true}, observer: observer{sent: m, open: m, counted: apimetrics.Response{Code: http.StatusOK}}}
	ws.Conn = c
	m.Enter()
	ws.finish(&batch{}, errEnd)
	if want := []string{"0 open, 1 ended", "0 open, 1 ended"}; !slices.Equal(c.told, want) { // at the last write and at Close
		t.Errorf("seen %q, want %q", c.told, want)
	}
}

// value returns the sum of a metric's samples.
func value(t *testing.T, of *apimetrics.Resources, name string) (n float64) {
	own := prometheus.NewRegistry()
	own.MustRegister(apimetrics.NewCollector(of))
	families, err := own.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, family := range families {
		for _, sample := range family.GetMetric() {
			if family.GetName() == name {
				n += sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
			}
		}
	}
	return n
}

// witness is a connection that calls seen at each write and at Close, and records the results.
type witness struct {
	net.Conn
	seen func() string
	told []string
}

func (w *witness) SetWriteDeadline(time.Time) error { return nil }

func (w *witness) Write(p []byte) (int, error) {
	w.told = append(w.told, w.seen())
	return len(p), nil
}

func (w *witness) Close() error {
	w.told = append(w.told, w.seen())
	return nil
}

// TestWatchesGiveTheirConnectionsBack checks that after a complete watch, its connection serves the next request,
// which begins with the bytes read during the watch. In all other cases the connection is closed. Every watch leaves
// its right and flow control.
func TestWatchesGiveTheirConnectionsBack(t *testing.T) {
	m := new(apimetrics.Resources).Of(schema.GroupVersionResource{Group: "back.test", Version: "v1", Resource: "watched"}, "").Of("watch", "cluster")
	for name, c := range map[string]struct {
		change func(ws *watchStream)
		err    error
		back   bool
	}{
		"complete":             {func(*watchStream) {}, errEnd, true},
		"cut":                  {func(*watchStream) {}, io.ErrClosedPipe, false},
		"the client left":      {func(*watchStream) {}, errLeft, false},
		"no next request":      {func(ws *watchStream) { ws.next = nil }, errEnd, false},
		"not in chunks":        {func(ws *watchStream) { ws.chunked = false }, errEnd, false},
		"revoked":              {func(ws *watchStream) { ws.right.(*countedRight).lost = true }, errEnd, false},
		"told to end":          {func(ws *watchStream) { ws.signal(toldToEnd) }, errEnd, false},
		"the server ends":      {func(ws *watchStream) { ws.streams.End() }, errEnd, false},
		"the end is not taken": {func(ws *watchStream) { ws.Conn.(*endConn).failed = io.ErrClosedPipe }, errEnd, false},
	} {
		conn := &endConn{in: bytes.NewReader([]byte("GET "))}
		ws := &watchStream{streams: New(), response: response{chunked: true}, observer: observer{sent: m, open: m, counted: apimetrics.Response{Code: http.StatusOK}}}
		ws.Conn, ws.watch = conn, ws
		ws.streams.add(&ws.Stream)
		right, unregistered := &countedRight{}, 0
		ws.right, ws.unregister = right, func() { unregistered++ }
		var got []byte
		ws.next = func(early []byte) { got = early }
		ws.probe()
		c.change(ws)
		waiter := socket.Waiter(&ws.streams.scheduler)
		b := &batch{waiter: &waiter}
		_ = ws.send(b, nil, false) // waits for the client, like finish
		ws.finish(b, c.err)
		if active, open := ws.streams.scheduler.active, len(ws.streams.open); active != 0 || open != 0 {
			t.Errorf("%s: %d goroutines more are counted as active, %d streams are open", name, active, open)
		}
		if back := got != nil; back != c.back || conn.closed == c.back || back && string(got) != "GET " {
			t.Errorf("%s: given back %q, closed %t", name, got, conn.closed)
		}
		if right.left != 1 || unregistered != 1 {
			t.Errorf("%s: left the right %d times and flow control %d times", name, right.left, unregistered)
		}
		conn.in = bytes.NewReader([]byte("of the next request"))
		if ws.probe(); conn.in.Len() == 0 && c.back {
			t.Errorf("%s: bytes of the next request were read", name)
		}
	}
}

// countedRight is a Right that counts the streams that left it.
type countedRight struct {
	Right
	lost bool
	left int
}

func (r *countedRight) Lost() bool { return r.lost }

func (r *countedRight) Leave() { r.left++ }

// endConn is a connection that has received in.
type endConn struct {
	net.Conn
	in     *bytes.Reader
	failed error // the error of writes
	closed bool
}

func (c *endConn) Read(p []byte) (int, error) {
	if c.in.Len() == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return c.in.Read(p)
}

func (c *endConn) Write(p []byte) (int, error) { return len(p), c.failed }

func (c *endConn) SetReadDeadline(time.Time) error { return nil }

func (c *endConn) SetWriteDeadline(time.Time) error { return nil }

func (c *endConn) Close() error {
	c.closed = true
	return nil
}

type closing struct{ net.Conn }

func (closing) Close() error { return nil }

// TestWakesAreNotLost wakes a watch concurrently while it parks. The watch must see everything, and be queued at
// most once at a time.
func TestWakesAreNotLost(t *testing.T) {
	ss := New()
	const wakers, wakes = 4, 2000
	ws := &watchStream{streams: ss}
	var told, seen sync.Map
	var all sync.WaitGroup
	for i := range wakers {
		all.Go(func() {
			for j := range wakes {
				told.Store(i, j)
				ws.wake()
			}
		})
	}
	look := func() {
		for {
			ws.take()
			told.Range(func(k, v any) bool { seen.Store(k, v); return true })
			if ws.park() {
				return
			}
		}
	}
	ss.scheduler.maxActive = 0 // no goroutine is started: the test serves the queue
	ss.scheduler.active = 1
	look()
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	take := func() {
		ss.scheduler.mu.Lock()
		n := ss.scheduler.queue.waiting
		for range n {
			ss.scheduler.queue.pop(nil)
		}
		ss.scheduler.mu.Unlock()
		if n > 1 {
			t.Errorf("queued %d times", n)
		}
		if n == 1 {
			look()
		}
	}
	for {
		take()
		select {
		case <-done:
			take()
			for i := range wakers {
				if v, _ := seen.Load(i); v != wakes-1 {
					t.Errorf("the last wake of %d was lost after %v", i, v)
				}
			}
			return
		default:
		}
	}
}

// TestWatchesLastAsLongAsAsked checks that timeoutSeconds of zero, or whose nanoseconds overflow to zero, mean the
// default.
func TestWatchesLastAsLongAsAsked(t *testing.T) {
	x := WatchRequest{MinRequestTimeout: time.Hour}
	for seconds, least := range map[int64]time.Duration{0: time.Hour, math.MinInt64: time.Hour, 3: 3 * time.Second, -3: -3 * time.Second} {
		got := x.watchTimeout(&internalversion.ListOptions{TimeoutSeconds: &seconds})
		if got < least || got != least && got > 2*least {
			t.Errorf("timeoutSeconds=%d: %v, want at least %v", seconds, got, least)
		}
	}
	if got := x.watchTimeout(&internalversion.ListOptions{}); got < time.Hour {
		t.Errorf("without timeoutSeconds: %v", got)
	}
}
