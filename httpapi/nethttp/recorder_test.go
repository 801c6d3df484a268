package nethttp

import (
	"net/http"
	"testing"
)

// TestAnnouncedLengthsAreNotBelieved checks that the allocation for an announced Content-Length is limited, and by
// less for a body that is not buffered as a whole.
func TestAnnouncedLengthsAreNotBelieved(t *testing.T) {
	for length, room := range map[string][2]int{
		"100000": {100_000, 200_000}, "1000000000000": {1, 2 * MaxBuffered}, "-1": {1, 1 << 10}, "x": {1, 1 << 10}, "": {1, 1 << 10},
	} {
		w := NewRecorder()
		w.Header().Set("Content-Length", length)
		if n, err := w.Write([]byte("a")); n != 1 || err != nil || w.status != http.StatusOK {
			t.Errorf("length %q: %d written, %v", length, n, err)
		}
		if got := w.body.Cap(); got < room[0] || got > room[1] {
			t.Errorf("length %q: room for %d bytes, want %v", length, got, room)
		}
	}
	proxied := &Recorder{header: http.Header{"Content-Length": {"8388608"}}, most: maxFlushed}
	proxied.Write([]byte("a"))
	if got := proxied.body.Cap(); got > 2*maxFlushed {
		t.Errorf("forwarded response: room for %d bytes, want at most %d", got, 2*maxFlushed)
	}
}
