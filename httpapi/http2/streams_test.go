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

// TestSlowReaders checks that a response whose client opens no window keeps no more memory than one write and is
// reset in time. Others on its connection are answered meanwhile.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := answering(c, received)
			if string(c.Target()) == "/list" {
				x.SendFrom(http.StatusOK, "", 10<<20, countedBody{pattern(10 << 20), &closed})
			}
			return x
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		began := time.Now()
		p.must(p.get(1, "/list"))
		p.must(p.get(3, "/short"))
		if _, body, _ := p.ended(3); body != "/short" {
			t.Errorf("others: %q", body)
		}
		_, body, reset := p.ended(1)
		if took := time.Since(began); len(body) != 10 || reset == 0 || took != p.server.s.config.WriteTimeout {
			t.Errorf("%d bytes, %v, after %v", len(body), reset, took)
		}
		synctest.Wait()
		if closed.Load() != 1 {
			t.Error("the body is held on to")
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

// TestWindows checks that a response continues as the windows of its stream and connection allow.
func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 200_000
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := answering(c, received)
			x.SendFrom(http.StatusOK, "", size, pattern(size))
			return x
		}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		p.must(p.get(1, "/"))
		p.must(p.get(3, "/"))
		got := func(id uint32) (n int) {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, h := range p.heard {
				if h.id == id {
					n += len(h.data)
				}
			}
			return n
		}
		p.must(p.framer.WriteWindowUpdate(1, 5))
		if n := got(1); n != 5 {
			t.Errorf("%d bytes", n)
		}
		p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}))
		if n := got(1) + got(3); n != 2005 {
			t.Errorf("%d bytes", n)
		}
		p.must(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: size}))
		if n := got(1) + got(3); n != initialWindow {
			t.Errorf("%d bytes, with a window of the connection of %d", n, initialWindow)
		}
		p.must(p.framer.WriteWindowUpdate(0, 2*size))
		for _, id := range []uint32{1, 3} {
			if _, body, reset := p.ended(id); len(body) != size || reset != 0 {
				t.Errorf("stream %d: %d bytes, %v", id, len(body), reset)
			}
		}
		p.must(p.framer.WriteWindowUpdate(0, maxWindow))
		p.away(http2.ErrCodeFlowControl)
	})
}

// countingWaiter counts writes that wait.
type countingWaiter struct{ waits, goesOn atomic.Int64 }

func (w *countingWaiter) Waits()   { w.waits.Add(1) }
func (w *countingWaiter) Resumed() { w.goesOn.Add(1) }

// stealing responds with streams that another goroutine writes.
func stealing(taken chan<- exchange.BodyStream) handler {
	return func(c exchange.Carrier, received time.Time) *exchange.Exchange {
		x := new(exchange.Exchange)
		x.Init(c, received, nil)
		taken <- x.StartStream(http.StatusOK, []exchange.Field{{Name: "Audit-Id", Value: "i"}, {Name: "Connection", Value: "keep-alive"}})
		return x
	}
}

// TestStolenStreams checks that the server frames a response that another goroutine writes, and keeps no goroutine
// while nothing is written. The writer is notified when a write waits and when the client leaves.
func TestStolenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 90
		taken := make(chan exchange.BodyStream, many)
		p := newPeer(t, Config{}, stealing(taken), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range uint32(many) {
			p.must(p.get(2*i+1, "/"))
		}
		synctest.Wait()
		if more := runtime.NumGoroutine() - before; more > many/10 { // a few may be the runtime's own
			t.Errorf("%d more goroutines for %d streams", more, many)
		}
		if p.server.Retire() || p.server.HasPending() {
			t.Error("the connection is taken for one without streams, or with requests")
		}
		all := make(map[uint32]exchange.BodyStream)
		for range many {
			to := <-taken
			all[to.Conn.(*stream).id] = to
		}
		if to := all[1]; to.Chunked || to.Head != nil {
			t.Errorf("%+v", to)
		}
		head := p.await("a head", func(h heard) bool { return h.id == 1 && h.kind == http2.FrameHeaders })
		if _, has := head.fields["connection"]; has || head.fields["audit-id"] != "i" || head.fields["date"] == "" || head.end {
			t.Errorf("head %+v", head)
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
			t.Errorf("%d writes wait", n)
		}
		p.must(p.framer.WriteWindowUpdate(1, 10))
		if err := <-wrote; err != nil || waiter.(*countingWaiter).goesOn.Load() != 1 {
			t.Errorf("%v, %d went on", err, waiter.(*countingWaiter).goesOn.Load())
		}
		if err := all[1].End(); err != nil {
			t.Error(err)
		}
		all[1].Conn.Close()
		if _, body, reset := p.ended(1); body != "0123456789abc" || reset != 0 {
			t.Errorf("%q, %v", body, reset)
		}

		left := make(chan struct{})
		all[3].Left(func() { close(left) })
		p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
		<-left
		if _, err := all[3].Conn.Write([]byte("x")); err == nil {
			t.Error("what nobody wants is written")
		}
		again := make(chan struct{})
		all[3].Left(func() { close(again) }) // at once
		<-again

		began := time.Now()
		if _, err := all[5].Conn.Write(make([]byte, 11)); !socket.IsTimeout(err) || time.Since(began) != p.server.s.config.WriteTimeout {
			t.Errorf("a write that waits ends with %v after %v", err, time.Since(began))
		}
		all[5].Conn.Close()
		if _, _, reset := p.ended(5); reset != http2.ErrCodeCancel {
			t.Errorf("a response that was given up ends with %v", reset)
		}
		if all[5].End() == nil {
			t.Error("a response that was given up is ended")
		}

		st := all[9].Conn.(*stream)
		reserved, err := st.reserve(10, time.Time{}, false)
		p.must(err)
		p.must(p.framer.WriteRSTStream(9, http2.ErrCodeCancel))
		synctest.Wait()
		window := p.server.window
		if st.send(nil, make([]byte, reserved), false) == nil || p.server.window != window+int64(reserved) {
			t.Errorf("a reset stream keeps a part of the window: %d, then %d", window, p.server.window)
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
			t.Errorf("a byte is written when the window is no longer negative: %v", err)
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

// TestStreamsAtOnce checks the limit of concurrent streams. A stream that the client has reset counts until its
// handler has ended.
func TestStreamsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		release := make(chan struct{})
		p := newPeer(t, Config{MaxStreams: most}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			if string(c.Target()) != "/first" {
				<-release
			}
			return answering(c, received)
		})
		p.must(p.get(1, "/first"))
		p.ended(1)
		synctest.Wait()
		for i := range uint32(most + 1) {
			p.must(p.get(2*i+3, "/"))
		}
		if _, _, reset := p.ended(2*most + 3); reset != http2.ErrCodeRefusedStream {
			t.Errorf("one more: %v", reset)
		}
		for i := range uint32(most) {
			p.must(p.framer.WriteRSTStream(2*i+3, http2.ErrCodeCancel))
		}
		p.must(p.get(101, "/"))
		if _, _, reset := p.ended(101); reset != http2.ErrCodeRefusedStream {
			t.Errorf("while %d are served: %v", most, reset)
		}
		close(release)
		synctest.Wait()
		p.must(p.get(103, "/after"))
		if _, body, _ := p.ended(103); body != "/after" {
			t.Errorf("answer %q", body)
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

// TestAnsweredStreamsDoNotCount checks that a client may open a stream as soon as another is answered, although the
// server still has work for that one. This work has a limit.
func TestAnsweredStreamsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		release := make(chan struct{})
		p := newPeer(t, Config{MaxStreams: most}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := answering(c, received)
			x.SendFrom(http.StatusOK, "text/plain", 1, lingering{1, release})
			return x
		})
		for i := range uint32(2 * most) {
			p.must(p.get(2*i+1, "/"))
			if _, body, reset := p.ended(2*i + 1); len(body) != 1 {
				t.Errorf("stream %d: %q, %v", i, body, reset)
			}
		}
		p.must(p.get(101, "/"))
		if _, _, reset := p.ended(101); reset != http2.ErrCodeRefusedStream {
			t.Errorf("while %d goroutines work: %v", 2*most, reset)
		}
		close(release)
	})
}

// TestGoAway checks that a client that must leave receives GOAWAY and the responses to its earlier requests, and that
// the connection then ends.
func TestGoAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			<-release
			return answering(c, received)
		})
		p.must(p.get(1, "/a"))
		synctest.Wait()
		p.server.GoAway()
		if first := p.away(http2.ErrCodeNo); first.data != "2147483647" {
			t.Errorf("may send up to %s", first.data)
		}
		ping := p.await("a ping", func(h heard) bool { return h.kind == http2.FramePing && !h.end })
		p.must(p.get(3, "/b")) // was under way
		synctest.Wait()
		p.must(p.framer.WritePing(true, [8]byte([]byte(ping.data))))
		p.await("the last stream", func(h heard) bool { return h.kind == http2.FrameGoAway && h.data == "3" })
		p.must(p.get(5, "/c")) // comes too late
		synctest.Wait()
		close(release)
		for id, want := range map[uint32]string{1: "/a", 3: "/b"} {
			if _, body, _ := p.ended(id); body != want {
				t.Errorf("stream %d: %q", id, body)
			}
		}
		p.await("the end", func(h heard) bool { return h.over })
		if _, _, reset := p.ended(5); reset != http2.ErrCodeRefusedStream {
			t.Errorf("a stream that comes too late: %v", reset)
		}
	})
}

// TestGoAwayByChance checks that a request causes GOAWAY by GoAwayChance, by Leaving, and by a response that ends the
// connection.
func TestGoAwayByChance(t *testing.T) {
	for _, config := range []Config{{GoAwayChance: 1}, {Leaving: func(time.Time) bool { return true }}, {}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t, config, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := answering(c, received)
				if config.GoAwayChance == 0 && config.Leaving == nil {
					x.Set("Connection", "close")
				}
				return x
			})
			p.must(p.get(1, "/"))
			if fields, body, _ := p.ended(1); body != "/" || fields["connection"] != "" {
				t.Errorf("%v %q", fields, body)
			}
			p.away(http2.ErrCodeNo)
			p.await("the end", func(h heard) bool { return h.over })
		})
	}
}

// TestIdleConnectionsEnd checks that a connection without requests ends, and that one with an open stream does not.
func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan exchange.BodyStream, 1)
		p := newPeer(t, Config{}, stealing(taken))
		p.must(p.get(1, "/"))
		to := <-taken
		time.Sleep(time.Hour)
		if _, err := to.Conn.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		ended := time.Now()
		to.Conn.Close()
		p.await("the end", func(h heard) bool { return h.over })
		if idle := time.Since(ended); idle < p.server.s.config.IdleTimeout || idle > 2*p.server.s.config.IdleTimeout {
			t.Errorf("ended after %v", idle)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a header that does not come to its end
		p := newPeer(t, Config{}, answering)
		p.must(p.get(1, "/"))
		p.ended(1)
		began := time.Now()
		p.must(p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: p.encode(":method", "GET"), EndStream: true}))
		p.await("the end", func(h heard) bool { return h.over })
		if took := time.Since(began); took != p.server.s.config.HeaderTimeout {
			t.Errorf("ended after %v", took)
		}
	})
}

// TestRetire checks that a connection is retired once it is idle and its client has had time to receive GOAWAY.
func TestRetire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			<-release
			return answering(c, received)
		})
		synctest.Wait()
		p.server.GoAway()
		if p.server.Retire() {
			t.Error("a client is let go of that has not heard it")
		}
		p.must(p.get(1, "/"))
		p.must(p.framer.WritePing(true, goAwayMark))
		synctest.Wait()
		if p.server.Retire() {
			t.Error("the connection is retired while a request is served")
		}
		close(release)
		p.ended(1)
		synctest.Wait()
		if !p.server.Retire() {
			t.Error("a client that has heard it is not let go of")
		}
		<-p.served
		if p.server.Retire() {
			t.Error("retired after it has ended")
		}
	})
}

// TestClientsThatConfirmEachFrame checks that a client may confirm each frame of a large response, for the stream and
// the connection, however small the frames.
func TestClientsThatConfirmEachFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 8 << 20
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := answering(c, received)
			x.SendFrom(http.StatusOK, "", size, pattern(size))
			return x
		})
		p.must(p.get(1, "/"))
		got := 0
		for confirmed, ended := 0, false; !ended; {
			<-p.more
			p.mu.Lock()
			come := p.heard[confirmed:]
			confirmed = len(p.heard)
			p.mu.Unlock()
			for _, h := range come {
				if h.over {
					t.Fatalf("the connection has ended after %d bytes", got)
				}
				if n := len(h.data); h.kind == http2.FrameData && n > 0 {
					got += n
					p.must(p.framer.WriteWindowUpdate(0, uint32(n)))
					_ = p.framer.WriteWindowUpdate(1, uint32(n)) // its end may have come
				}
				ended = ended || h.kind == http2.FrameData && h.end
			}
		}
		if got != size {
			t.Errorf("%d bytes, want %d", got, size)
		}
	})
}

// TestWindowOfTheConnectionIsShared has many responses wait for the window of the connection. They must use the whole
// window, even byte by byte, and all must end once the window allows it.
func TestWindowOfTheConnectionIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, size, bytes = 40, 10_000, 200
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := answering(c, received)
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
			for _, h := range p.heard {
				if h.kind == http2.FrameData {
					n += len(h.data)
				}
			}
			return n
		}
		if n := got(); n != initialWindow {
			t.Errorf("%d bytes, want the window", n)
		}
		p.must(p.framer.WriteRSTStream(3, http2.ErrCodeCancel))
		for range bytes {
			p.must(p.framer.WriteWindowUpdate(0, 1))
		}
		if n := got(); n != initialWindow+bytes {
			t.Errorf("%d bytes, want the window and %d", n, bytes)
		}
		p.must(p.framer.WriteWindowUpdate(0, streams*size))
		for i := range uint32(streams) {
			if id := 2*i + 1; id != 3 {
				if _, body, reset := p.ended(id); len(body) != size || reset != 0 {
					t.Errorf("stream %d: %d bytes, %v", id, len(body), reset)
				}
			}
		}
	})
}

// TestWindowsLeaveNoWriterBehind checks that however windows grow, and whichever streams end meanwhile, every byte
// that the windows allow is sent: no writer waits that could write.
func TestWindowsLeaveNoWriterBehind(t *testing.T) {
	for seed := range uint64(proctest.Iterations(60)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			const streams, size = 12, 30_000
			p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
				x := answering(c, received)
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
						t.Errorf("seed %d, stream %d: %d bytes, %v", seed, id, len(body), reset)
					}
				}
			}
		})
	}
}
