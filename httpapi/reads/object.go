package reads

import (
	"io"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/registry/encoding"
)

// objectBody writes an object that is too small to be compressed and fits into what a
// ChunkWriter gathers.
type objectBody struct {
	encoder *encoding.Encoder
	item    []byte
}

// WriteTo implements io.WriterTo.
func (b *objectBody) WriteTo(w io.Writer) (int64, error) {
	out := exchange.NewChunkWriter(w)
	defer out.Release()
	out.Buf = b.encoder.AppendObject(out.Buf, b.item)
	out.Flush()
	return out.Written, out.Err
}

// Close implements io.Closer.
func (b *objectBody) Close() error { return nil }
