package exchange

import (
	"io"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/flow"
)

// unwritten is a body that is never written.
type unwritten struct{ io.WriterTo }

// Close implements io.Closer.
func (unwritten) Close() error { return nil }

// TestLargeResponsesHoldTheirSeat checks that a response that takes long to send holds its seat until it has been sent.
func TestLargeResponsesHoldTheirSeat(t *testing.T) {
	for name, c := range map[string]struct {
		response Response
		want     int64
	}{
		"nothing":              {Response{}, 0},
		"a record":             {Response{Bytes: make([]byte, RecordSize)}, 0},
		"more than a record":   {Response{Bytes: make([]byte, RecordSize+1)}, 1},
		"a small body":         {Response{Body: unwritten{}, Size: RecordSize}, 0},
		"a large body":         {Response{Body: unwritten{}, Size: RecordSize + 1}, 1},
		"a body of any size":   {Response{Body: unwritten{}, Size: UnknownSize}, 1},
		"what comes in pieces": {Response{Reader: io.NopCloser(strings.NewReader(""))}, 1},
	} {
		var counts flow.Gauge
		counts.Add(1)
		x := &Exchange{Response: c.response, Seat: Seat{Gauge: &counts}}
		x.ReleaseSeat()
		if now := counts.Add(0); now != c.want {
			t.Errorf("%s: %d places are held, want %d", name, now, c.want)
		}
		x.Close()
		if now := counts.Add(0); now != 0 {
			t.Errorf("%s: %d places are held at the end", name, now)
		}
	}
}
