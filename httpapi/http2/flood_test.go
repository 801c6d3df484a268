package http2

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/httpapi/exchange"
)

// TestFloods checks that a connection with frames that only cause work ends with ENHANCE_YOUR_CALM.
func TestFloods(t *testing.T) {
	for name, flood := range map[string]func(p *peer, i uint32) error{
		"streams that are reset": func(p *peer, i uint32) error {
			if err := p.get(2*i+1, "/"); err != nil {
				return err
			}
			return p.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		},
		"resets of what is over": func(p *peer, i uint32) error {
			if i == 0 {
				return p.get(1, "/")
			}
			return p.framer.WriteRSTStream(1, http2.ErrCodeCancel)
		},
		"settings":            func(p *peer, _ uint32) error { return p.framer.WriteSettings() },
		"answers to settings": func(p *peer, _ uint32) error { return p.framer.WriteSettingsAck() },
		"pings":               func(p *peer, _ uint32) error { return p.framer.WritePing(false, [8]byte{}) },
		"answers to pings":    func(p *peer, _ uint32) error { return p.framer.WritePing(true, [8]byte{}) },
		"priorities": func(p *peer, i uint32) error {
			return p.framer.WritePriority(1, http2.PriorityParam{StreamDep: 3})
		},
		"what is unknown": func(p *peer, i uint32) error { return p.framer.WriteRawFrame(0xbe, 0, 0, nil) },
		"empty pieces of a body": func(p *peer, i uint32) error {
			if i == 0 {
				return p.ask(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/body")
			}
			return p.framer.WriteData(1, false, nil)
		},
		"empty pieces of a header": func(p *peer, i uint32) error {
			if i == 0 {
				return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(":method", "GET"), EndStream: true})
			}
			return p.framer.WriteContinuation(1, false, nil)
		},
		"pieces of a header": func(p *peer, i uint32) error {
			if i == 0 {
				return p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(":method", "GET"), EndStream: true})
			}
			return p.framer.WriteContinuation(1, false, p.encode("a", strings.Repeat("b", 10000)))
		},
		"data of a stream that is over": func(p *peer, i uint32) error {
			if i == 0 {
				defer synctest.Wait() // until the response has ended the stream: data before that belongs to its body
				return p.ask(1, false, ":method", "POST", ":scheme", "https", ":authority", "h", ":path", "/")
			}
			return p.framer.WriteData(1, false, []byte("a"))
		},
		"GOAWAYs": func(p *peer, _ uint32) error { return p.framer.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"broken streams": func(p *peer, i uint32) error {
			return p.ask(2*i+1, true, "no", "method")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
					if string(c.Target()) == "/body" {
						_, _ = c.ReadBody(time.Now().Add(time.Hour)) // never whole
					}
					return answering(c, received)
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
				p.away(http2.ErrCodeEnhanceYourCalm)
				p.await("the end", func(h heard) bool { return h.over })
				<-p.served
				most := int64(3 * floodBurst)
				if name == "pieces of a header" {
					most = floodBurst / 4 // their size counts
				}
				if n := frames.Load(); n > most {
					t.Errorf("%d frames were taken", n)
				}
			})
		})
	}
}

// TestUsualFramesAreNoFlood checks that a connection with as many frames over a longer time continues.
func TestUsualFramesAreNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t, Config{}, answering)
		for i := range uint32(5000) {
			p.must(p.framer.WritePing(false, [8]byte{byte(i), byte(i >> 8)}))
			time.Sleep(time.Second / floodRate)
		}
		p.must(p.get(1, "/a"))
		if _, body, _ := p.ended(1); body != "/a" {
			t.Errorf("answer %q", body)
		}
	})
}

// TestHeaderBombsAreRefused checks that a header that expands from a few bytes to many is refused before it is
// expanded, and that no handler is called.
func TestHeaderBombsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		p := newPeer(t, Config{}, func(c exchange.Carrier, received time.Time) *exchange.Exchange {
			asked++
			return answering(c, received)
		})
		large := []string{"x", strings.Repeat("y", 3000)}
		p.must(p.get(1, "/", large...)) // which is remembered
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
				t.Fatalf("answer %v", fields)
			}
		}
		p.must(p.get(101, "/"))
		if fields, _, _ := p.ended(101); fields[":status"] != "200" || asked != 2 {
			t.Errorf("answer %v, %d were asked", fields, asked)
		}
	})
}
