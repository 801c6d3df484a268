package baseline

import (
	"net"
	"testing"
)

// TestWatchesAreRegisteredBeforeTheirAnswer checks that a watch is registered for changes before its client has the
// answer.
func TestWatchesAreRegisteredBeforeTheirAnswer(t *testing.T) {
	s := New(Tape{})
	for range 200 {
		here, there := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.hold(there)
		}()
		answer := make([]byte, 1<<10)
		if _, err := here.Read(answer); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		watches := len(s.held)
		s.mu.Unlock()
		here.Close()
		<-ended
		if watches != 1 {
			t.Fatalf("a change would be sent to %d watches, want 1", watches)
		}
	}
}
