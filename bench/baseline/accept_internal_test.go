package baseline

import (
	"net"
	"testing"
)

// TestWatchesAreRegisteredBeforeTheResponse checks that a watch is registered for changes before its client has the
// response.
func TestWatchesAreRegisteredBeforeTheResponse(t *testing.T) {
	s := New(Tape{})
	for range 200 {
		here, there := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.hold(there)
		}()
		response := make([]byte, 1<<10)
		if _, err := here.Read(response); err != nil {
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
