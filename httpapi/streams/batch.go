package streams

import (
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/watch"
)

// batch is what a stream needs while it has something to send. The first chunkHead
// bytes of buf are room for the head of the chunk.
type batch struct {
	deliveries []watch.Delivery
	buf        []byte
	frames     apimetrics.Frames // that were added and are not counted yet

	// What the stream is charged for: the time since clock, less the waits of writes, and
	// so many bytes and events.
	clock         time.Time
	bytes, events int
}

// count counts what was added to b since it had before bytes: a frame, or nothing.
func (ws *watchStream) count(b *batch, before int) {
	if size := len(b.buf) - before; size > 0 {
		b.frames.Add(size - ws.prefix)
	}
}

var batches = sync.Pool{New: func() any {
	return &batch{deliveries: make([]watch.Delivery, 0, 64), buf: make([]byte, chunkHead, batchSize)}
}}

func getBatch() *batch { return batches.Get().(*batch) }

// reset empties b.
func (b *batch) reset() {
	clear(b.deliveries)
	b.deliveries, b.buf, b.frames = b.deliveries[:0], b.buf[:chunkHead], apimetrics.Frames{}
	b.bytes, b.events = 0, 0
}

// release gives b back, empty.
func (b *batch) release() {
	if cap(b.buf) > keptSize {
		b.buf = make([]byte, chunkHead, batchSize)
	}
	if invariants.Enabled {
		invariants.Overwrite(b.buf)
	}
	batches.Put(b)
}
