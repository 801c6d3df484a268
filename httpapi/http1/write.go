package http1

import (
	"fmt"
	"io"
	"net/http"
	"strconv"

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
	resp, body, size := &ss.response, x.Bytes, x.Length()
	if code := resp.StatusCode(); code == http.StatusNoContent || code == http.StatusNotModified {
		resp.SkipBody = true
	}
	switch {
	case x.Reader != nil && ss.Chunks():
		return writeChunked(resp, out, func(to framer) error {
			to.flush = true
			_, err := io.Copy(to, struct{ io.Reader }{x.Reader})
			out.Flush() // the header, if the body is empty
			return err
		})
	case x.Reader != nil: // the client does not support chunks
		var err error
		if body, err = io.ReadAll(x.Reader); err != nil {
			return err
		}
		size = len(body)
	case size == exchange.UnknownSize:
		return writeChunked(resp, out, func(to framer) error {
			_, err := x.Body.WriteTo(to)
			return err
		})
	}
	if size > 0 || !resp.SkipBody {
		resp.Header.SetContentLength(size)
	}
	out.Buf = resp.Header.AppendBytes(out.Buf)
	want := int64(len(out.Buf))
	if !resp.SkipBody {
		want += int64(size)
		if out.Add(body); x.Body != nil {
			if _, err := x.Body.WriteTo(out); err != nil {
				return err
			}
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

// writeChunked writes a response in chunks. write writes its body, whose size is unknown.
func writeChunked(resp *fasthttp.Response, out *exchange.ChunkWriter, write func(framer) error) error {
	resp.Header.SetContentLength(exchange.UnknownSize)
	out.Buf = resp.Header.AppendBytes(out.Buf)
	if !resp.SkipBody {
		if err := write(framer{out: out}); err != nil {
			return err
		}
		out.Buf = append(out.Buf, "0\r\n\r\n"...)
	}
	out.Flush()
	return out.Err
}

// framer writes each piece as a chunk: RFC 9112, 7.1.
type framer struct {
	out   *exchange.ChunkWriter
	flush bool // send each piece at once
}

func (f framer) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // a chunk without bytes would end the body
	}
	f.out.Buf = strconv.AppendUint(f.out.Buf, uint64(len(p)), 16)
	f.out.Buf = append(f.out.Buf, "\r\n"...)
	f.out.Add(p)
	f.out.Buf = append(f.out.Buf, "\r\n"...)
	if f.flush {
		f.out.Flush()
	}
	return len(p), f.out.Err
}

// Builds tagged invariants overwrite buffers before another client uses them.

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
