package exchange

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// ErrTimeout is the error of a request whose deadline has passed.
var ErrTimeout = errors.New("exchange: the request's deadline has passed")

// Fail answers with the Status of err, in a media type that the client accepts. For ErrTimeout the
// Status has no kind and is plain text, as in apiserver pkg/server/filters/timeout.go.
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

// encodeStatus encodes status in a media type of accept, or as indented JSON if the server has none of
// them (apiserver pkg/endpoints/handlers/responsewriters/writers.go).
func encodeStatus(status *metav1.Status, accept string, pretty bool, codecs runtime.NegotiatedSerializer, version schema.GroupVersion) (contentType string, body []byte) {
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, codecs.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions)
	if !ok {
		body, err := json.MarshalIndent(status, "", "  ")
		if err != nil {
			return "text/plain; charset=utf-8", []byte(err.Error() + "\n")
		}
		return "application/json", body
	}
	serializer := media.Accepted.Serializer
	if (media.Pretty || pretty) && media.Accepted.PrettySerializer != nil {
		serializer = media.Accepted.PrettySerializer
	}
	body, err := runtime.Encode(codecs.EncoderForVersion(serializer, version), status)
	if err != nil {
		return "text/plain", fmt.Appendf(nil, "%s: %s", status.Reason, status.Message)
	}
	return media.Accepted.MediaType, body
}

// Deny answers like Fail, with the header that upstream's filters add.
func (x *Exchange) Deny(err error) {
	x.Set("X-Content-Type-Options", "nosniff")
	x.Fail(err)
}

// Text answers with a line of text, as net/http's Error does.
func (x *Exchange) Text(code int, message string) {
	x.Set("X-Content-Type-Options", "nosniff")
	x.Send(code, "text/plain; charset=utf-8", []byte(message+"\n"))
}

// InternalError answers a request that the server itself cannot serve.
func (x *Exchange) InternalError(err error) {
	message := fmt.Sprintf("Internal Server Error: %q: %v", x.Target, err)
	x.Text(http.StatusInternalServerError, htmlEscaper.Replace(message))
	klog.ErrorS(err, "Request failed", "method", x.Method, "path", x.Path, "auditID", x.AuditID)
}

// htmlEscaper escapes like upstream's responsewriters.
var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// NoRoute answers a request that upstream's router refuses inside a group that it serves.
func (x *Exchange) NoRoute(code int, message string) {
	x.Fail(apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false))
}

// Panicked answers after a handler panicked.
func (x *Exchange) Panicked() {
	x.Reset()
	x.Text(http.StatusInternalServerError, "This request caused apiserver to panic. Look in the logs for details.")
}

// Pretty reports whether the client looks like a human's, or says so (apiserver
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

// Compresses reports whether an answer of size bytes is to be compressed.
func (x *Exchange) Compresses(size int) bool {
	return size > CompressFrom && AcceptsGzip(x.Peek("Accept-Encoding"))
}

// Compressed says in the header that the body is compressed.
func (r *Response) Compressed() {
	r.Set("Content-Encoding", "gzip")
	r.Add("Vary", "Accept-Encoding")
}

// SendCompressed completes the response with body, compressed if that is wanted.
func (x *Exchange) SendCompressed(code int, contentType string, body []byte) {
	if !x.Compresses(len(body)) {
		x.Send(code, contentType, body)
		return
	}
	out := bytes.NewBuffer(make([]byte, 0, len(body)/8))
	z := GetGzip(out)
	_, err := z.Write(body)
	x.SendGzip(code, contentType, out, z, err)
}

// SendGzip completes the response with what z, which it takes back, wrote to out.
func (x *Exchange) SendGzip(code int, contentType string, out *bytes.Buffer, z *gzip.Writer, err error) {
	if closeErr := z.Close(); err == nil {
		err = closeErr
	}
	PutGzip(z)
	if err != nil {
		x.Fail(err) // of a buffer: cannot be
		return
	}
	x.Compressed()
	x.Send(code, contentType, out.Bytes())
}
