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

// What follows is refused by go-restful before upstream's handlers see a request,
// with texts of its own: go-restful jsr311.go, detectRoute, and apiserver
// pkg/server/handler.go, serviceErrorHandler.

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

// NoneOf returns the text for a client that accepts none of media.
func NoneOf(media []string) string {
	return "406: Not Acceptable\n\nAvailable representations: " + strings.Join(media, ", ")
}

// Accepts reports whether an Accept header names one of media. Parameters are
// ignored; of the wildcards only */* counts.
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

// Consuming refuses bodies of a type that is not among media.
func Consuming(media []string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if !Consumes(req.Header.Get("Content-Type"), media) {
			refuse(w, req, http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
			return
		}
		h(w, req)
	}
}

// Consumes reports whether a Content-Type header names one of media. None of them is a
// wildcard there.
func Consumes(header string, media []string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		if slices.Contains(media, mediaName(clause)) {
			return true
		}
	}
	return false
}

// Document serves h, which produces media, by GET. A request needs no Content-Type, but if it
// has one, the router wants it to be among media, too.
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

// mediaName is a media type without its parameters.
func mediaName(clause string) string {
	name, _, _ := strings.Cut(clause, ";")
	return strings.Trim(name, " ")
}

// OnlyMethods answers other methods than those given with 405.
func OnlyMethods(h http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !slices.Contains(methods, req.Method) {
			refuse(w, req, http.StatusMethodNotAllowed, "405: Method Not Allowed")
			return
		}
		h.ServeHTTP(w, req)
	})
}

// NothingBelow answers for a path below a document of upstream's router.
func NothingBelow(w http.ResponseWriter, req *http.Request) {
	refuse(w, req, http.StatusNotFound, "404: Page Not Found")
}

// refuse answers with the Status that upstream makes of a router's error.
func refuse(w http.ResponseWriter, req *http.Request, code int, message string) {
	err := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{}, w, req)
}
