package streams

import (
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/watch"
)

const (
	// largeFrame is the size from which a frame is written without others.
	largeFrame = 64 << 10
	// batchSize is the initial size of a batch's buffer: a piece and one more frame of a few KiB. Buffers
	// larger than keptSize do not return to the pool.
	batchSize = 24 << 10
	keptSize  = 64 << 10
)

// batch holds the deliveries and frames that a watch is about to send. The first chunkHead bytes of buf are
// room for the head of the chunk.
type batch struct {
	deliveries []watch.Delivery
	buf        []byte

	// The stream is charged for the time since clock, minus the waits of writes, and for these bytes and
	// events.
	clock         time.Time
	bytes, events int

	waiter *socket.Waiter // of the goroutine that writes; nil if it serves one watch only
}

var batches = sync.Pool{New: func() any {
	return &batch{deliveries: make([]watch.Delivery, 0, 64), buf: make([]byte, chunkHead, batchSize)}
}}

func getBatch() *batch { return batches.Get().(*batch) }

// reset empties b.
func (b *batch) reset() {
	clear(b.deliveries)
	b.deliveries, b.buf = b.deliveries[:0], b.buf[:chunkHead]
	b.bytes, b.events = 0, 0
}

// release returns b, which is empty, to the pool.
func (b *batch) release() {
	if cap(b.buf) > keptSize {
		b.buf = make([]byte, chunkHead, batchSize)
	}
	if invariants.Enabled {
		invariants.Overwrite(b.buf)
	}
	b.waiter = nil
	batches.Put(b)
}

// appendAll adds the frames of b's deliveries to b, and sends full pieces.
func (ws *watchStream) appendAll(b *batch) error {
	defer clear(b.deliveries)
	b.events += len(b.deliveries)
	for _, d := range b.deliveries {
		var err error
		if d.Shared() && ws.table == nil {
			err = ws.appendShared(b, d)
		} else if err = ws.append(b, d); err == nil && d.Type == watch.InitialEnd && !ws.skipInitialEnd {
			ws.observer.listed()
		}
		if err == nil && len(b.buf) >= chunkHead+pieceSize {
			err = ws.flushPieces(b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// appendShared adds the frame of d to b, or sends it if it is large. All watchers that get d share the frame,
// unless building it costs no more than copying.
func (ws *watchStream) appendShared(b *batch, d watch.Delivery) error {
	if d.Revision == d.Object.Revision() && d.Object.Size() < largeFrame && ws.encoder.Sliced() {
		return ws.append(b, d)
	}
	frame, err := d.Frame(ws.encoder.ID, func(d watch.Delivery) ([]byte, error) {
		return ws.encoder.AppendEventAt(nil, d.Type.String(), d.Object, d.Revision)
	})
	if err != nil {
		return ws.sendError(b, err)
	}
	ws.observer.frame(len(frame))
	if len(frame) >= largeFrame {
		return ws.sendLarge(b, frame)
	}
	b.buf = append(b.buf, frame...)
	return nil
}

// append adds the frame of d, which no other watch shares. An error in it is sent, and ends the watch.
func (ws *watchStream) append(b *batch, d watch.Delivery) (err error) {
	if d.Type == watch.InitialEnd && ws.skipInitialEnd {
		b.events--
		return nil
	}
	before := len(b.buf)
	switch {
	case ws.table != nil:
		var frame []byte
		frame, err = ws.table.frame(d)
		b.buf = append(b.buf, frame...)
	case d.Type == watch.Bookmark, d.Type == watch.InitialEnd:
		b.buf, err = ws.encoder.AppendBookmark(b.buf, d.Revision, d.Type == watch.InitialEnd)
	default:
		b.buf, err = ws.encoder.AppendEvent(b.buf, d.Type.String(), d.Object)
	}
	if err != nil {
		return ws.sendError(b, err)
	}
	ws.observer.frame(len(b.buf) - before)
	return nil
}
