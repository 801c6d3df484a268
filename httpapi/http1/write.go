package http1

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/invariants"
)

// setHeader copies the status and the header of r to fasthttp's response.
func setHeader(resp *fasthttp.Response, r *exchange.Response) {
	resp.SetStatusCode(r.StatusCode())
	for _, f := range r.Header {
		if f.Added {
			resp.Header.Add(f.Name, f.Value)
		} else {
			resp.Header.Set(f.Name, f.Value)
		}
	}
	if r.Closing {
		resp.SetConnectionClose()
	}
}

// write writes the response of x to the connection.
func (ss *Session) write(x *exchange.Exchange) error {
	out := exchange.NewChunkWriter((*counted)(ss))
	defer out.Release()
	resp := &ss.response
	switch {
	case x.Body == nil:
		return ss.writeBuffered(x, out)
	case x.Size == exchange.UnknownSize:
		return writeChunked(resp, x.Body, out)
	}
	resp.Header.SetContentLength(x.Size)
	out.Buf = resp.Header.AppendBytes(out.Buf)
	want := int64(len(out.Buf))
	if !resp.SkipBody {
		want += int64(x.Size)
		if _, err := x.Body.WriteTo(out); err != nil {
			return err
		}
	}
	out.Flush()
	if out.Err == nil && out.Written != want {
		return fmt.Errorf("httpapi: wrote %d bytes of %d", out.Written, want)
	}
	return out.Err
}

// counted writes to the connection of a session and counts the bytes.
type counted Session

func (c *counted) Write(p []byte) (int, error) {
	n, err := socket.Write(c.conn, p)
	c.sent += int64(n)
	return n, err
}

// writeChunked writes a response with a body of unknown size.
func writeChunked(resp *fasthttp.Response, body exchange.Body, out *exchange.ChunkWriter) error {
	resp.Header.SetContentLength(exchange.UnknownSize)
	out.Buf = resp.Header.AppendBytes(out.Buf)
	if !resp.SkipBody {
		if _, err := body.WriteTo(framer{out}); err != nil {
			return err
		}
		out.Buf = append(out.Buf, "0\r\n\r\n"...)
	}
	out.Flush()
	return out.Err
}

// framer writes each piece as a chunk: RFC 9112, 7.1.
type framer struct{ out *exchange.ChunkWriter }

func (f framer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // would be the end
	}
	f.out.Buf = strconv.AppendUint(f.out.Buf, uint64(len(p)), 16)
	f.out.Buf = append(f.out.Buf, "\r\n"...)
	f.out.Add(p)
	f.out.Buf = append(f.out.Buf, "\r\n"...)
	return len(p), f.out.Err
}

// writers holds buffers for what fasthttp writes.
var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}

// writeBuffered writes a response whose body is bytes or a reader.
func (ss *Session) writeBuffered(x *exchange.Exchange, out *exchange.ChunkWriter) error {
	w := writers.Get().(*bufio.Writer)
	defer func() {
		if invariants.Enabled {
			w.Reset(io.Discard)
			invariants.Overwrite(w.AvailableBuffer())
		}
		w.Reset(nil)
		writers.Put(w)
	}()
	w.Reset(out)
	resp := &ss.response
	switch {
	case x.Reader != nil && x.Carrier.Chunks():
		resp.SetBodyStream(x.Reader, -1)
		w.Reset(out.To) // each piece when it comes
	case x.Reader != nil: // the client knows no chunks
		body, err := io.ReadAll(x.Reader)
		if err != nil {
			return err
		}
		resp.SetBodyRaw(body)
	default:
		resp.SetBodyRaw(x.Bytes)
	}
	err := resp.Write(w)
	if flushErr := w.Flush(); err == nil {
		err = flushErr
	}
	out.Flush()
	if err == nil {
		err = out.Err
	}
	return err
}

// Builds that check invariants overwrite buffers before another client uses them.

// overwrite overwrites fasthttp's copies of a request, and of the header of a response. Bodies may be shared
// bytes.
func (m *message) overwrite() {
	in, out := &m.header, &m.response.Header
	for key, value := range in.All() {
		overwriteValue(key, value)
	}
	for key, value := range out.All() {
		overwriteValue(key, value)
	}
	invariants.Overwrite(in.RawHeaders())
	if uri := in.RequestURI(); string(uri) != "/" { // may be a constant
		invariants.Overwrite(uri)
	}
}

// overwriteValue overwrites the value of a header, unless it may be one of fasthttp's constants.
func overwriteValue(key, value []byte) {
	if string(key) != "Connection" {
		invariants.Overwrite(value[:len(value):len(value)])
	}
}
