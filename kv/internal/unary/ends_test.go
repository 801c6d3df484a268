package unary

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestRetiredConnectionsEnd with the last call, whatever ends it.
func TestRetiredConnectionsEnd(t *testing.T) {
	for name, end := range map[string]func(p *peer, cancel func()){
		"answered": func(p *peer, _ func()) { p.answer(1) },
		"reset":    func(p *peer, _ func()) { p.say(p.framer.WriteRSTStream(1, http2.ErrCodeCancel)) },
		"refused":  func(p *peer, _ func()) { p.say(p.framer.WriteRSTStream(1, http2.ErrCodeRefusedStream)) },
		"given up": func(_ *peer, cancel func()) { cancel() },
		"away":     func(p *peer, _ func()) { p.say(p.framer.WriteGoAway(0, http2.ErrCodeNo, nil)) },
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
					t.Errorf("it ends after %v", waited)
				}
			})
		})
	}
}

// TestPings are answered: one with a call or at the next Tick, many at once, and all at once when
// the peer goes away, which may wait for it.
func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		ping := func(n byte) { p.say(p.framer.WritePing(false, [8]byte{n})) }
		pong := func(within time.Duration, ns ...byte) {
			t.Helper()
			begin := time.Now()
			for _, n := range ns {
				frame, err := p.framer.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				if answer, ok := frame.(*http2.PingFrame); !ok || !answer.IsAck() || answer.Data != [8]byte{n} {
					t.Errorf("got %v, want the answer to ping %d", frame, n)
				}
			}
			if waited := time.Since(begin); waited > within {
				t.Errorf("it took %v", waited)
			}
		}
		ping(1)
		pong(Tick, 1)
		for n := range byte(maxPings) {
			ping(n)
		}
		pong(0, 0, 1, 2, 3)
		ping(5)
		begin := time.Now()
		for stream := range uint32(pongAfter) {
			result := p.putBytes(t.Context(), 1)
			if stream == pongAfter-1 {
				pong(0, 5)
			}
			p.request()
			p.answer(2*stream + 1)
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("calls took %v", waited)
		}
		result := p.putBytes(t.Context(), 1)
		p.request()
		ping(6)
		p.say(p.framer.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil))
		pong(0, 6)
		ping(7)
		pong(0, 7)
		p.answer(2*pongAfter + 1)
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

// TestResets have gRPC's codes, and none but that of calls which were refused says that nothing
// was done.
func TestResets(t *testing.T) {
	for reset, want := range map[http2.ErrCode]codes.Code{
		http2.ErrCodeNo: codes.Internal, http2.ErrCodeInternal: codes.Internal, http2.ErrCodeStreamClosed: codes.Internal,
		http2.ErrCodeFlowControl: codes.ResourceExhausted, http2.ErrCodeEnhanceYourCalm: codes.ResourceExhausted,
		http2.ErrCodeInadequateSecurity: codes.PermissionDenied, http2.ErrCodeCancel: codes.Canceled,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			p.acknowledged()
			result := p.putBytes(t.Context(), 1)
			p.request()
			p.say(p.framer.WriteRSTStream(1, reset))
			if err := <-result; status.Code(err) != want || !strings.HasPrefix(status.Convert(err).Message(), "stream terminated by RST_STREAM") {
				t.Errorf("%v: %v, want %v", reset, err, want)
			}
		})
	}
}
