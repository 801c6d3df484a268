package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/request"
)

// This file is the only place where an error becomes a response, apart from
// upstream's handlers, whose rules it follows.

// fail answers with the Status of err, in the form that the client accepts.
func (x *exchange) fail(err error) {
	status := responsewriters.ErrorToAPIStatus(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		x.set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	code := int(status.Code)
	if code == http.StatusNoContent {
		x.head(code, "")
		return
	}
	accept := string(x.peek("Accept"))
	x.trail.failed(status, accept)
	contentType, body := encodeStatus(status, accept, x.pretty())
	x.sendCompressed(code, contentType, body)
}

// encodeStatus writes status in the media type that accept asks for, or as indented
// JSON if the server has none of them (apiserver
// pkg/endpoints/handlers/responsewriters/writers.go).
func encodeStatus(status *metav1.Status, accept string, pretty bool) (contentType string, body []byte) {
	media, ok := negotiation.NegotiateMediaTypeOptions(accept, legacyscheme.Codecs.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions)
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
	body, err := runtime.Encode(legacyscheme.Codecs.EncoderForVersion(serializer, schema.GroupVersion{Version: "v1"}), status)
	if err != nil {
		return "text/plain", fmt.Appendf(nil, "%s: %s", status.Reason, status.Message)
	}
	return media.Accepted.MediaType, body
}

// deny answers like fail, with the header that upstream's filters add.
func (x *exchange) deny(err error) {
	x.set("X-Content-Type-Options", "nosniff")
	x.fail(err)
}

// text answers with a line of text, as net/http's Error does.
func (x *exchange) text(code int, message string) {
	x.set("X-Content-Type-Options", "nosniff")
	x.send(code, "text/plain; charset=utf-8", []byte(message+"\n"))
}

// internalError answers a request that the chain itself cannot serve.
func (x *exchange) internalError(err error) {
	message := fmt.Sprintf("Internal Server Error: %q: %v", x.Target, err)
	x.text(http.StatusInternalServerError, htmlEscaper.Replace(message))
	klog.ErrorS(err, "Request failed", "method", x.Method, "path", x.Path, "auditID", x.auditID)
}

// htmlEscaper escapes like upstream's responsewriters.
var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// noRoute answers for what upstream's router does not know inside a group that it
// serves, or knows by other methods.
func (x *exchange) noRoute(code int, message string) {
	x.fail(apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false))
}

// panicked answers after a handler panicked.
func (x *exchange) panicked() {
	x.reset()
	x.text(http.StatusInternalServerError, "This request caused apiserver to panic. Look in the logs for details.")
}

// handleAsterisk answers what is asked of the server as a whole, as net/http's does
// before anybody is authenticated.
func (s *Server) handleAsterisk(ctx *fasthttp.RequestCtx, received time.Time) *exchange {
	x := &exchange{Request: &request.Request{}, s: s, fast: ctx, received: received}
	x.head(http.StatusOK, "")
	return x
}

// handleError answers what could not be read as a request.
func (s *Server) handleError(ctx *fasthttp.RequestCtx, err error) *exchange {
	x := &exchange{Request: &request.Request{}, s: s, fast: ctx}
	x.reset()
	switch {
	case errors.Is(err, errHeaderTooLarge):
		x.text(http.StatusRequestHeaderFieldsTooLarge, "431 Request Header Fields Too Large")
	case errors.Is(err, errExpectation):
		x.head(http.StatusExpectationFailed, "")
	case isTimeout(err):
		x.text(http.StatusRequestTimeout, "408 Request Timeout")
	default:
		x.text(http.StatusBadRequest, "400 Bad Request")
	}
	x.abort()
	return x
}

// frontLogger takes what fasthttp has to say of connections, which is of interest
// to who debugs one.
type frontLogger struct{}

func (frontLogger) Printf(format string, args ...any) {
	if klog.V(4).Enabled() {
		klog.V(4).InfoS("Connection", "message", fmt.Sprintf(format, args...))
	}
}
