package streams

import (
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// A handler has two ways to set trailers, as with net/http's server: it announces their names
// in the header Trailer before its body, or it sets fields with the prefix
// http.TrailerPrefix at any time.

// announcedTrailers returns the canonical names that header announces.
func announcedTrailers(header http.Header) []string {
	var names []string
	for _, list := range header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// hasTrailers reports whether header announces or has trailers.
func hasTrailers(header http.Header) bool {
	if len(header["Trailer"]) > 0 {
		return true
	}
	for name := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

// isTrailer returns the names of the fields that are trailers and stay out of the head.
func (w *streamWriter) isTrailer() map[string]bool {
	var out map[string]bool
	leave := func(name string) {
		if out == nil {
			out = make(map[string]bool)
		}
		out[name] = true
	}
	for _, name := range w.trailers {
		leave(name)
	}
	for name := range w.sent {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			leave(name)
		}
	}
	return out
}

// trailer returns the fields that come after the body.
func (w *streamWriter) trailer() http.Header {
	after := make(http.Header)
	for name, values := range w.header {
		if late, is := strings.CutPrefix(name, http.TrailerPrefix); is && httpguts.ValidTrailerHeader(http.CanonicalHeaderKey(late)) {
			after[late] = values
		}
	}
	for _, name := range w.trailers {
		if values := w.header[name]; len(values) > 0 {
			after[name] = append(after[name], values...)
		}
	}
	return after
}
