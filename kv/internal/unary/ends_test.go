package unary

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRetiredConnectionsEndWithTheirLastCall checks that a retired connection closes when its last call ends, for any
// reason.
func TestRetiredConnectionsEndWithTheirLastCall(t *testing.T) {
	for name, end := range map[string]func(p *peer, cancel func()){
		"response": func(p *peer, _ func()) { p.respond(1) },
		"reset":    func(p *peer, _ func()) { p.sent(p.framer.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"refused":  func(p *peer, _ func()) { p.sent(p.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream)) },
		"canceled": func(_ *peer, cancel func()) { cancel() },
		"goaway":   func(p *peer, _ func()) { p.sent(p.framer.WriteGoAway(0, http2.ErrCodeNo, nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				p.acknowledged()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				result := p.putBytes(ctx, 1)
				p.request()
				p.c.Retire()
				begin := time.Now()
				end(p, cancel)
				<-result
				if _, err := io.Copy(io.Discard, p.conn); err != nil {
					t.Error(err)
				}
				if waited := time.Since(begin); waited > 0 {
					t.Errorf("the connection ended after %v, want at once", waited)
				}
			})
		})
	}
}

func TestRetiredIdleConnectionsEndAtOnce(t *testing.T) {
	for _, run := range []func(*Conn, context.Context) error{(*Conn).Run, (*Conn).RunInline} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeerOf(t, run)
			p.c.Retire()
			p.conn.SetReadDeadline(time.Now().Add(Tick))
			if _, err := io.Copy(io.Discard, p.conn); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestIdleConnectionsHaveNoWriteDeadline checks that the deadline of the last write has no effect on an idle connection,
// where TLS may have to respond to a key update.
func TestIdleConnectionsHaveNoWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		result := p.putBytes(t.Context(), 1)
		p.request()
		p.respond(1)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * stuckAfter * Tick)
		go io.Copy(io.Discard, p.conn)
		if _, err := p.c.conn.Write([]byte{0}); err != nil {
			t.Error(err)
		}
	})
}

// TestPingsAreAcknowledged checks that pings are acknowledged at once, without calls, during a call and after GOAWAY.
func TestPingsAreAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		ping := func(n byte) {
			t.Helper()
			p.sent(p.framer.WritePing(false, [8]byte{n}))
			begin := time.Now()
			frame, err := p.framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if ack, ok := frame.(*http2.PingFrame); !ok || !ack.IsAck() || ack.Data != [8]byte{n} {
				t.Errorf("got %v, want the acknowledgement of ping %d", frame, n)
			}
			if waited := time.Since(begin); waited > 0 {
				t.Errorf("ping %d was acknowledged after %v, want at once", n, waited)
			}
		}
		ping(1)
		result := p.putBytes(t.Context(), 1)
		p.request()
		ping(2)
		p.sent(p.framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
		ping(3)
		p.respond(1)
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

// TestCallersWriteForOthers checks that a caller also writes the requests of others, up to a limit, and that the other
// requests are then written at once.
func TestCallersWriteForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		begin := time.Now()
		const calls = maxFlushes + 1 // the first caller does not write the last one
		results := []<-chan error{p.putBytes(t.Context(), 1)}
		for i := range uint32(calls) {
			if i < calls-1 {
				results = append(results, p.putBytes(t.Context(), 1)) // while the previous one is being written
			}
			p.request()
			synctest.Wait()
		}
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("the requests were written after %v, want at once", waited)
		}
		for i, result := range results {
			p.respond(uint32(2*i + 1))
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestCallersThatWriteForOthersGetTheirResponse checks that a caller that writes for others returns with its own response
// while others still make calls.
func TestCallersThatWriteForOthersGetTheirResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		first := p.putBytes(t.Context(), 1)
		for range maxFlushes {
			p.putBytes(t.Context(), 1)
			p.request()
			synctest.Wait()
		}
		p.respond(1)
		synctest.Wait()
		select {
		case err := <-first:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the first caller has not returned")
		}
	})
}

// failingWrites is a connection whose writes of calls fail while muted is set. The acknowledgement of a ping, which may be
// written before, is shorter.
type failingWrites struct {
	net.Conn
	muted atomic.Bool
}

const pingLength = 9 + 8 // RFC 9113, 6.7

// Write fails while muted is set.
func (f *failingWrites) Write(b []byte) (int, error) {
	if f.muted.Load() && len(b) > pingLength {
		return 0, io.ErrShortWrite
	}
	return f.Conn.Write(b)
}

// TestFailedWriteEndsTheConnection checks that the connection ends after a failed write even if it can still be read. The
// call is not ErrUnsent, because it may have been made.
func TestFailedWriteEndsTheConnection(t *testing.T) {
	address, _ := start(t, &server{})
	conn, err := net.Dial("tcp", address)
	m := &failingWrites{Conn: conn}
	c := open(t, m, Tick, err)
	if _, err := put(t.Context(), c, &etcdserverpb.PutRequest{}); err != nil {
		t.Fatal(err)
	}
	m.muted.Store(true)
	if _, err := put(t.Context(), c, &etcdserverpb.PutRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got error %v, want Unavailable", err)
	}
	<-c.Ended()
}

// TestResponsesDoNotMix checks that the outcome of a call does not serve for the next one, whose response has none.
func TestResponsesDoNotMix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		cut := newResponse()
		cut.cut = true
		go func() {
			for stream := uint32(1); ; stream += 2 {
				for range 2 { // headers and data
					if _, err := p.framer.ReadFrame(); err != nil {
						return
					}
				}
				a := newResponse()
				if stream%4 == 3 {
					a = cut
				}
				if _, err := p.conn.Write(encode(stream, a)); err != nil {
					return
				}
			}
		}()
		for range 20 {
			if _, err := put(t.Context(), p.c, &etcdserverpb.PutRequest{}); err != nil {
				t.Fatal(err)
			}
			if _, err := put(t.Context(), p.c, &etcdserverpb.PutRequest{}); status.Code(err) != codes.Internal {
				t.Fatalf("a response without an outcome: got error %v, want Internal", err)
			}
		}
	})
}

// TestInlineCallsEndTheConnection checks that the connection ends with an inline call whose context ends, or that is
// not acknowledged within a Tick.
func TestInlineCallsEndTheConnection(t *testing.T) {
	for name, want := range map[string]codes.Code{"canceled": codes.Canceled, "no response": codes.Unavailable} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeerOf(t, (*Conn).RunInline)
				for stream := range uint32(3) {
					result := p.putInline(t.Context())
					p.request()
					p.respond(2*stream + 1)
					if err := <-result; err != nil {
						t.Fatalf("call %d: %v", stream, err)
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begin := time.Now()
				result := p.putInline(ctx)
				p.request()
				if want == codes.Canceled {
					cancel()
				}
				if err := <-result; status.Code(err) != want {
					t.Errorf("got %v, want %v", err, want)
				}
				if waited := time.Since(begin); waited > Tick {
					t.Errorf("the call took %v, want at most %v", waited, Tick)
				}
				<-p.c.Ended()
				if err := <-p.putInline(t.Context()); !errors.Is(err, ErrUnsent) {
					t.Errorf("the next call: got error %v, want ErrUnsent", err)
				}
			})
		})
	}
}

// TestHeadersInSeveralFramesAreRead checks CONTINUATION frames up to the limit.
func TestHeadersInSeveralFramesAreRead(t *testing.T) {
	for size, want := range map[int]codes.Code{frameSize: codes.NotFound, 3 * frameSize: codes.NotFound, 2 * maxHeaders: codes.Unavailable} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			p.acknowledged()
			result := p.putBytes(t.Context(), 1)
			p.request()
			var block bytes.Buffer
			encoder := hpack.NewEncoder(&block)
			encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
			encoder.WriteField(hpack.HeaderField{Name: "grpc-message", Value: strings.Repeat("\x7f", size)})
			encoder.WriteField(hpack.HeaderField{Name: "grpc-status", Value: "5"})
			rest := block.Bytes()
			err := p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: rest[:10], EndStream: true})
			for rest = rest[10:]; len(rest) > 0 && err == nil; {
				part := rest[:min(frameSize, len(rest))]
				rest = rest[len(part):]
				err = p.framer.WriteContinuation(1, len(rest) == 0, part)
			}
			if err != nil && want != codes.Unavailable {
				t.Fatal(err)
			}
			if err := <-result; status.Code(err) != want {
				t.Errorf("%d bytes: got %v, want %v", size, status.Code(err), want)
			}
		})
	}
}
