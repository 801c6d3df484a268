package streams

import (
	"strconv"
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/watch"
)

const (
	// chunkHead is the maximum length of a chunk's head: eight digits and a line end.
	chunkHead = 10
	// pieceSize is the number of bytes of frames in one write while there are more. With the head and the
	// end of their chunk they fill a TLS record. Larger writes are no cheaper, and stay in memory while a
	// client does not read.
	pieceSize = 16<<10 - 8
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

// release gives b back, empty.
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
	frame, err := d.Frame(ws.encoder.ID(), func(d watch.Delivery) ([]byte, error) {
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

// flushPieces writes the contents of b in pieces, until less than a piece is left. The head of each piece
// overwrites bytes that have been sent. Its end overwrites two bytes of the next piece, which are then
// restored.
func (ws *watchStream) flushPieces(b *batch) error {
	from := chunkHead
	for len(b.buf)-from >= pieceSize {
		to := from + pieceSize
		rest := b.buf
		var kept [2]byte
		copy(kept[:], rest[to:])
		err := ws.sendChunk(b, from, to, to < len(rest)) // the rest leaves with what comes next
		b.buf = rest
		copy(b.buf[to:], kept[:])
		if err != nil {
			b.buf = b.buf[:chunkHead]
			return err
		}
		from = to
	}
	b.buf = b.buf[:chunkHead+copy(b.buf[chunkHead:], b.buf[from:])]
	return nil
}

// flush writes the contents of b as one chunk.
func (ws *watchStream) flush(b *batch) error {
	if len(b.buf) == chunkHead {
		return nil
	}
	err := ws.sendChunk(b, chunkHead, len(b.buf), false)
	b.buf = b.buf[:chunkHead]
	return err
}

// sendChunk writes b.buf[from:to] as a chunk, and overwrites the bytes around it. more means that another
// send follows.
func (ws *watchStream) sendChunk(b *batch, from, to int, more bool) error {
	ws.size += to - from
	b.bytes += to - from
	if !ws.chunked {
		return ws.send(b, b.buf[from:to], more)
	}
	var room [chunkHead]byte
	head := append(strconv.AppendInt(room[:0], int64(to-from), 16), "\r\n"...)
	start := from - len(head)
	copy(b.buf[start:], head)
	b.buf = append(b.buf[:to], "\r\n"...)
	return ws.send(b, b.buf[start:], more)
}

// sendLarge writes the contents of b, and then frame without a copy.
func (ws *watchStream) sendLarge(b *batch, frame []byte) error {
	if err := ws.flush(b); err != nil {
		return err
	}
	ws.size += len(frame)
	b.bytes += len(frame)
	if !ws.chunked {
		return ws.send(b, frame, false)
	}
	var room [chunkHead]byte
	if err := ws.send(b, append(strconv.AppendInt(room[:0], int64(len(frame)), 16), "\r\n"...), true); err != nil {
		return err
	}
	if err := ws.send(b, frame, true); err != nil {
		return err
	}
	return ws.send(b, []byte("\r\n"), false)
}

// send writes p with a deadline. more means that another send follows.
func (ws *watchStream) send(b *batch, p []byte, more bool) error {
	if ws.writer != nil {
		return ws.writer.Send(ws.Conn, p, more || ws.corked, b.waiter)
	}
	if w := b.waiter; w != nil {
		(*w).Waits()
		defer (*w).GoesOn()
	}
	return ws.sendWithin(p)
}

func (ws *watchStream) sendWithin(p []byte) error {
	if err := ws.Conn.SetWriteDeadline(time.Now().Add(socket.WriteTimeout)); err != nil {
		return err
	}
	_, err := ws.Conn.Write(p)
	return err
}
