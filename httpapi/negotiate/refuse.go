package negotiate

import (
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// In upstream go-restful refuses these requests before the handlers see them, with its own texts:
// go-restful jsr311.go, detectRoute, and apiserver pkg/server/handler.go, serviceErrorHandler.

// Producing refuses requests that accept none of media.
func Producing(media []string, h http.Handler) http.Handler {
	text := NotAcceptableText(media)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !Accepts(req.Header.Get("Accept"), media) {
			refuse(w, req, http.StatusNotAcceptable, text)
			return
		}
		h.ServeHTTP(w, req)
	})
}

// NotAcceptableText returns the error text for a client that accepts none of media.
func NotAcceptableText(media []string) string {
	return "406: Not Acceptable\n\nAvailable representations: " + strings.Join(media, ", ")
}

// Accepts reports whether an Accept header names one of media. It ignores parameters. The only wildcard
// is */*.
func Accepts(header string, media []string) bool {
	return header == "" || slices.ContainsFunc(strings.Split(header, ","), func(clause string) bool {
		name := mediaName(clause)
		return name == "*/*" || slices.Contains(media, name)
	})
}

// Consumes reports whether a Content-Type header names one of media. Wildcards do not count there.
func Consumes(header string, media []string) bool {
	return slices.ContainsFunc(strings.Split(header, ","), func(clause string) bool { return slices.Contains(media, mediaName(clause)) })
}

// Document serves h, which produces media, for GET. A request may have no Content-Type, but if it has one,
// it must be among media, as in upstream's router.
func Document(media []string, h http.Handler) http.Handler {
	produced := Producing(media, h)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		contentType := req.Header.Get("Content-Type")
		switch {
		case req.Method != http.MethodGet:
			refuse(w, req, http.StatusMethodNotAllowed, "405: Method Not Allowed")
		case contentType != "" && !Consumes(contentType, media):
			refuse(w, req, http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
		default:
			produced.ServeHTTP(w, req)
		}
	})
}

// mediaName returns a media type without its parameters.
func mediaName(clause string) string {
	name, _, _ := strings.Cut(clause, ";")
	return strings.Trim(name, " ")
}

// NotFound responds for a path below a document of upstream's router.
func NotFound(w http.ResponseWriter, req *http.Request) {
	refuse(w, req, http.StatusNotFound, "404: Page Not Found")
}

// Routed serves what install adds to upstream's router, which refuses other requests.
func Routed(install func(*restful.Container)) http.Handler {
	c := restful.NewContainer()
	c.ServiceErrorHandler(func(err restful.ServiceError, req *restful.Request, resp *restful.Response) {
		refuse(resp.ResponseWriter, req.Request, err.Code, err.Message)
	})
	install(c)
	return http.HandlerFunc(c.Dispatch) // its ServeHTTP redirects from paths that are not clean
}

// refuse responds with the Status that upstream sends for an error of its router.
func refuse(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{}, w, req)
}
