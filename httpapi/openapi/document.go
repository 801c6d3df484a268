package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NYTimes/gziphandler"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/munnerz/goautoneg"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/internal/invariants"
)

// document is an OpenAPI document: built when it is first asked for, kept compressed
// and inflated for each reader. Its tag is that of upstream: the hash of its JSON, whatever
// it is read in.
type document struct {
	dialect dialect

	mu    sync.Mutex
	build func(w io.Writer) error // writes the JSON; nil once it has
	json  *packed
	proto *packed // nil before it was asked for
}

func newDocument(d dialect, build func(w io.Writer) error) *document {
	return &document{dialect: d, build: build}
}

// dialect is what differs between OpenAPI v2 and v3.
type dialect struct {
	version string // "v2" or "v3"
	// protobuf makes the protobuf form of a document in JSON.
	protobuf func(data []byte) ([]byte, error)
	// pack compresses a document.
	pack func(write func(w io.Writer) error) (*packed, error)
}

// types are the media types of documents, in the order in which upstream tries them,
// with the one that is answered.
func (d dialect) types() [3][2]string {
	name := "com.github.proto-openapi.spec." + d.version
	protobuf, deprecated := name+".v1.0+protobuf", name+"@v1.0+protobuf"
	return [3][2]string{{"json", "json"}, {protobuf, protobuf}, {deprecated, protobuf}}
}

// packed are compressed bytes: by gzip, or by S2 if fast.
type packed struct {
	data []byte
	fast bool
	size int64 // before compression
	tag  string
	made time.Time
}

// packLevel makes a document a fifth smaller than the fastest level, and takes hardly longer (O1).
const packLevel = 5

// pack compresses what write writes so that it may be sent as it is.
func pack(write func(w io.Writer) error) (*packed, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, packLevel)
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	hash, size := sha512.New(), new(counter)
	if err := write(io.MultiWriter(z, hash, size)); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	return &packed{
		data: bytes.Clone(out.Bytes()),
		size: int64(*size),
		tag:  fmt.Sprintf("%X", hash.Sum(nil)),
		made: time.Now(),
	}, nil
}

// packFast compresses what write writes, and is read, at a tenth of the cost of pack. Nobody
// could be sent what it keeps.
func packFast(write func(w io.Writer) error) (*packed, error) {
	buffer := wholes.Get().(*bytes.Buffer)
	defer putWhole(buffer)
	if err := write(buffer); err != nil {
		return nil, err
	}
	hash := sha512.Sum512(buffer.Bytes())
	room := wholes.Get().(*bytes.Buffer)
	defer putWhole(room)
	room.Grow(s2.MaxEncodedLen(buffer.Len()))
	return &packed{
		data: bytes.Clone(s2.EncodeBetter(room.AvailableBuffer(), buffer.Bytes())),
		fast: true,
		size: int64(buffer.Len()),
		tag:  fmt.Sprintf("%X", hash),
		made: time.Now(),
	}, nil
}

// wholes is a pool of buffers for documents that are being packed or sent.
var wholes = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func putWhole(buffer *bytes.Buffer) {
	if invariants.Enabled {
		invariants.Overwrite(buffer.Bytes())
	}
	buffer.Reset()
	wholes.Put(buffer)
}

// counter counts what is written to it.
type counter int64

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// unpack returns what was compressed.
func (p *packed) unpack() ([]byte, error) {
	if p.fast {
		return p.unpackTo(nil)
	}
	z, err := gzip.NewReader(bytes.NewReader(p.data))
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	data := make([]byte, p.size)
	if _, err := io.ReadFull(z, data); err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	return data, nil
}

// unpackTo is unpack of what is fast, into the memory of dst if that has room.
func (p *packed) unpackTo(dst []byte) ([]byte, error) {
	data, err := s2.Decode(dst[:cap(dst)], p.data)
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	return data, nil
}

// inJSON returns the document, which the first call builds.
func (d *document) inJSON() (*packed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.jsonLocked()
}

func (d *document) jsonLocked() (*packed, error) {
	if d.json != nil {
		return d.json, nil
	}
	p, err := d.dialect.pack(d.build)
	if err != nil {
		return nil, err
	}
	d.json, d.build = p, nil
	return p, nil
}

// in returns the document in a media type, given without "application/".
func (d *document) in(subType string) (*packed, error) {
	if subType == "json" {
		return d.inJSON()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proto != nil {
		return d.proto, nil
	}
	from, err := d.jsonLocked()
	if err != nil {
		return nil, err
	}
	data, err := from.unpack()
	if err != nil {
		return nil, err
	}
	if data, err = d.dialect.protobuf(data); err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	p, err := d.dialect.pack(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.tag, p.made = from.tag, from.made
	d.proto = p
	return p, nil
}

// clauses are the media types that a request accepts, those that it likes best first.
func clauses(r *http.Request) []goautoneg.Accept {
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	return goautoneg.ParseAccept(accept)
}

// acceptable returns the form of a document that clauses ask for, and its media type,
// without "application/". ok is false if there is no such form.
func (d *document) acceptable(clauses []goautoneg.Accept) (p *packed, subType string, ok bool, err error) {
	for _, clause := range clauses {
		for _, t := range d.dialect.types() {
			if clause.Type != "application" && clause.Type != "*" || clause.SubType != t[0] && clause.SubType != "*" {
				continue
			}
			p, err = d.in(t[1])
			return p, t[1], true, err
		}
	}
	return nil, "", false, nil
}

// content returns the bytes, inflated while they are read.
func (p *packed) content() *inflated { return &inflated{packed: p} }

// inflated reads what was compressed. Going back inflates all of it, once: a request may
// ask for thousands of ranges in any order.
//
// Invariant: reader is nil, or stands at offset at.
type inflated struct {
	packed   *packed
	reader   *gzip.Reader
	whole    []byte // nil before somebody went back
	at, goal int64
}

var _ io.ReadSeeker = (*inflated)(nil)

// Seek implements io.Seeker.
func (i *inflated) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += i.goal
	case io.SeekEnd:
		offset += i.packed.size
	}
	if offset < 0 {
		return 0, errors.New("httpapi: seek before the start")
	}
	i.goal = offset
	return offset, nil
}

// Read implements io.Reader.
func (i *inflated) Read(p []byte) (int, error) {
	if i.reader != nil && i.at > i.goal && i.whole == nil {
		whole, err := i.packed.unpack()
		if err != nil {
			return 0, err
		}
		i.whole, i.reader = whole, nil
	}
	if i.whole != nil {
		return i.readWhole(p)
	}
	if i.reader == nil {
		z, err := gzip.NewReader(bytes.NewReader(i.packed.data))
		if err != nil {
			return 0, fmt.Errorf("httpapi: openapi: %w", err)
		}
		i.reader, i.at = z, 0
	}
	if i.at < i.goal {
		n, err := io.CopyN(io.Discard, i.reader, i.goal-i.at)
		if i.at += n; err != nil {
			return 0, err
		}
	}
	n, err := i.reader.Read(p)
	i.at += int64(n)
	i.goal = i.at
	return n, err
}

func (i *inflated) readWhole(p []byte) (int, error) {
	if i.goal >= int64(len(i.whole)) {
		return 0, io.EOF
	}
	n := copy(p, i.whole[i.goal:])
	i.goal += int64(n)
	return n, nil
}

// send answers with p. It follows kube-openapi pkg/handler and pkg/handler3.
func (p *packed) send(w http.ResponseWriter, r *http.Request, subType, tag string) {
	w.Header().Set("Content-Type", "application/"+subType)
	w.Header().Set("Etag", strconv.Quote(tag))
	if p.fast {
		p.sendFast(w, r)
		return
	}
	if compresses(w) && p.size >= gziphandler.DefaultMinSize && plain(r) {
		w.Header().Set("Content-Encoding", "gzip") // so that w does not
		serveContent(w, r, p.made, bytes.NewReader(p.data))
		return
	}
	serveContent(w, r, p.made, p.content())
}

// sendFast answers with what is fast.
func (p *packed) sendFast(w http.ResponseWriter, r *http.Request) {
	buffer := wholes.Get().(*bytes.Buffer)
	defer putWhole(buffer)
	buffer.Grow(int(p.size))
	data, err := p.unpackTo(buffer.AvailableBuffer())
	if err != nil {
		klog.ErrorS(err, "OpenAPI cannot be unpacked")
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	serveContent(w, r, p.made, bytes.NewReader(data)) // which is done with data when it returns
}

// compresses reports whether what is written to w would be compressed, because the client
// takes gzip. Of OpenAPI v3 nothing is, as in upstream.
func compresses(w http.ResponseWriter) bool {
	switch w.(type) {
	case *gziphandler.GzipResponseWriter, gziphandler.GzipResponseWriterWithCloseNotify:
		return true
	}
	return false
}

// plain reports whether r is answered with the whole document, or told that it has not changed.
func plain(r *http.Request) bool {
	for _, name := range []string{"Range", "If-Match", "If-Unmodified-Since"} {
		if r.Header.Get(name) != "" {
			return false
		}
	}
	return r.Method == http.MethodGet
}

// maxRanges is how many ranges of a document a request may ask for. Whoever asks for more
// gets the document, as RFC 9110, section 14.2, allows: net/http hands each range from one
// goroutine to another, and a header holds 200,000.
const maxRanges = 100

// serveContent is http.ServeContent with a bound on ranges.
func serveContent(w http.ResponseWriter, r *http.Request, modified time.Time, content io.ReadSeeker) {
	if strings.Count(r.Header.Get("Range"), ",") >= maxRanges {
		r = r.Clone(r.Context())
		r.Header.Del("Range")
	}
	http.ServeContent(w, r, "", modified, content)
}

// writeJSON writes v as encoding/json does.
func writeJSON(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("httpapi: openapi: %w", err)
	}
	_, err = w.Write(data)
	return err
}
