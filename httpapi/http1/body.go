package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/socket"
)

const (
	// maxDiscard limits the unread part of a body that the session discards before the next request, as in net/http's
	// server.
	maxDiscard = 256 << 10
	// maxTrailer limits the size of the trailer of a chunked body.
	maxTrailer = 4 << 10
	// bodyStart limits the memory that is allocated for a body before any of it has arrived.
	bodyStart = 64 << 10
)

var (
	errLongTrailer = errors.New("http: suspiciously long trailer after chunked body")
	errTrailerEnd  = errors.New("http: unexpected EOF reading trailer")
)

// incoming is the body of a request on its connection. It is not read before the handler asks for it. Its errors are
// net/http's, which upstream's handlers send to the client.
type incoming struct {
	length int64         // as announced; -1 for chunks
	in     *bufio.Reader // of the connection, after the header
	left   int64         // bytes to read of a body of known length
	chunks io.Reader     // of a body in chunks, once it is read

	expects bool // the client waits for 100 Continue
	done    bool // all has been read
	err     error
}

// bodyOf returns the body that h announces. expects says that the client waits for 100
// Continue.
func bodyOf(h *fasthttp.RequestHeader, in *bufio.Reader, expects bool) incoming {
	b := incoming{in: in}
	switch length := h.ContentLength(); {
	case length == -1:
		b.length = -1
	case length > 0:
		b.length, b.left = int64(length), int64(length)
	default:
		b.done = true
	}
	b.expects = expects && !b.done && h.IsHTTP11()
	return b
}

// continues reports whether an Expect header asks for 100 Continue.
func continues(expect []byte) bool {
	if len(expect) == 0 {
		return false
	}
	tokens := strings.FieldsFunc(string(expect), func(r rune) bool { return r == ',' || r == ' ' || r == '\t' })
	return slices.ContainsFunc(tokens, func(token string) bool { return strings.EqualFold(token, "100-continue") })
}

// Read reads the body without its framing. It repeats an error.
func (i *incoming) Read(p []byte) (n int, err error) {
	switch {
	case i.err != nil:
		return 0, i.err
	case i.done:
		return 0, io.EOF
	case i.length >= 0:
		n, err = i.readSized(p)
	default:
		n, err = i.readChunks(p)
	}
	i.err, i.done = err, err == io.EOF
	return n, err
}

func (i *incoming) readSized(p []byte) (int, error) {
	n, err := i.in.Read(p[:min(int64(len(p)), i.left)])
	i.left -= int64(n)
	switch {
	case i.left == 0:
		return n, io.EOF
	case err == io.EOF:
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

func (i *incoming) readChunks(p []byte) (int, error) {
	if i.chunks == nil {
		i.chunks = httputil.NewChunkedReader(i.in)
	}
	n, err := i.chunks.Read(p)
	if err == io.EOF {
		if trailerErr := i.readTrailer(); trailerErr != nil {
			err = trailerErr
		}
	}
	return n, err
}

// readTrailer reads the trailer of a chunked body and discards it.
func (i *incoming) readTrailer() error {
	next, err := i.in.Peek(2)
	switch {
	case string(next) == "\r\n":
		_, err = i.in.Discard(2)
		return err
	case errors.Is(err, io.EOF):
		return errTrailerEnd
	case err != nil:
		return err
	}
	for size := 4; ; size++ {
		next, err := i.in.Peek(size)
		if bytes.HasSuffix(next, []byte("\r\n\r\n")) {
			break
		}
		if err != nil || size == maxTrailer {
			return errLongTrailer
		}
	}
	_, err = textproto.NewReader(i.in).ReadMIMEHeader()
	return err
}

// buffered reports whether the rest of the body has already arrived.
func (i *incoming) buffered() bool { return i.length >= 0 && int64(i.in.Buffered()) >= i.left }

// SendContinue sends 100 Continue to a client that waits for it.
func (i *incoming) SendContinue(w io.Writer) error {
	if !i.expects {
		return nil
	}
	_, err := io.WriteString(w, "HTTP/1.1 100 Continue\r\n\r\n")
	return err
}

// readAll reads the body, which may have at most limit bytes.
func (i *incoming) readAll(limit int64) ([]byte, error) {
	if i.length > limit {
		return nil, exchange.TooLarge(limit)
	}
	var data bytes.Buffer
	if i.length > 0 {
		data.Grow(int(min(i.length, bodyStart)) + bytes.MinRead)
	}
	if _, err := data.ReadFrom(io.LimitReader(i, limit+1)); err != nil {
		return data.Bytes(), err
	}
	if int64(data.Len()) > limit {
		return data.Bytes()[:limit], exchange.TooLarge(limit)
	}
	return data.Bytes(), nil
}

// ReadBody implements exchange.Carrier.
func (ss *Session) ReadBody(deadline time.Time) ([]byte, error) {
	if err := ss.setWriteDeadline(time.Now().Add(socket.WriteTimeout)); err != nil {
		return nil, err
	}
	if err := ss.body.SendContinue(ss.conn); err != nil {
		return nil, err
	}
	if err := ss.setBodyDeadline(deadline); err != nil {
		return nil, err
	}
	return ss.body.readAll(ss.s.config.MaxBodyBytes)
}

// setBodyDeadline sets the deadline for reading the body.
func (ss *Session) setBodyDeadline(until time.Time) error {
	ss.reads = 2 // so that Read does not set the header's deadline
	if ss.body.buffered() {
		return nil
	}
	ss.readUntil = until
	return ss.conn.SetReadDeadline(until)
}

// discardBody discards the rest of the body, and reports whether another request can follow: not after an error, if the
// rest is large, or if the client waits for 100 Continue. It runs before the response is written, because some clients
// read only after they have sent everything. A large response, which holds a seat, does not wait for the client.
func (ss *Session) discardBody(x *exchange.Exchange) bool {
	b := &ss.body
	switch {
	case b.done:
		return true
	case b.err != nil || b.expects || b.left >= maxDiscard:
		return false
	case x.Large() && !b.buffered():
		return false
	}
	if ss.setBodyDeadline(x.Received.Add(ss.s.config.BodyTimeout)) != nil {
		return false
	}
	_, err := io.CopyN(io.Discard, b, maxDiscard+1)
	return err == io.EOF
}
