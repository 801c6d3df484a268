package identity

import (
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"

	"github.com/larder-io/larder/httpapi/exchange"
)

// Headers are the fields of a request's header that hold credentials: Authorization, and those
// by which a front proxy names the user. It is immutable.
type Headers struct {
	// names and prefixes belong to a front proxy's fields, in their canonical form.
	names, prefixes []string
	// other says that there are fields of a front proxy beside the usual ones.
	other bool
}

// NewHeaders returns the usual fields, X-Remote-..., and the fields that config names; config may be nil.
func NewHeaders(config *authenticatorfactory.RequestHeaderConfig) *Headers {
	h := &Headers{names: []string{"X-Remote-User", "X-Remote-Uid", "X-Remote-Group"}, prefixes: []string{"X-Remote-Extra-"}}
	if config == nil {
		return h
	}
	usual := len(h.names) + len(h.prefixes)
	for _, more := range []headerrequest.StringSliceProvider{config.UsernameHeaders, config.UIDHeaders, config.GroupHeaders} {
		h.names = appendCanonical(h.names, more.Value())
	}
	h.prefixes = appendCanonical(h.prefixes, config.ExtraHeaderPrefixes.Value())
	h.other = len(h.names)+len(h.prefixes) > usual
	return h
}

func appendCanonical(to, names []string) []string {
	for _, name := range names {
		if name = http.CanonicalHeaderKey(name); !slices.Contains(to, name) {
			to = append(to, name)
		}
	}
	return to
}

// Has reports whether a field, named in its canonical form, holds credentials.
func (h *Headers) Has(name string) bool { return name == "Authorization" || h.isProxyField(name) }

// isProxyField reports whether a front proxy names the user by the field.
func (h *Headers) isProxyField(name string) bool {
	return slices.Contains(h.names, name) || slices.ContainsFunc(h.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// HasProxyFields reports whether a request has one of a front proxy's fields that are not the usual ones.
// http1 and http2 have looked for the usual ones.
func (h *Headers) HasProxyFields(c exchange.Carrier) bool {
	if !h.other {
		return false
	}
	for name := range c.Lines() {
		if h.isProxyField(http.CanonicalHeaderKey(string(name))) {
			return true
		}
	}
	return false
}
