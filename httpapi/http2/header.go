package http2

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/internal/invariants"
)

// request is a parsed header block, and the exchange.Carrier of the exchange that it begins.
type request struct {
	*stream

	text   []byte // names and values, concatenated
	lines  []line
	pseudo [numPseudo]span

	malformed      bool  // the block is not a request, so the stream is reset
	large          bool  // the response is 431
	length         int64 // of the body; -1 if it is not announced
	expects        bool  // the client waits for 100 Continue
	badExpectation bool  // the Expect header is unknown
	facts          exchange.Facts
	streamed       int64 // bytes that were written before the handler took the stream

	room [16]exchange.Field // for the header of the response; few responses have more fields
}

type span struct{ from, to int }

// line is a field of the header: its value ends where the next one's name begins.
type line struct{ name, value span }

// The pseudo-header fields, as indexes.
const (
	pseudoMethod = iota
	pseudoPath
	pseudoAuthority
	pseudoScheme
	numPseudo
)

var pseudoNames = [numPseudo]string{":method", ":path", ":authority", ":scheme"}

var requests = sync.Pool{New: func() any { return new(request) }}

// keptText and keptLines limit the capacity for a header that is kept for the next request.
const (
	keptText  = 16 << 10
	keptLines = 128
)

// dropHeader discards the header, and keeps its memory for the next one.
func (r *request) dropHeader() {
	if invariants.Enabled {
		invariants.Overwrite(r.text)
	}
	if r.text = r.text[:0]; cap(r.text) > keptText {
		r.text = nil
	}
	if r.lines = r.lines[:0]; cap(r.lines) > keptLines {
		r.lines = nil
	}
	r.pseudo = [numPseudo]span{}
}

// release returns r to the pool.
func (r *request) release() {
	r.dropHeader()
	*r = request{text: r.text, lines: r.lines}
	requests.Put(r)
}

// size returns the memory of the header.
func (r *request) size() int64 {
	return int64(len(r.text)) + int64(len(r.lines))*int64(unsafe.Sizeof(line{}))
}

// HPACK lets a client repeat a long field of an earlier header with one byte. So the expanded size of a header is
// limited to a usual size, and beyond that to a multiple of its encoded size. Then few bytes cannot cause much work.
const (
	expandUsual  = 64 << 10
	maxExpansion = 8
)

// block is a header block that is being read.
type block struct {
	req     *request // nil: the fields are decoded for the decoder's state alone
	sent    int      // encoded size of the block
	size    int      // size of the fields, as SETTINGS_MAX_HEADER_LIST_SIZE counts
	maxSize int      // of the fields
	regular bool     // fields of the header have begun
	pieces  []byte   // of the block, if it comes in several
}

// add adds a decoded field.
func (b *block) add(f hpack.HeaderField) {
	r := b.req
	if r == nil || r.large {
		return
	}
	if b.size += int(f.Size()); b.size > b.maxSize || b.size > expandUsual+maxExpansion*b.sent {
		r.large = true
		r.dropHeader()
		return
	}
	switch {
	case !httpguts.ValidHeaderFieldValue(f.Value):
		r.malformed = true
	case strings.HasPrefix(f.Name, ":"):
		r.malformed = r.malformed || b.regular || !r.addPseudo(f)
	case !httpguts.ValidHeaderFieldName(f.Name) || f.Name != strings.ToLower(f.Name):
		r.malformed = true
	default:
		b.regular = true
		r.lines = append(r.lines, line{r.put(f.Name), r.put(f.Value)})
	}
}

func (r *request) put(s string) span {
	from := len(r.text)
	r.text = append(r.text, s...)
	return span{from, len(r.text)}
}

// addPseudo adds a pseudo-header field. It returns false if the field is not allowed.
func (r *request) addPseudo(f hpack.HeaderField) bool {
	which := slices.Index(pseudoNames[:], f.Name)
	if which < 0 || r.has(which) {
		return false
	}
	r.text = append(r.text, ' ') // so that no span is zero, even of an empty value
	r.pseudo[which] = r.put(f.Value)
	return true
}

func (r *request) at(s span) []byte { return r.text[s.from:s.to:s.to] }

func (r *request) has(which int) bool { return r.pseudo[which] != (span{}) }

// check checks a complete header.
func (r *request) check(bodied bool) {
	path := r.at(r.pseudo[pseudoPath])
	method, scheme := r.at(r.pseudo[pseudoMethod]), r.at(r.pseudo[pseudoScheme])
	switch {
	case string(method) == http.MethodConnect:
		r.malformed = r.malformed || r.has(pseudoPath) || r.has(pseudoScheme) || !r.has(pseudoAuthority)
	case len(method) == 0, bytes.ContainsFunc(method, func(c rune) bool { return !httpguts.IsTokenRune(c) }), string(scheme) != "https" && string(scheme) != "http", len(path) == 0, path[0] != '/' && string(path) != "*":
		r.malformed = true
	}
	r.length = -1
	var once [3]bool
	for _, l := range r.lines {
		name, value := r.at(l.name), r.at(l.value)
		switch string(name) {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			r.malformed = true
		case "te":
			r.malformed = r.malformed || string(value) != "trailers"
		case "content-length":
			r.setLength(value)
		case "authorization":
			r.facts.RejectRepeated(&once[0], "Authorization")
		case "content-type":
			r.facts.RejectRepeated(&once[1], "Content-Type")
		case "host":
			r.facts.RejectRepeated(&once[2], "Host")
		case "expect":
			r.expects = bytes.EqualFold(value, []byte("100-continue"))
			r.badExpectation = !r.expects && len(value) > 0
		case "sec-websocket-protocol":
			r.facts.OtherCredentials = true
		default:
			r.facts.Impersonates = r.facts.Impersonates || bytes.HasPrefix(name, []byte("impersonate-"))
			r.facts.OtherCredentials = r.facts.OtherCredentials || bytes.HasPrefix(name, []byte("x-remote-"))
		}
	}
	if host := r.Host(); !httpguts.ValidHostHeader(string(host)) {
		r.facts.Reject("malformed Host header")
	}
	if !bodied {
		r.length = 0
	}
}

// setLength takes the length of the body.
func (r *request) setLength(value []byte) {
	n, err := strconv.ParseUint(string(value), 10, 63)
	if err != nil || r.length >= 0 && r.length != int64(n) {
		r.facts.Reject("malformed Content-Length header")
		return
	}
	r.length = int64(n)
}

// headers reads the rest of a header block, and begins a stream with it.
func (c *Conn) headers(f *http2.HeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	open, late := c.streams[id], id > c.lastAllowed
	fresh := id > c.last && !late
	if fresh {
		c.last = id
	}
	c.mu.Unlock()
	var r *request
	if fresh || open != nil {
		r = requests.Get().(*request)
	}
	ended := f.StreamEnded()
	if err := c.readBlock(r, f); err != nil {
		return err
	}
	switch {
	case f.HasPriority() && f.Priority.StreamDep == id:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case fresh:
		r.check(!ended)
		return c.openStream(id, r, ended)
	case open != nil:
		malformed := r.malformed || r.pseudo != [numPseudo]span{}
		r.release()
		return open.trailer(ended && !malformed)
	case late:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
}

// trailer ends a body. It takes nothing from the header block after it, but that must be whole and valid.
func (st *stream) trailer(valid bool) error {
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	switch b := st.body; {
	case b == nil || b.ended:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case !valid || !b.fits(true):
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	st.body.ended = true
	st.body.wakeLocked()
	return nil
}

// readBlock reads a header block to its end, into r if that is not nil. A block in several frames is
// decoded when it is complete: otherwise the decoder would parse the beginning of a field repeatedly.
func (c *Conn) readBlock(r *request, f *http2.HeadersFrame) error {
	maxSize := c.s.config.MaxHeaderBytes
	c.block = block{req: r, maxSize: maxSize}
	defer c.noteHeaderPieces(0)
	defer func() { c.block.req, c.block.pieces = nil, nil }()
	piece, whole := f.HeaderBlockFragment(), f.HeadersEnded()
	for !whole {
		c.block.pieces = append(slices.Grow(c.block.pieces, max(len(c.block.pieces), len(piece))), piece...) // doubled: garbage stays small
		if err := c.boundHeader(); err != nil {
			return err
		}
		next, err := c.next()
		if err != nil {
			return err
		}
		more, ok := next.(*http2.ContinuationFrame)
		if !ok {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if err := c.checkFlood(); err != nil {
			return err
		}
		piece, whole = more.HeaderBlockFragment(), more.HeadersEnded()
		size := len(c.block.pieces) + len(piece)
		if size > 2*maxSize {
			return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
		}
		c.noteHeaderPieces(size)
	}
	c.headerUntil = time.Time{}
	if len(c.block.pieces) > 0 {
		piece = append(c.block.pieces, piece...)
	}
	c.block.sent = len(piece)
	if _, err := c.decoder.Write(piece); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	if err := c.decoder.Close(); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	return nil
}

// noteHeaderPieces counts the pieces of a header block that have arrived so far.
func (c *Conn) noteHeaderPieces(size int) {
	c.mu.Lock()
	defer c.unlock()
	c.memory.pooled += int64(size) - c.memory.gathered
	c.memory.gathered = int64(size)
}

// boundHeader limits the time until a header that has begun is complete.
func (c *Conn) boundHeader() error {
	if !c.headerUntil.IsZero() {
		return nil
	}
	c.headerUntil = time.Now().Add(c.s.config.HeaderTimeout)
	return c.conn.SetReadDeadline(c.headerUntil)
}
