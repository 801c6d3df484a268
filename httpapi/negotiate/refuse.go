package negotiate

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// In upstream go-restful refuses these requests before the handlers see them, with its own texts:
// go-restful jsr311.go, detectRoute, and apiserver pkg/server/handler.go, serviceErrorHandler.

// Producing refuses requests that accept none of media.
func Producing(media []string, h http.Handler) http.Handler {
	text := NoneOf(media)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !Accepts(req.Header.Get("Accept"), media) {
			refuse(w, req, http.StatusNotAcceptable, text)
			return
		}
		h.ServeHTTP(w, req)
	})
}

// NoneOf returns the error text for a client that accepts none of media.
func NoneOf(media []string) string {
	return "406: Not Acceptable\n\nAvailable representations: " + strings.Join(media, ", ")
}

// Accepts reports whether an Accept header names one of media. It ignores parameters. The only wildcard
// is */*.
func Accepts(header string, media []string) bool {
	if header == "" {
		return true
	}
	for clause := range strings.SplitSeq(header, ",") {
		name := mediaName(clause)
		if name == "*/*" || slices.Contains(media, name) {
			return true
		}
	}
	return false
}

// Consuming refuses bodies whose type is not among media.
func Consuming(media []string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if !Consumes(req.Header.Get("Content-Type"), media) {
			refuse(w, req, http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
			return
		}
		h(w, req)
	}
}

// Consumes reports whether a Content-Type header names one of media. There are no wildcards.
func Consumes(header string, media []string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		if slices.Contains(media, mediaName(clause)) {
			return true
		}
	}
	return false
}

// Document serves h, which produces media, for GET. A request may have no Content-Type, but if it has one,
// it must be among media, as in upstream's router.
func Document(media []string, h http.Handler) http.Handler {
	produced := Producing(media, h)
	consumed := Consuming(media, produced.ServeHTTP)
	return OnlyMethods(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Content-Type") == "" {
			produced.ServeHTTP(w, req)
			return
		}
		consumed(w, req)
	}), http.MethodGet)
}

// mediaName returns a media type without its parameters.
func mediaName(clause string) string {
	name, _, _ := strings.Cut(clause, ";")
	return strings.Trim(name, " ")
}

// OnlyMethods refuses all methods except the given ones with 405.
func OnlyMethods(h http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !slices.Contains(methods, req.Method) {
			refuse(w, req, http.StatusMethodNotAllowed, "405: Method Not Allowed")
			return
		}
		h.ServeHTTP(w, req)
	})
}

// NothingBelow answers requests for paths below a document with 404, as upstream's router does.
func NothingBelow(w http.ResponseWriter, req *http.Request) {
	refuse(w, req, http.StatusNotFound, "404: Page Not Found")
}

// refuse answers with the Status that upstream sends for an error of its router.
func refuse(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{}, w, req)
}
