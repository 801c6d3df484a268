package unary

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/net/http2"
)

// putBytes makes a call with a value of about this size.
func (p *peer) putBytes(ctx context.Context, size int) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := put(ctx, p.c, &etcdserverpb.PutRequest{Value: make([]byte, size)})
		result <- err
	}()
	synctest.Wait()
	return result
}

// acknowledged reads the acknowledgement of settings. Afterwards the client is not writing.
func (p *peer) acknowledged() {
	p.t.Helper()
	frame, err := p.framer.ReadFrame()
	if err != nil {
		p.t.Fatal(err)
	}
	if settings, ok := frame.(*http2.SettingsFrame); !ok || !settings.IsAck() {
		p.t.Fatalf("got %v", frame)
	}
	synctest.Wait()
}

// sent checks that a frame was written, and waits until the client has processed it.
func (p *peer) sent(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	synctest.Wait()
}

// unsent fails the test unless a call has failed with ErrUnsent.
func unsent(t *testing.T, what string, result <-chan error) {
	t.Helper()
	select {
	case err := <-result:
		if !errors.Is(err, ErrUnsent) {
			t.Errorf("%s: got error %v, want ErrUnsent", what, err)
		}
	default:
		t.Errorf("%s: the call was sent", what)
	}
}

// TestCallsStayWithinThePeersLimits checks that calls that would exceed the peer's windows or number of streams are not
// sent, and that calls are sent again when the limits grow.
func TestCallsStayWithinThePeersLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		const size = 14_000 // less than a frame
		call := func(stream uint32) {
			t.Helper()
			result := p.putBytes(t.Context(), size)
			p.request()
			p.respond(stream)
			if err := <-result; err != nil {
				t.Errorf("call %d: %v", stream, err)
			}
		}
		for stream := range uint32(defaultWindow / size) {
			call(2*stream + 1)
		}
		p.sent(p.framer.WriteWindowUpdate(9, 2*size)) // for the stream of the next call only
		unsent(t, "more than the connection's window", p.putBytes(t.Context(), size))
		p.sent(p.framer.WriteWindowUpdate(0, 2*size))
		call(9)

		p.sent(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: size / 2}))
		p.acknowledged()
		unsent(t, "more than a stream's window", p.putBytes(t.Context(), size))
		p.sent(p.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2 * size}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1}))
		p.acknowledged()
		first := p.putBytes(t.Context(), 1)
		p.request()
		unsent(t, "more calls than are allowed", p.putBytes(t.Context(), 1))
		p.respond(11)
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

// TestWindowsAreRestored checks that flow-control windows are restored whenever a part of them is used, also by padding
// and by responses to canceled calls.
func TestWindowsAreRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged()
		padding := make([]byte, 200)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := p.putBytes(ctx, 1)
		p.request()
		almost := func() {
			p.c.mu.Lock()
			defer p.c.mu.Unlock()
			p.c.received = connectionWindow/4 - uint32(len(padding))
			if k := p.c.inFlight[1]; k != nil {
				k.unacked = streamWindow/4 - uint32(len(padding))
			}
		}
		more := func(whose ...string) {
			t.Helper()
			almost()
			p.sent(p.framer.WriteDataPadded(1, false, []byte{0}, padding))
			for _, stream := range whose {
				if frame := p.frame(); !strings.Contains(frame, "WINDOW_UPDATE "+stream) {
					t.Errorf("got %s, want WINDOW_UPDATE %s", frame, stream)
				}
			}
		}
		more("len", "stream=1")
		p.sent(p.framer.WriteData(1, false, []byte{0})) // too little for another window
		cancel()
		if err := <-result; err == nil {
			t.Error("the call did not end with its context")
		}
		if frame := p.frame(); !strings.Contains(frame, "RST_STREAM") {
			t.Errorf("got %s, want RST_STREAM", frame)
		}
		synctest.Wait()
		more("len")
	})
}
