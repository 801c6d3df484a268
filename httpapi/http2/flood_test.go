package http2

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// TestFloodsEndTheConnection checks that a connection with many frames that only cause work ends with ENHANCE_YOUR_CALM.
func TestFloodsEndTheConnection(t *testing.T) {
	for name, flood := range map[string]func(p *peer, i uint32) error{
		"streams that are reset": func(p *peer, i uint32) error {
			if err := p.get(2*i+1, "/"); err != nil {
				return err
			}
			return p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		},
		"resets of an ended stream": func(p *peer, i uint32) error {
			if i == 0 {
				return p.get(1, "/")
			}
			return p.framer.WriteRSTStream(1, http2.ErrCodeCancel)
		},
		"settings":                  func(p *peer, _ uint32) error { return p.framer.WriteSettings() },
		"acknowledgements":          func(p *peer, _ uint32) error { return p.framer.WriteSettingsAck() },
		"pings":                     func(p *peer, _ uint32) error { return p.framer.WritePing(false, [8]byte{}) },
		"acknowledgements of pings": func(p *peer, _ uint32) error { return p.framer.WritePing(true, [8]byte{}) },
		"priorities": func(p *peer, i uint32) error {
			return p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3})
		},
		"frames of an unknown type": func(p *peer, i uint32) error { return p.framer.WriteRawFrame(0xbe, 0, 0, nil) },
		"empty DATA frames": func(p *peer, i uint32) error {
			if i == 0 {
				return p.request(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/body")
			}
			return p.framer.WriteData(1, false, nil)
		},
		"empty CONTINUATION frames": func(p *peer, i uint32) error {
			if i == 0 {
				return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(":method", "GET"), EndStream: true})
			}
			return p.framer.WriteContinuation(1, false, nil)
		},
		"CONTINUATION frames": func(p *peer, i uint32) error {
			if i == 0 {
				return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(":method", "GET"), EndStream: true})
			}
			return p.framer.WriteContinuation(1, false, p.encode("a", strings.Repeat("b", 10000)))
		},
		"data of an ended stream": func(p *peer, i uint32) error {
			if i == 0 {
				defer synctest.Wait() // until the response has ended the stream; earlier data belongs to its body
				return p.request(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/")
			}
			return p.framer.WriteData(1, false, []byte("a"))
		},
		"GOAWAYs": func(p *peer, _ uint32) error { return p.framer.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"malformed requests": func(p *peer, i uint32) error {
			return p.request(2*i+1, true, "no", "method")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
					if string(c.Target()) == "/body" {
						_, _ = c.ReadBody(time.Now().Add(time.Hour)) // the body does not end
					}
					return echo(c, received)
				})
				var frames atomic.Int64
				go func() {
					for i := range uint32(100_000) {
						if flood(p, i) != nil {
							return
						}
						frames.Add(1)
					}
				}()
				p.awaitGoAway(http2.ErrCodeEnhanceYourCalm)
				p.await("the end", func(h receivedFrame) bool { return h.over })
				<-p.served
				most := int64(3 * floodBurst)
				if name == "CONTINUATION frames" {
					most = floodBurst / 4 // their size counts
				}
				if n := frames.Load(); n > most {
					t.Errorf("%d frames were accepted, want at most %d", n, most)
				}
			})
		})
	}
}

// TestSlowFramesAreNoFlood checks that a connection with as many frames over a longer time continues.
func TestSlowFramesAreNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, Config{}, echo)
		for i := range uint32(5000) {
			p.must(p.framer.WritePing(false, [8]byte{byte(i), byte(i >> 8)}))
			time.Sleep(time.Second / floodRate)
		}
		p.must(p.get(1, "/a"))
		if _, body, _ := p.ended(1); body != "/a" {
			t.Errorf("got body %q, want /a", body)
		}
	})
}

// TestHeaderBombsAreRejected checks that a header that expands from a few bytes to many is rejected without a call of the
// handler.
func TestHeaderBombsAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := 0
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			handled++
			return echo(c, received)
		})
		large := []string{"x", strings.Repeat("y", 3000)}
		p.must(p.get(1, "/", large...)) // adds the field to the dynamic table
		if fields, _, _ := p.ended(1); fields[":status"] != "200" {
			t.Fatal(fields)
		}
		bomb := large
		for range 1000 {
			bomb = append(bomb, large...)
		}
		for id := uint32(3); id < 100; id += 2 {
			p.must(p.get(id, "/", bomb...))
			if fields, _, _ := p.ended(id); fields[":status"] != "431" {
				t.Fatalf("got header %v, want status 431", fields)
			}
		}
		p.must(p.get(101, "/"))
		if fields, _, _ := p.ended(101); fields[":status"] != "200" || handled != 2 {
			t.Errorf("got header %v after %d calls of the handler, want status 200 after 2", fields, handled)
		}
	})
}

// TestGoAwayAllowsRequestsOnTheWay checks that the server responds to requests that the client sent before it received
// GOAWAY, and refuses those of a client that ignores GOAWAY.
func TestGoAwayAllowsRequestsOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, Config{MaxStreams: 3}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			x := echo(c, received)
			x.Set("Connection", "close")
			return x
		})
		p.must(p.get(1, "/"))
		p.ended(1)
		for id := uint32(3); id <= 9; id += 2 {
			want := http2.ErrCode(0)
			if id == 9 {
				want = http2.ErrCodeRefusedStream
			}
			p.must(p.get(id, "/"))
			if _, _, reset := p.ended(id); reset != want {
				t.Errorf("stream %d: got reset %v, want %v", id, reset, want)
			}
		}
		began := time.Now()
		p.await("the end", func(h receivedFrame) bool { return h.over })
		if took := time.Since(began); took > goAwayWait {
			t.Errorf("the connection ended after %v, want at most %v", took, goAwayWait)
		}
		if slices.ContainsFunc(p.frames, func(h receivedFrame) bool { return h.kind == http2.FramePing }) {
			t.Error("the server sent a ping, which clients take for the acknowledgement of theirs")
		}
	})
}

// TestGoAwayAllowsAnyNumberOfStreams checks that the largest Config.MaxStreams allows requests after GOAWAY, too.
func TestGoAwayAllowsAnyNumberOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, Config{MaxStreams: math.MaxInt32}, echo)
		p.must(p.get(3, "/"))
		p.ended(3)
		p.server.GoAway()
		p.must(p.get(5, "/"))
		if _, body, reset := p.ended(5); body != "/" {
			t.Errorf("got body %q and reset %v, want /", body, reset)
		}
	})
}

// TestFramesOfUnknownStreams checks that frames of a stream that was never open end the connection, unless the server
// refuses the stream after GOAWAY, and so ignores its frames.
func TestFramesOfUnknownStreams(t *testing.T) {
	const maxStreams, last = 3, 1
	frames := map[string]func(p *peer, id uint32) error{
		"DATA":          func(p *peer, id uint32) error { return p.framer.WriteData(id, true, []byte("a")) },
		"RST_STREAM":    func(p *peer, id uint32) error { return p.framer.WriteRSTStream(id, http2.ErrCodeCancel) },
		"WINDOW_UPDATE": func(p *peer, id uint32) error { return p.framer.WriteWindowUpdate(id, 1) },
	}
	for name, write := range frames {
		for _, test := range []struct {
			goAway  goAwayState
			id      uint32
			ignored bool
		}{
			{goAwayNone, last + 2, false},
			{goAwaySent, last + 2*maxStreams, false},
			{goAwaySent, last + 2 + 2*maxStreams, true},
			{goAwayDone, last + 2, true},
		} {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{MaxStreams: maxStreams}, echo)
				p.must(p.get(last, "/"))
				p.ended(last)
				p.server.goAway(test.goAway)
				_ = write(p, test.id)
				if !test.ignored {
					p.awaitGoAway(http2.ErrCodeProtocol)
					return
				}
				p.must(p.framer.WritePing(false, [8]byte{1}))
				p.await(name+" is ignored", func(h receivedFrame) bool { return h.kind == http2.FramePing && h.end })
				synctest.Wait()
				if slices.ContainsFunc(p.frames, func(h receivedFrame) bool { return h.id == test.id }) {
					t.Errorf("%s on stream %d after GOAWAY: got %+v, want no frame of the stream", name, test.id, p.frames)
				}
			})
		}
	}
}
