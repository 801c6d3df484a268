package exchange

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/internal/registry/encoding"
)

// UnknownSize is the size of a body that is encoded while it is written.
const UnknownSize = -1

// Body is the body of a response that writes itself.
type Body interface {
	io.WriterTo
	io.Closer
}

// Field is one field of a response's header.
type Field struct {
	Name, Value string
	// Added means that other fields of the same name stay.
	Added bool
}

// Response is the response to a request. The goroutine that serves the request fills it in. The HTTP server then writes
// it, unless it is streamed or hijacked.
//
// The body is one of Bytes, Body and Reader, or there is none.
type Response struct {
	Code   int // 0 means 200
	Header []Field

	Bytes []byte // shared, not changed

	Body Body // closed after use
	Size int  // bytes that Body writes, or UnknownSize; 0 without a Body

	// Reader is read to its end. Each piece is sent at once.
	Reader io.ReadCloser

	// HeldBytes is how many bytes Body or Reader keeps in memory only for this response.
	HeldBytes int

	// Closing closes the connection after the response, for example after a request that could not be read.
	Closing bool
	// Abort closes the connection without a response.
	Abort bool
	// Hijack is called when the exchange has ended, and writes the whole response. Streamed means that
	// [Carrier.StartStream] was called.
	Hijack   func(Hijacked)
	Streamed bool
}

// HijackedBody is the body of a request whose connection was hijacked. A handler reads it without a limit.
type HijackedBody interface {
	io.Reader
	// SendContinue sends 100 Continue to a client that waits for it.
	SendContinue(w io.Writer) error
}

// Set sets a field of the header.
func (r *Response) Set(name, value string) {
	for i := range r.Header {
		if f := &r.Header[i]; strings.EqualFold(f.Name, name) {
			f.Value = value
			return
		}
	}
	r.Header = append(r.Header, Field{Name: name, Value: value})
}

// Add adds a field to the header.
func (r *Response) Add(name, value string) {
	r.Header = append(r.Header, Field{Name: name, Value: value, Added: true})
}

// Del removes the fields of a name from the header.
func (r *Response) Del(name string) {
	r.Header = slices.DeleteFunc(r.Header, func(f Field) bool { return strings.EqualFold(f.Name, name) })
}

// CopyHeader sets the fields of header, except fields that frame the body.
func (r *Response) CopyHeader(header http.Header) {
	for name, values := range header {
		if name == "Content-Length" || name == "Transfer-Encoding" {
			continue
		}
		for i, value := range values {
			if i == 0 && name != "Warning" { // there may be others
				r.Set(name, value)
			} else {
				r.Add(name, value)
			}
		}
	}
}

// HeaderTo adds the fields of the response to dst, except Content-Type.
func (r *Response) HeaderTo(dst http.Header) {
	for _, f := range r.Header {
		if !strings.EqualFold(f.Name, "Content-Type") {
			dst.Add(f.Name, f.Value)
		}
	}
}

// StatusCode returns the status code of the response.
func (r *Response) StatusCode() int { return cmp.Or(r.Code, http.StatusOK) }

// ValidStatus returns code if it is a valid HTTP status, and otherwise 500. An admission webhook may deny a write with
// any number, which makes net/http panic in kube-apiserver.
func ValidStatus(code int) int {
	if code < 100 || code > 999 {
		return http.StatusInternalServerError
	}
	return code
}

// Head sets the status, made valid by [ValidStatus], and the content type, which may be empty.
func (r *Response) Head(code int, contentType string) {
	r.Code = ValidStatus(code)
	if contentType != "" {
		r.Set("Content-Type", contentType)
	}
}

// Send completes the response with body.
func (r *Response) Send(code int, contentType string, body []byte) {
	r.Head(code, contentType)
	r.Bytes = body
}

// SendFrom completes the response with the size bytes that body writes, and then closes body. If size is UnknownSize
// and body fails, the client can detect the truncation.
func (r *Response) SendFrom(code int, contentType string, size int, body Body) {
	r.Head(code, contentType)
	r.Body, r.Size = body, size
}

// SendReader completes the response with the bytes of body.
func (r *Response) SendReader(code int, body io.ReadCloser) {
	r.Head(code, "")
	r.Reader = body
}

// closeBody closes Body and Reader.
func (r *Response) closeBody() {
	if body := r.Body; body != nil {
		r.Body = nil // before Close, which may panic, so that closeBody does not call it again
		body.Close()
	}
	if r.Reader != nil {
		r.Reader.Close()
		r.Reader = nil
	}
}

// Length returns the length of the body as it is sent, or UnknownSize.
func (r *Response) Length() int { return r.Size + len(r.Bytes) }

// bodyIsSmall reports whether Body, if there is one, takes about one write.
func (r *Response) bodyIsSmall() bool { return r.Size != UnknownSize && r.Size <= RecordSize }

// Large reports whether the response takes more than one write.
func (r *Response) Large() bool {
	return r.Reader != nil || !r.bodyIsSmall() || len(r.Bytes) > RecordSize
}

// objectBody writes an object that fits into the buffer of a ChunkWriter, and is not compressed.
type objectBody struct {
	encoder *encoding.Encoder
	item    []byte
}

func (b *objectBody) WriteTo(w io.Writer) (int64, error) {
	out := NewChunkWriter(w)
	defer out.Release()
	out.Buf = b.encoder.AppendObject(out.Buf, b.item)
	out.Flush()
	return out.Written, out.Err
}

func (b *objectBody) Close() error { return nil }

// SendObject sends an object. item, its encoding by encoder, must not change. The media type is encoder's, or YAML,
// which is made from JSON.
func (x *Exchange) SendObject(code int, mediaType string, pretty bool, encoder *encoding.Encoder, item []byte) {
	size := encoder.ObjectSize(item)
	rewritten := mediaType == runtime.ContentTypeYAML || pretty && mediaType == runtime.ContentTypeJSON
	if size <= RecordSize && !rewritten {
		x.object = objectBody{encoder, item}
		x.SendFrom(code, mediaType, size, &x.object)
		return
	}
	x.SendWhole(code, mediaType, pretty, encoder.AppendObject(make([]byte, 0, size), item))
}

// SendWhole sends a whole body. If the media type is YAML, it is made from body, which is JSON. With pretty, JSON is indented
// as upstream's pretty serializer does.
func (x *Exchange) SendWhole(code int, mediaType string, pretty bool, body []byte) {
	var err error
	switch {
	case mediaType == runtime.ContentTypeYAML:
		body, err = yaml.JSONToYAML(body)
	case pretty && mediaType == runtime.ContentTypeJSON:
		var out bytes.Buffer
		err = json.Indent(&out, bytes.TrimSuffix(body, []byte("\n")), "", "  ")
		body = out.Bytes()
	}
	if err != nil {
		x.FailEncoding(err, mediaType)
		return
	}
	x.SendCompressed(code, mediaType, body)
}

// CompressFrom is the minimum size of compressed responses (apiserver
// pkg/endpoints/handlers/responsewriters/writers.go).
const CompressFrom = 128 << 10

// AcceptsGzip reports whether an Accept-Encoding header names gzip without a weight, and the feature gate
// APIResponseCompression is on. Like upstream, it ignores other forms.
func AcceptsGzip(header []byte) bool {
	for token := range bytes.SplitSeq(header, []byte{','}) {
		if string(bytes.TrimSpace(token)) == "gzip" {
			return utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression)
		}
	}
	return false
}

// gzips holds writers, which are large.
var gzips = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return z
}}

// NewGzip returns a writer that compresses to out. Its Close returns it to the pool.
func NewGzip(out io.Writer) io.WriteCloser {
	z := gzips.Get().(*gzip.Writer)
	z.Reset(out)
	return pooledGzip{z}
}

type pooledGzip struct{ *gzip.Writer }

func (z pooledGzip) Close() error {
	defer gzips.Put(z.Writer)
	return z.Writer.Close()
}

// ErrTimeout is the error of a request whose deadline has passed.
var ErrTimeout = errors.New("exchange: the request's deadline has passed")

// Fail sends the Status of err, in a media type that the client accepts. For ErrTimeout the Status has no kind and is
// plain text, as in apiserver pkg/server/filters/timeout.go.
func (x *Exchange) Fail(err error) {
	x.FailIn(err, legacyscheme.Codecs, schema.GroupVersion{Version: "v1"})
}

// FailIn is Fail with the codecs and the version of a resource, which may have more media types.
func (x *Exchange) FailIn(err error, codecs runtime.NegotiatedSerializer, version schema.GroupVersion) {
	accept := string(x.Peek("Accept"))
	if errors.Is(err, ErrTimeout) {
		status := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
		x.Audit.Failed(&status, accept, codecs)
		body, _ := json.Marshal(&status) // of plain strings: cannot fail
		x.Send(http.StatusGatewayTimeout, "text/plain; charset=utf-8", append(body, '\n'))
		return
	}
	status := responsewriters.ErrorToAPIStatus(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		x.Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	code := int(status.Code)
	if code == http.StatusNoContent {
		x.Head(code, "")
		return
	}
	x.Audit.Failed(status, accept, codecs)
	contentType, body := encodeStatus(status, accept, x.Pretty(), codecs, version)
	x.Serializing(contentType, schema.GroupVersion{Version: "v1"})
	x.SendCompressed(code, contentType, body)
}

// FailEncoding logs err, which is why a response could not be encoded, and sends its Status. It adds nothing to the audit record.
func (x *Exchange) FailEncoding(err error, mediaType string) {
	utilruntime.HandleError(fmt.Errorf("apiserver was unable to write a JSON response: %w", err)) // in any media type
	status := responsewriters.ErrorToAPIStatus(err)
	contentType, body := encodeStatus(status, mediaType, x.Pretty(), legacyscheme.Codecs, schema.GroupVersion{Version: "v1"})
	x.Send(int(status.Code), contentType, body)
}

// encodeStatus encodes status in a media type of accept, or as indented JSON if the server has none of them. If that
// fails, it encodes the error's Status (apiserver pkg/endpoints/handlers/responsewriters/writers.go).
func encodeStatus(status *metav1.Status, accept string, pretty bool, codecs runtime.NegotiatedSerializer, version schema.GroupVersion) (contentType string, body []byte) {
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, codecs.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions)
	if !ok {
		body, _ := json.MarshalIndent(status, "", "  ") // of plain strings: cannot fail
		return "application/json", body
	}
	serializer := media.Accepted.Serializer
	if (media.Pretty || pretty) && media.Accepted.PrettySerializer != nil {
		serializer = media.Accepted.PrettySerializer
	}
	for range 2 {
		body, err := runtime.Encode(codecs.EncoderForVersion(serializer, version), status)
		if err == nil {
			return media.Accepted.MediaType, body
		}
		utilruntime.HandleError(fmt.Errorf("apiserver was unable to write a JSON response: %w", err)) // in any media type
		status = responsewriters.ErrorToAPIStatus(err)
	}
	return "text/plain", fmt.Appendf(nil, "%s: %s", status.Reason, status.Message)
}

// Deny is Fail with the header fields that upstream's filters add.
func (x *Exchange) Deny(err error) {
	x.Set("X-Content-Type-Options", "nosniff")
	x.Fail(err)
}

// Text sends a line of text, as net/http's Error does.
func (x *Exchange) Text(code int, message string) {
	x.Set("X-Content-Type-Options", "nosniff")
	x.Send(code, "text/plain; charset=utf-8", []byte(message+"\n"))
}

// NewRefusal returns the response to a request that c could not read: code, with its text as the body if body
// is set. An HTTP/1.1 connection is then closed.
func NewRefusal(c Carrier, received time.Time, code int, body bool) *Exchange {
	x := new(Exchange)
	x.Init(c, received, nil)
	x.CommonHeaders()
	if body {
		x.Text(code, strconv.Itoa(code)+" "+http.StatusText(code))
	} else {
		x.Head(code, "")
	}
	return x
}

// TooLarge returns the error of a request whose body is longer than limit (apiserver
// pkg/endpoints/handlers/rest.go).
func TooLarge(limit int64) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", limit))
}

// Inspect inspects the header of the request. If two parsers could understand it differently, Inspect rejects the
// request and returns false.
func (x *Exchange) Inspect() (facts Facts, ok bool) {
	facts = x.Carrier.Inspect()
	if facts.Code != 0 {
		x.Text(facts.Code, facts.Refusal)
		x.Closing = true
	}
	return facts, facts.Code == 0
}

// NewAsterisk returns the response to a request whose target is *. net/http also serves it before authentication.
func NewAsterisk(c Carrier, received time.Time) *Exchange {
	x := new(Exchange)
	x.Init(c, received, nil)
	x.Head(http.StatusOK, "")
	x.Inspect()
	return x
}

// InternalError sends the Status of an internal error, and logs it.
func (x *Exchange) InternalError(err error) {
	message := fmt.Sprintf("Internal Server Error: %q: %v", x.Target, err)
	x.Text(http.StatusInternalServerError, htmlEscaper.Replace(message))
	klog.ErrorS(err, "Request failed", "method", x.Method, "path", x.Path, "auditID", x.AuditID)
}

// htmlEscaper escapes like upstream's responsewriters.
var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// NoRoute rejects a request that upstream's router rejects inside a group that it serves.
func (x *Exchange) NoRoute(code int, message string) {
	x.Fail(apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false))
}

// Panicked sends the response after a panic of a handler.
func (x *Exchange) Panicked() {
	x.Reset()
	x.Text(http.StatusInternalServerError, "This request caused apiserver to panic. Look in the logs for details.")
}

// Pretty reports whether to indent JSON: the client asks for it, or is a browser, curl or wget (apiserver
// pkg/endpoints/handlers/negotiation/negotiate.go).
func (x *Exchange) Pretty() bool {
	if asked := x.Query.Get("pretty"); asked != "" {
		pretty, err := strconv.ParseBool(asked)
		return err == nil && pretty
	}
	agent := x.Peek("User-Agent")
	for _, prefix := range [...]string{"curl", "Wget", "Mozilla/5.0"} {
		if bytes.HasPrefix(agent, []byte(prefix)) {
			return true
		}
	}
	return false
}

// Compresses reports whether to compress a response of size bytes.
func (x *Exchange) Compresses(size int) bool {
	return size > CompressFrom && AcceptsGzip(x.Peek("Accept-Encoding"))
}

// Compressed sets the header fields of a compressed body.
func (r *Response) Compressed() {
	r.Set("Content-Encoding", "gzip")
	r.Add("Vary", "Accept-Encoding")
}

// SendCompressed completes the response with body, compressed if the client accepts that.
func (x *Exchange) SendCompressed(code int, contentType string, body []byte) {
	if x.Compresses(len(body)) {
		x.SendGzip(code, contentType, len(body), bytes.NewReader(body))
	} else {
		x.Send(code, contentType, body)
	}
}

// SendGzip completes the response with the size bytes that body writes, compressed.
func (x *Exchange) SendGzip(code int, contentType string, size int, body io.WriterTo) {
	out := bytes.NewBuffer(make([]byte, 0, size/8))
	z := NewGzip(out)
	_, err := body.WriteTo(z)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		x.Fail(err) // unreachable: writing to a buffer does not fail
		return
	}
	x.Compressed()
	x.Send(code, contentType, out.Bytes())
}
