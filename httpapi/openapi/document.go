package openapi

import (
	"bytes"
	"cmp"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/NYTimes/gziphandler"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/munnerz/goautoneg"
)

// document is an OpenAPI document. The first request builds it, and then it is kept compressed. In every
// media type its ETag is upstream's: the hash of its JSON.
type document struct {
	dialect dialect

	mu    sync.Mutex
	build func(w io.Writer) error // writes the JSON; nil after it has
	json  *packed
	proto *packed // nil before the first request for it
}

func newDocument(d dialect, build func(w io.Writer) error) *document {
	return &document{dialect: d, build: build}
}

// dialect is the difference between OpenAPI v2 and v3.
type dialect struct {
	version string // "v2" or "v3"
	// protobuf converts a document from JSON to protobuf.
	protobuf func(data []byte) ([]byte, error)
	// pack compresses a document.
	pack func(write func(w io.Writer) error) (*packed, error)
}

// types returns the media types of documents in the order in which upstream tries them, each with the type of the
// response.
func (d dialect) types() [3][2]string {
	name := "com.github.proto-openapi.spec." + d.version
	protobuf, deprecated := name+".v1.0+protobuf", name+"@v1.0+protobuf"
	return [3][2]string{{"json", "json"}, {protobuf, protobuf}, {deprecated, protobuf}}
}

// packed holds compressed bytes. Concurrent readers share one uncompressed copy, so slow readers, and
// requests for many ranges, cost no further memory.
type packed struct {
	data []byte // compressed by gzip, or by S2 if fast
	fast bool
	size int64 // before compression
	tag  string
	made time.Time

	mu    sync.Mutex
	whole weak.Pointer[[]byte]
}

// packLevel makes a document a fifth smaller than the fastest level, in hardly more time (O1).
const packLevel = 5

// pack compresses what write writes with gzip, which clients accept.
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
	return &packed{data: bytes.Clone(out.Bytes()), size: int64(*size), tag: fmt.Sprintf("%X", hash.Sum(nil)), made: time.Now()}, nil
}

// packFast compresses what write writes with S2, at a tenth of the cost of pack. It is for documents that
// are never sent compressed.
func packFast(write func(w io.Writer) error) (*packed, error) {
	var whole bytes.Buffer
	if err := write(&whole); err != nil {
		return nil, err
	}
	return &packed{
		data: bytes.Clone(s2.EncodeBetter(nil, whole.Bytes())), fast: true, size: int64(whole.Len()),
		tag: fmt.Sprintf("%X", sha512.Sum512(whole.Bytes())), made: time.Now(),
	}, nil
}

// counter counts written bytes.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// unpack returns the uncompressed bytes, which are shared and must not be changed. Later calls return the same
// bytes while a caller still holds the pointer.
func (p *packed) unpack() (*[]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if whole := p.whole.Value(); whole != nil {
		return whole, nil
	}
	whole, err := make([]byte, p.size), error(nil)
	if p.fast {
		whole, err = s2.Decode(whole, p.data)
	} else {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(p.data)); err == nil {
			_, err = io.ReadFull(z, whole)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	p.whole = weak.Make(&whole)
	return &whole, nil
}

// in returns the document in a media type, given without "application/".
func (d *document) in(subType string) (*packed, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.json == nil {
		p, err := d.dialect.pack(d.build)
		if err != nil {
			return nil, err
		}
		d.json, d.build = p, nil
	}
	switch {
	case subType == "json":
		return d.json, nil
	case d.proto != nil:
		return d.proto, nil
	}
	data, err := d.json.unpack()
	if err != nil {
		return nil, err
	}
	proto, err := d.dialect.protobuf(*data)
	if err != nil {
		return nil, fmt.Errorf("httpapi: openapi: %w", err)
	}
	p, err := d.dialect.pack(func(w io.Writer) error {
		_, err := w.Write(proto)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.tag, p.made = d.json.tag, d.json.made
	d.proto = p
	return p, nil
}

// clauses returns the media types that a request accepts, in the order of its preference.
func clauses(r *http.Request) []goautoneg.Accept {
	return goautoneg.ParseAccept(cmp.Or(r.Header.Get("Accept"), "*/*"))
}

// acceptable returns the document in the media type that clauses ask for, and the type without
// "application/". ok is false if the document has none of these types.
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

// send responds with p, as kube-openapi pkg/handler and pkg/handler3 do.
func (p *packed) send(w http.ResponseWriter, r *http.Request, subType string) {
	w.Header().Set("Content-Type", "application/"+subType)
	w.Header().Set("Etag", strconv.Quote(p.tag))
	if !p.fast && compresses(w) && p.size >= gziphandler.DefaultMinSize && plain(r) {
		w.Header().Set("Content-Encoding", "gzip") // so that w does not compress
		serveContent(w, r, p.made, bytes.NewReader(p.data))
		return
	}
	serveContent(w, r, p.made, io.NewSectionReader(&unpacking{packed: p}, 0, p.size))
}

// unpacking reads a document. The first read unpacks it, so a response without a body does not.
type unpacking struct {
	packed *packed
	whole  *[]byte // nil before the first read
}

func (u *unpacking) ReadAt(dst []byte, at int64) (n int, err error) {
	if u.whole == nil {
		if u.whole, err = u.packed.unpack(); err != nil {
			return 0, err
		}
	}
	return bytes.NewReader(*u.whole).ReadAt(dst, at)
}

// compresses reports whether w compresses, because the client accepts gzip. OpenAPI v3 is never sent
// compressed, as in upstream.
func compresses(w http.ResponseWriter) bool {
	switch w.(type) {
	case *gziphandler.GzipResponseWriter, gziphandler.GzipResponseWriterWithCloseNotify:
		return true
	}
	return false
}

// plain reports whether the response to r is the whole document, or 304.
func plain(r *http.Request) bool {
	for _, name := range []string{"Range", "If-Match", "If-Unmodified-Since"} {
		if r.Header.Get(name) != "" {
			return false
		}
	}
	return r.Method == http.MethodGet
}

// maxRanges limits the ranges of a document in one request. A request for more gets the whole
// document, as RFC 9110, section 14.2, allows. net/http passes each range from one goroutine to another,
// and a header can name 200,000 ranges.
const maxRanges = 100

// serveContent is http.ServeContent with a limit on ranges.
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
