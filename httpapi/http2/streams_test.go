package http2

import (
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/proctest"
)

// TestResponsesToSlowReadersAreReset checks that a response is reset if its client does not open the window for
// WriteTimeout. Other streams of the connection get their responses meanwhile.
func TestResponsesToSlowReadersAreReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := echo(c, received)
			if string(c.Target()) == "/list" {
				x.SendFrom(http.StatusOK, "", 10<<20, countedBody{pattern(10 << 20), &closed})
			}
			return x
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		began := time.Now()
		p.must(p.get(1, "/list"))
		p.must(p.get(3, "/short"))
		if _, body, _ := p.ended(3); body != "/short" {
			t.Errorf("another stream got %q, want /short", body)
		}
		_, body, reset := p.ended(1)
		if took := time.Since(began); len(body) != 10 || reset == 0 || took != p.server.s.config.WriteTimeout {
			t.Errorf("received %d bytes, reset %v, after %v; want 10 bytes and a reset after %v", len(body), reset, took, p.server.s.config.WriteTimeout)
		}
		synctest.Wait()
		if closed.Load() != 1 {
			t.Error("the body was not closed")
		}
	})
}

type countedBody struct {
	exchange.Body
	closed *atomic.Int64
}

func (b countedBody) Close() error {
	b.closed.Add(1)
	return b.Body.Close()
}

// TestResponsesStayWithinTheirWindows checks that a response continues as the windows of its stream and connection allow.
func TestResponsesStayWithinTheirWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 200_000
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := echo(c, received)
			x.SendFrom(http.StatusOK, "", size, pattern(size))
			return x
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		p.must(p.get(1, "/"))
		p.must(p.get(3, "/"))
		got := func(id uint32) (n int) {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, h := range p.frames {
				if h.id == id {
					n += len(h.data)
				}
			}
			return n
		}
		p.must(p.framer.WriteWindowUpdate(1, 5))
		if n := got(1); n != 5 {
			t.Errorf("received %d bytes, want 5", n)
		}
		p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}))
		if n := got(1) + got(3); n != 2005 {
			t.Errorf("received %d bytes, want 2005", n)
		}
		p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: size}))
		if n := got(1) + got(3); n != initialWindow {
			t.Errorf("received %d bytes, want the window of the connection, %d", n, initialWindow)
		}
		p.must(p.framer.WriteWindowUpdate(0, 2*size))
		for _, id := range []uint32{1, 3} {
			if _, body, reset := p.ended(id); len(body) != size || reset != 0 {
				t.Errorf("stream %d: %d bytes, %v", id, len(body), reset)
			}
		}
		p.must(p.framer.WriteWindowUpdate(0, maxWindow))
		p.awaitGoAway(http2.ErrCodeFlowControl)
	})
}

// countingWaiter counts writes that wait, and those that resume.
type countingWaiter struct{ waits, resumed atomic.Int64 }

func (w *countingWaiter) Waits()   { w.waits.Add(1) }
func (w *countingWaiter) Resumed() { w.resumed.Add(1) }

// streaming responds with streams that another goroutine writes.
func streaming(taken chan<- exchange.BodyStream) handler {
	return func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		taken <- x.StartStream(http.StatusOK, []exchange.Field{{Name: "Audit-Id", Value: "i"}, {Name: "Connection", Value: "keep-alive"}})
		return x
	}
}

// TestStreamsAreWrittenByOtherGoroutines checks that the server frames a response that another goroutine writes, and has
// no goroutine of its own for it. The writer is notified when a write waits and when the client leaves.
func TestStreamsAreWrittenByOtherGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 90
		taken := make(chan exchange.BodyStream, many)
		p := newPeer(t, Config{}, streaming(taken), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range uint32(many) {
			p.must(p.get(2*i+1, "/"))
		}
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > many/10 { // a few may be the runtime's own
			t.Errorf("%d more goroutines for %d streams, want at most %d", more, many, many/10)
		}
		if p.server.Retire() || p.server.HasPending() {
			t.Error("Retire or HasPending returns true for a connection with streams only")
		}
		all := make(map[uint32]exchange.BodyStream)
		for range many {
			to := <-taken
			all[to.Conn.(*stream).id] = to
		}
		if to := all[1]; to.Chunked || to.Head != nil {
			t.Errorf("got %+v, want no head and no chunks", to)
		}
		head := p.await("a header", func(h receivedFrame) bool { return h.id == 1 && h.kind == http2.FrameHeaders })
		if _, has := head.fields["connection"]; has || head.fields["audit-id"] != "i" || head.fields["date"] == "" || head.end {
			t.Errorf("got header %+v, want audit-id and date, and no connection", head)
		}

		var waiter socket.Waiter = new(countingWaiter)
		gate := socket.WriterTo(all[1].Conn)
		wrote := make(chan error)
		go func() {
			err := gate.Send(all[1].Conn, []byte("0123456789"), false, &waiter)
			if err == nil && waiter.(*countingWaiter).waits.Load() == 0 {
				err = gate.Send(all[1].Conn, []byte("abc"), false, &waiter)
			}
			wrote <- err
		}()
		synctest.Wait()
		if n := waiter.(*countingWaiter).waits.Load(); n != 1 {
			t.Errorf("%d writes wait, want 1", n)
		}
		p.must(p.framer.WriteWindowUpdate(1, 10))
		if err := <-wrote; err != nil || waiter.(*countingWaiter).resumed.Load() != 1 {
			t.Errorf("Send: %v, %d writes resumed, want 1", err, waiter.(*countingWaiter).resumed.Load())
		}
		if err := all[1].End(); err != nil {
			t.Error(err)
		}
		all[1].Conn.Close()
		if _, body, reset := p.ended(1); body != "0123456789abc" || reset != 0 {
			t.Errorf("received %q, reset %v; want 0123456789abc", body, reset)
		}

		left := make(chan struct{})
		all[3].Left(func() { close(left) })
		p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
		<-left
		if _, err := all[3].Conn.Write([]byte("x")); err == nil {
			t.Error("a write to a reset stream returns no error")
		}
		again := make(chan struct{})
		all[3].Left(func() { close(again) }) // at once
		<-again

		began := time.Now()
		if _, err := all[5].Conn.Write(make([]byte, 11)); !socket.IsTimeout(err) || time.Since(began) != p.server.s.config.WriteTimeout {
			t.Errorf("a write that waits ended with %v after %v, want a timeout after %v", err, time.Since(began), p.server.s.config.WriteTimeout)
		}
		all[5].Conn.Close()
		if _, _, reset := p.ended(5); reset != http2.ErrCodeCancel {
			t.Errorf("a response that was closed before its end was reset with %v, want CANCEL", reset)
		}
		if all[5].End() == nil {
			t.Error("End of a closed response returns no error")
		}

		st := all[9].Conn.(*stream)
		reserved, err := st.reserve(10, time.Time{}, false)
		p.must(err)
		p.must(p.framer.WriteRSTStream(9, http2.ErrCodeCancel))
		synctest.Wait()
		window := p.server.window
		if st.send(nil, make([]byte, reserved), false) == nil || p.server.window != window+int64(reserved) {
			t.Errorf("after a send to a reset stream the window is %d, want %d", p.server.window, window+int64(reserved))
		}

		_, err = all[11].Conn.Write(make([]byte, 10))
		p.must(err)
		p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 5}))
		synctest.Wait()
		go func() {
			_, err := all[11].Conn.Write([]byte("x"))
			wrote <- err
		}()
		synctest.Wait()
		p.must(p.framer.WriteWindowUpdate(11, 5))
		synctest.Wait()
		select {
		case err := <-wrote:
			t.Errorf("a byte was written with a window of zero: %v", err)
		default:
		}
		p.must(p.framer.WriteWindowUpdate(11, 1))
		p.must(<-wrote)

		gone := make(chan struct{})
		all[7].Left(func() { close(gone) })
		p.conn.Close()
		<-gone
	})
}

// TestConcurrentStreamsAreLimited checks that a stream that the client has reset counts until its handler has ended.
func TestConcurrentStreamsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		release := make(chan struct{})
		p := newPeer(t, Config{MaxStreams: most}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			if string(c.Target()) != "/first" {
				<-release
			}
			return echo(c, received)
		})
		p.must(p.get(1, "/first"))
		p.ended(1)
		synctest.Wait()
		for i := range uint32(most + 1) {
			p.must(p.get(2*i+3, "/"))
		}
		if _, _, reset := p.ended(2*most + 3); reset != http2.ErrCodeRefusedStream {
			t.Errorf("a stream above the limit: got reset %v, want REFUSED_STREAM", reset)
		}
		for i := range uint32(most) {
			p.must(p.framer.WriteRSTStream(2*i+3, http2.ErrCodeCancel))
		}
		p.must(p.get(101, "/"))
		if _, _, reset := p.ended(101); reset != http2.ErrCodeRefusedStream {
			t.Errorf("a stream while %d handlers run: got reset %v, want REFUSED_STREAM", most, reset)
		}
		close(release)
		synctest.Wait()
		p.must(p.get(103, "/after"))
		if _, body, _ := p.ended(103); body != "/after" {
			t.Errorf("got body %q, want /after", body)
		}
	})
	synctest.Test(t, func(t *testing.T) { // streams without a goroutine of the server
		const most = 3
		taken := make(chan exchange.BodyStream, most+1)
		p := newPeer(t, Config{MaxStreams: most}, streaming(taken))
		for i := range uint32(most + 1) {
			p.must(p.get(2*i+1, "/"))
			synctest.Wait()
		}
		if _, _, reset := p.ended(2*most + 1); reset != http2.ErrCodeRefusedStream {
			t.Errorf("a watch above the limit: got reset %v, want REFUSED_STREAM", reset)
		}
	})
}

// lingering is a body whose Close waits.
type lingering struct {
	pattern
	release chan struct{}
}

func (l lingering) Close() error {
	<-l.release
	return nil
}

// TestStreamsDoNotCountAfterTheirResponse checks that a client may open a stream as soon as another has ended, although
// the server's goroutine for that one still runs. The number of these goroutines is limited.
func TestStreamsDoNotCountAfterTheirResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		release := make(chan struct{})
		p := newPeer(t, Config{MaxStreams: most}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := echo(c, received)
			x.SendFrom(http.StatusOK, "text/plain", 1, lingering{1, release})
			return x
		})
		for i := range uint32(2 * most) {
			p.must(p.get(2*i+1, "/"))
			if _, body, reset := p.ended(2*i + 1); len(body) != 1 {
				t.Errorf("stream %d: got body %q, reset %v; want 1 byte", i, body, reset)
			}
		}
		p.must(p.get(101, "/"))
		if _, _, reset := p.ended(101); reset != http2.ErrCodeRefusedStream {
			t.Errorf("a stream while %d goroutines run: got reset %v, want REFUSED_STREAM", 2*most, reset)
		}
		close(release)
	})
}

// TestGoAwayEndsTheConnectionAfterItsResponses checks that after GoAway the client receives GOAWAY and the responses to
// its earlier requests, and that the connection then ends.
func TestGoAwayEndsTheConnectionAfterItsResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			<-release
			return echo(c, received)
		})
		p.must(p.get(1, "/a"))
		synctest.Wait()
		p.server.GoAway()
		if first := p.awaitGoAway(http2.ErrCodeNo); first.data != "2147483647" {
			t.Errorf("the last stream of the first GOAWAY is %s, want 2147483647", first.data)
		}
		ping := p.await("a ping", func(h receivedFrame) bool { return h.kind == http2.FramePing && !h.end })
		p.must(p.get(3, "/b")) // sent before the client received GOAWAY
		synctest.Wait()
		p.must(p.framer.WritePing(true, [8]byte([]byte(ping.data))))
		p.await("the last stream", func(h receivedFrame) bool { return h.kind == http2.FrameGoAway && h.data == "3" })
		p.must(p.get(5, "/c")) // too late
		synctest.Wait()
		close(release)
		for id, want := range map[uint32]string{1: "/a", 3: "/b"} {
			if _, body, _ := p.ended(id); body != want {
				t.Errorf("stream %d: got body %q, want %s", id, body, want)
			}
		}
		p.await("the end", func(h receivedFrame) bool { return h.over })
		if _, _, reset := p.ended(5); reset != http2.ErrCodeRefusedStream {
			t.Errorf("a stream after the second GOAWAY: got reset %v, want REFUSED_STREAM", reset)
		}
	})
}

// TestRequestsCauseGoAway checks that a request causes GOAWAY by GoAwayChance, by Leaving, and by a response that ends the
// connection.
func TestRequestsCauseGoAway(t *testing.T) {
	for _, config := range []Config{{GoAwayChance: 1}, {Leaving: func(time.Time) bool { return true }}, {}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, config, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := echo(c, received)
				if config.GoAwayChance == 0 && config.Leaving == nil {
					x.Set("Connection", "close")
				}
				return x
			})
			p.must(p.get(1, "/"))
			if fields, body, _ := p.ended(1); body != "/" || fields["connection"] != "" {
				t.Errorf("got header %v and body %q, want / without connection", fields, body)
			}
			p.awaitGoAway(http2.ErrCodeNo)
			p.await("the end", func(h receivedFrame) bool { return h.over })
		})
	}
}

// TestIdleConnectionsEnd checks that a connection without streams ends, and that one with an open stream does not.
func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan exchange.BodyStream, 1)
		p := newPeer(t, Config{}, streaming(taken))
		p.must(p.get(1, "/"))
		to := <-taken
		time.Sleep(time.Hour)
		if _, err := to.Conn.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		ended := time.Now()
		to.Conn.Close()
		p.await("the end", func(h receivedFrame) bool { return h.over })
		if idle := time.Since(ended); idle < p.server.s.config.IdleTimeout || idle > 2*p.server.s.config.IdleTimeout {
			t.Errorf("the connection ended after %v, want one to two times %v", idle, p.server.s.config.IdleTimeout)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a header without an end
		p := newPeer(t, Config{}, echo)
		p.must(p.get(1, "/"))
		p.ended(1)
		began := time.Now()
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(":method", "GET"), EndStream: true}))
		p.await("the end", func(h receivedFrame) bool { return h.over })
		if took := time.Since(began); took != p.server.s.config.HeaderTimeout {
			t.Errorf("the connection ended after %v, want %v", took, p.server.s.config.HeaderTimeout)
		}
	})
}

// TestIdleConnectionsNameTheirLastStream checks that the client learns which of its requests an idle connection served
// before it ended. The client can then repeat the others, also if it has not acknowledged an earlier GOAWAY.
func TestIdleConnectionsNameTheirLastStream(t *testing.T) {
	for _, closing := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := echo(c, received)
				x.Closing = closing
				return x
			})
			p.must(p.get(1, "/"))
			p.await("the last stream", func(h receivedFrame) bool {
				return h.kind == http2.FrameGoAway && h.code == http2.ErrCodeNo && h.data == "1"
			})
			p.await("the end", func(h receivedFrame) bool { return h.over })
		})
	}
}

// TestRetireEndsIdleConnections checks that Retire ends a connection that is idle, once its client has acknowledged GOAWAY.
func TestRetireEndsIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			<-release
			return echo(c, received)
		})
		synctest.Wait()
		p.server.GoAway()
		if p.server.Retire() {
			t.Error("the connection was retired before the client acknowledged GOAWAY")
		}
		p.must(p.get(1, "/"))
		p.must(p.framer.WritePing(true, goAwayMark))
		synctest.Wait()
		if p.server.Retire() {
			t.Error("the connection was retired while a request is served")
		}
		close(release)
		p.ended(1)
		synctest.Wait()
		if !p.server.Retire() {
			t.Error("an idle connection was not retired after GOAWAY was acknowledged")
		}
		<-p.served
		if p.server.Retire() {
			t.Error("a closed connection was retired again")
		}
	})
}

// TestManyWindowUpdatesAreNoFlood checks that a client may send window updates, for the stream and the connection, for
// each frame of a large response.
func TestManyWindowUpdatesAreNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := echo(c, received)
			x.SendFrom(http.StatusOK, "", size, pattern(size))
			return x
		})
		p.must(p.get(1, "/"))
		got := 0
		for seen, ended := 0, false; !ended; {
			<-p.more
			p.mu.Lock()
			frames := p.frames[seen:]
			seen = len(p.frames)
			p.mu.Unlock()
			for _, h := range frames {
				if h.over {
					t.Fatalf("the connection ended after %d bytes", got)
				}
				if n := len(h.data); h.kind == http2.FrameData && n > 0 {
					got += n
					p.must(p.framer.WriteWindowUpdate(0, uint32(n)))
					_ = p.framer.WriteWindowUpdate(1, uint32(n)) // the stream may have ended
				}
				ended = ended || h.kind == http2.FrameData && h.end
			}
		}
		if got != size {
			t.Errorf("received %d bytes, want %d", got, size)
		}
	})
}

// TestResponsesShareTheWindowOfTheConnection has many responses wait for the window of the connection. They must use the
// whole window, even byte by byte, and all must end once the window allows it.
func TestResponsesShareTheWindowOfTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, size, bytes = 40, 10_000, 200
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := echo(c, received)
			x.SendFrom(http.StatusOK, "", size, pattern(size))
			return x
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
		for i := range uint32(streams) {
			p.must(p.get(2*i+1, "/"))
		}
		got := func() (n int) {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, h := range p.frames {
				if h.kind == http2.FrameData {
					n += len(h.data)
				}
			}
			return n
		}
		if n := got(); n != initialWindow {
			t.Errorf("received %d bytes, want the window, %d", n, initialWindow)
		}
		p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
		for range bytes {
			p.must(p.framer.WriteWindowUpdate(0, 1))
		}
		if n := got(); n != initialWindow+bytes {
			t.Errorf("received %d bytes, want %d", n, initialWindow+bytes)
		}
		p.must(p.framer.WriteWindowUpdate(0, streams*size))
		for i := range uint32(streams) {
			if id := 2*i + 1; id != 3 {
				if _, body, reset := p.ended(id); len(body) != size || reset != 0 {
					t.Errorf("stream %d: received %d bytes, reset %v; want %d bytes", id, len(body), reset, size)
				}
			}
		}
	})
}

// TestWritersResumeWhenWindowsGrow grows random windows and resets random streams. No writer may wait while its windows
// have room, and every response must end.
func TestWritersResumeWhenWindowsGrow(t *testing.T) {
	for seed := range uint64(proctest.Iterations(60)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			const streams, size = 12, 30_000
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := echo(c, received)
				x.SendFrom(http.StatusOK, "", size, pattern(size))
				return x
			}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(random.IntN(20_000))})
			gone := make(map[uint32]bool)
			for i := range uint32(streams) {
				p.must(p.get(2*i+1, "/"))
			}
			for range 200 {
				id, n := 2*uint32(random.IntN(streams))+1, 1+uint32(random.IntN([]int{10, 1000, 10_000}[random.IntN(3)]))
				switch random.IntN(20) {
				case 0:
					gone[id] = true
					p.must(p.framer.WriteRSTStream(id, http2.ErrCodeCancel))
				case 1, 2, 3, 4, 5, 6:
					p.must(p.framer.WriteWindowUpdate(0, n))
				default:
					p.must(p.framer.WriteWindowUpdate(id, n))
				}
				if random.IntN(4) == 0 {
					synctest.Wait()
					p.server.mu.Lock()
					for _, st := range p.server.streams {
						if st.window > 0 && p.server.window > 0 && st.waits {
							t.Errorf("seed %d: stream %d waits with windows of %d and %d", seed, st.id, st.window, p.server.window)
						}
					}
					p.server.mu.Unlock()
				}
			}
			p.must(p.framer.WriteWindowUpdate(0, streams*size))
			for i := range uint32(streams) {
				if id := 2*i + 1; !gone[id] {
					_ = p.framer.WriteWindowUpdate(id, size)
					if _, body, reset := p.ended(id); len(body) != size || reset != 0 {
						t.Errorf("seed %d, stream %d: received %d bytes, reset %v; want %d bytes", seed, id, len(body), reset, size)
					}
				}
			}
		})
	}
}
