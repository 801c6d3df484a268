package streams

import (
	"strconv"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
)

const (
	// chunkHead is the maximum length of a chunk's head: eight digits and a line end.
	chunkHead = 10
	// pieceSize is the number of bytes of frames in one write while there are more. With the head and the
	// end of their chunk they fill a TLS record. Larger writes are no cheaper, and stay in memory while a
	// client does not read.
	pieceSize = 16<<10 - 8
)

// response sends the response of a watch: see [exchange.BodyStream].
type response struct {
	Stream

	head    []byte // nil once it is sent
	chunked bool
	end     func() error       // may be nil
	next    func(early []byte) // may be nil
	size    int                // bytes of the body that were sent
	writer  socket.Writer      // to Conn; may be nil
	group   socket.Group       // the connection that Conn shares with other streams; nil if none
	corked  bool               // the next watch on this goroutine has the same group, and sends what this one holds back
}

// flushPieces writes the contents of b in pieces, until less than a piece is left. The head of each piece
// overwrites bytes that have been sent. Its end overwrites two bytes of the next piece, which are then
// restored.
func (r *response) flushPieces(b *batch) error {
	from := chunkHead
	for len(b.buf)-from >= pieceSize {
		to := from + pieceSize
		rest := b.buf
		var kept [2]byte
		copy(kept[:], rest[to:])
		err := r.sendChunk(b, from, to, to < len(rest)) // the rest is sent with the next chunk
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
func (r *response) flush(b *batch) error {
	if len(b.buf) == chunkHead {
		return nil
	}
	err := r.sendChunk(b, chunkHead, len(b.buf), false)
	b.buf = b.buf[:chunkHead]
	return err
}

// sendChunk writes b.buf[from:to] as a chunk, and overwrites the bytes around it. more means that another
// send follows.
func (r *response) sendChunk(b *batch, from, to int, more bool) error {
	r.size += to - from
	b.bytes += to - from
	if !r.chunked {
		return r.send(b, b.buf[from:to], more)
	}
	var room [chunkHead]byte
	head := append(strconv.AppendInt(room[:0], int64(to-from), 16), "\r\n"...)
	start := from - len(head)
	copy(b.buf[start:], head)
	b.buf = append(b.buf[:to], "\r\n"...)
	return r.send(b, b.buf[start:], more)
}

// sendLarge writes the contents of b, and then frame without a copy.
func (r *response) sendLarge(b *batch, frame []byte) error {
	if err := r.flush(b); err != nil {
		return err
	}
	r.size += len(frame)
	b.bytes += len(frame)
	if !r.chunked {
		return r.send(b, frame, false)
	}
	var room [chunkHead]byte
	if err := r.send(b, append(strconv.AppendInt(room[:0], int64(len(frame)), 16), "\r\n"...), true); err != nil {
		return err
	}
	if err := r.send(b, frame, true); err != nil {
		return err
	}
	return r.send(b, []byte("\r\n"), false)
}

// send writes p with a deadline. more means that another send follows.
func (r *response) send(b *batch, p []byte, more bool) error {
	if r.writer != nil {
		return r.writer.Send(r.Conn, p, more || r.corked, b.waiter)
	}
	if w := b.waiter; w != nil {
		(*w).Waits()
		defer (*w).Resumed()
	}
	return r.sendWithin(p)
}

func (r *response) sendWithin(p []byte) error {
	if err := r.Conn.SetWriteDeadline(time.Now().Add(socket.WriteTimeout)); err != nil {
		return err
	}
	_, err := r.Conn.Write(p)
	return err
}
