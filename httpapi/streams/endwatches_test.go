package streams

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestEndWatches checks that a few watches are ended quickly, many over the whole grace period, and other streams
// not at all.
func TestEndWatches(t *testing.T) {
	for _, c := range []struct {
		watches int
		lasts   time.Duration
	}{{100, 500 * time.Millisecond}, {4000, 10 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			ss := New()
			upgraded := &Stream{}
			ss.open[upgraded] = struct{}{}
			for range c.watches {
				ws := &watchStream{streams: ss} // that has a turn, and will look by itself
				ws.Stream.watch = ws
				ss.open[&ws.Stream] = struct{}{}
			}
			told := func() (n int) {
				for _, st := range ss.list() {
					if st.watch != nil && st.watch.signals.Load()&toldToEnd != 0 {
						n++
					}
				}
				return n
			}
			done := make(chan struct{})
			go func() { defer close(done); ss.EndWatches(10 * time.Second) }()
			time.Sleep(c.lasts / 2)
			if n := told(); n < c.watches*45/100 || n > c.watches*55/100 {
				t.Errorf("at half time %d of %d watches were told to end", n, c.watches)
			}
			time.Sleep(c.lasts/2 + watchesPause)
			<-done
			if n := told(); n != c.watches {
				t.Errorf("at the end %d of %d watches were told to end", n, c.watches)
			}
		})
	}
}

// TestEndStopsIdleGoroutines checks that Wait does not wait for a goroutine that has run a watch and has no more work.
func TestEndStopsIdleGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ss := New()
		ws := &watchStream{streams: ss}
		ws.Conn = closing{}
		ws.signals.Store(isParked)
		ws.signal(clientLeft)
		synctest.Wait()
		ss.End()
		ss.Wait(t.Context())
	})
}
