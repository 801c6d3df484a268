package httpapi

import (
	"io"
	"strconv"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/wire"
)

// unknownSize stands for the size of a body that is sent in chunks as it is made.
const unknownSize = -1

// sendChunked completes the response with what body writes, whose size nobody knows
// beforehand. If body fails, so does the response: its end is missing.
func (x *exchange) sendChunked(status int, contentType string, body writerToCloser) {
	x.sendFrom(status, contentType, unknownSize, body)
}

// chunks reports whether the client takes a body in chunks.
func (x *exchange) chunks() bool { return x.fast.Request.Header.IsHTTP11() }

// writeChunked writes a response whose body has no known size.
func (x *exchange) writeChunked(out *chunkWriter) error {
	resp := &x.fast.Response
	resp.Header.SetContentLength(unknownSize)
	out.buf = resp.Header.AppendBytes(out.buf)
	if !resp.SkipBody {
		if _, err := x.body.WriteTo(framer{out}); err != nil {
			return err
		}
		out.buf = append(out.buf, "0\r\n\r\n"...)
	}
	out.flush()
	return out.err
}

// framer writes each piece as a chunk: RFC 9112, 7.1.
type framer struct{ out *chunkWriter }

// Write implements io.Writer.
func (f framer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // would be the end
	}
	f.out.buf = strconv.AppendUint(f.out.buf, uint64(len(p)), 16)
	f.out.buf = append(f.out.buf, "\r\n"...)
	f.out.write(p)
	f.out.buf = append(f.out.buf, "\r\n"...)
	return len(p), f.out.err
}

// prettyBody indents what body writes, which is JSON.
type prettyBody struct{ writerToCloser }

// indentRoom holds what Indenters use.
var indentRoom = sync.Pool{New: func() any { return new([]byte) }}

// WriteTo implements io.WriterTo.
func (b prettyBody) WriteTo(w io.Writer) (int64, error) {
	out := newChunkWriter(w)
	defer out.release()
	room := indentRoom.Get().(*[]byte)
	defer func() {
		if invariants.Enabled {
			invariants.Overwrite(*room)
		}
		indentRoom.Put(room)
	}()
	in := wire.NewIndenter(out, *room)
	_, err := b.writerToCloser.WriteTo(in)
	rest, flushErr := in.Flush()
	*room = rest
	if err == nil {
		err = flushErr
	}
	if err != nil {
		return out.written, err
	}
	out.flush()
	return out.written, out.err
}

// gzipBody compresses what body writes.
type gzipBody struct{ writerToCloser }

// WriteTo implements io.WriterTo.
func (b gzipBody) WriteTo(w io.Writer) (int64, error) {
	out := newChunkWriter(w)
	defer out.release()
	z := gzips.Get().(*gzip.Writer)
	defer gzips.Put(z)
	z.Reset(out)
	if _, err := b.writerToCloser.WriteTo(z); err != nil {
		return out.written, err
	}
	if err := z.Close(); err != nil {
		return out.written, err
	}
	out.flush()
	return out.written, out.err
}
