package exchange

import (
	"io"
	"sync"

	"github.com/larder-io/larder/internal/invariants"
)

const (
	// ChunkSize is the size of the buffer of a [ChunkWriter]: whole TLS records that fit into the processor's cache.
	ChunkSize = 4 * RecordSize
	// RecordSize is the maximum size of a TLS record.
	RecordSize = 16 << 10
	chunkRoom  = 16 << 10 // extra capacity for bytes that are appended before their size is checked
	keepChunk  = 4 * ChunkSize
)

// ChunkWriter buffers small pieces and writes whole TLS records. After an error it discards further bytes.
type ChunkWriter struct {
	To      io.Writer
	Buf     []byte // the buffered bytes; callers may append
	Written int64  // bytes written to To
	Err     error
	nested  int // users beyond the first
}

var chunks = sync.Pool{New: func() any { return &ChunkWriter{Buf: make([]byte, 0, ChunkSize+chunkRoom)} }}

// NewChunkWriter returns a ChunkWriter that writes to w, or w itself if it is a ChunkWriter.
func NewChunkWriter(w io.Writer) *ChunkWriter {
	if c, ok := w.(*ChunkWriter); ok {
		c.nested++
		return c
	}
	c := chunks.Get().(*ChunkWriter)
	*c = ChunkWriter{To: w, Buf: c.Buf[:0]}
	return c
}

// Write implements io.Writer.
func (c *ChunkWriter) Write(p []byte) (int, error) {
	c.Add(p)
	return len(p), c.Err
}

// Add appends p.
func (c *ChunkWriter) Add(p []byte) {
	for len(c.Buf)+len(p) >= ChunkSize {
		if len(c.Buf) == 0 {
			whole := len(p) / RecordSize * RecordSize
			c.send(p[:whole])
			p = p[whole:]
			break
		}
		n := min(max(0, ChunkSize-len(c.Buf)), len(p))
		c.Buf = append(c.Buf, p[:n]...)
		p = p[n:]
		whole := len(c.Buf) / ChunkSize * ChunkSize
		c.send(c.Buf[:whole])
		c.Buf = append(c.Buf[:0], c.Buf[whole:]...)
	}
	c.Buf = append(c.Buf, p...)
}

// Flush writes the buffered bytes.
func (c *ChunkWriter) Flush() {
	c.send(c.Buf)
	c.Buf = c.Buf[:0]
}

func (c *ChunkWriter) send(p []byte) {
	if c.Err != nil || len(p) == 0 {
		return
	}
	var n int
	n, c.Err = c.To.Write(p)
	c.Written += int64(n)
}

// Release returns c to the pool. Each caller of NewChunkWriter calls Release once; the last call returns c.
func (c *ChunkWriter) Release() {
	if c.nested > 0 {
		c.nested--
		return
	}
	if c.To = nil; cap(c.Buf) > keepChunk {
		return
	}
	if invariants.Enabled {
		invariants.Overwrite(c.Buf)
	}
	chunks.Put(c)
}
