package httpapi

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"hash"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/apimetrics"
)

// rememberCredentials is how long a connection's credentials are not looked at again.
// What authenticators remember by themselves they remember for as much less than
// upstream does.
const rememberCredentials = time.Second

// credentials is what a connection was last authenticated by. Of a secret nothing is
// kept but a digest under a key of this process.
type credentials struct {
	digest   [sha256.Size]byte
	asked    [sha256.Size]byte // room for the digest of what the request has
	response *authenticator.Response
	until    time.Time

	generation uint64               // of what says who may be accepted
	class      apimetrics.UserClass // of the user, for metrics
	token      bool                 // it was a token, which upstream would have looked up
}

// digester makes digests of credentials.
type digester struct{ pool sync.Pool }

func newDigester() *digester {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails
	return &digester{pool: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

func (d *digester) digest(dst *[sha256.Size]byte, secret []byte) {
	if *dst = [sha256.Size]byte{}; len(secret) == 0 {
		return
	}
	h := d.pool.Get().(hash.Hash)
	h.Reset()
	h.Write(secret)
	h.Sum(dst[:0])
	d.pool.Put(h)
}

// known returns what the connection was last authenticated by; nil if that is not known.
func (x *chain) known() *credentials {
	slot := x.Carrier.Slot()
	if slot == nil {
		return nil
	}
	known, _ := (*slot).(*credentials)
	return known
}

// remembered returns whom the connection was authenticated as, if the request has
// the same credentials. A client certificate is the connection's.
func (x *chain) remembered() *authenticator.Response {
	known := x.known()
	if x.foreign || known == nil || !x.Received.Before(known.until) || known.generation != x.s.config.Generation() {
		return nil
	}
	digest := &known.asked
	x.s.digester.digest(digest, x.Peek("Authorization"))
	if subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 0 {
		return nil
	}
	return known.response
}

// remember keeps whom the request was authenticated as, in that generation.
func (x *chain) remember(response *authenticator.Response, generation uint64) {
	name := response.User.GetName()
	if x.foreign || x.s.config.AnonymousByPath && name == user.Anonymous {
		return
	}
	secret := x.Peek("Authorization")
	slot := x.Carrier.Slot()
	if slot == nil {
		return
	}
	known := &credentials{
		response: response, until: x.Received.Add(rememberCredentials), generation: generation,
		class: apimetrics.ClassOf(name), token: len(secret) > 0,
	}
	x.s.digester.digest(&known.digest, secret)
	if state := x.Carrier.TLS(); state != nil && len(state.PeerCertificates) > 0 {
		leaf := state.PeerCertificates[0]
		if leaf.NotAfter.Before(known.until) {
			known.until = leaf.NotAfter
		}
		known.token = known.token && name != leaf.Subject.CommonName
	}
	*slot = known
}

// proxyHeaders are the headers by which a front proxy names the user, in their canonical
// form. It is immutable.
type proxyHeaders struct {
	names, prefixes []string
	// other says that there are some beside the usual ones.
	other bool
}

func newProxyHeaders(config *authenticatorfactory.RequestHeaderConfig) proxyHeaders {
	p := proxyHeaders{names: []string{"X-Remote-User", "X-Remote-Uid", "X-Remote-Group"}, prefixes: []string{"X-Remote-Extra-"}}
	if config == nil {
		return p
	}
	usual := len(p.names) + len(p.prefixes)
	for _, more := range []headerrequest.StringSliceProvider{config.UsernameHeaders, config.UIDHeaders, config.GroupHeaders} {
		p.names = appendCanonical(p.names, more.Value())
	}
	p.prefixes = appendCanonical(p.prefixes, config.ExtraHeaderPrefixes.Value())
	p.other = len(p.names)+len(p.prefixes) > usual
	return p
}

func appendCanonical(to, names []string) []string {
	for _, name := range names {
		if name = http.CanonicalHeaderKey(name); !slices.Contains(to, name) {
			to = append(to, name)
		}
	}
	return to
}

// has reports whether a header, named in its canonical form, is one of them.
func (p *proxyHeaders) has(name string) bool {
	return slices.Contains(p.names, name) || slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// in reports whether any is among the lines of a header.
func (p *proxyHeaders) in(lines iter.Seq2[[]byte, []byte]) bool {
	for name := range lines {
		if p.has(http.CanonicalHeaderKey(string(name))) {
			return true
		}
	}
	return false
}

// isCredential reports whether a header, named in its canonical form, says who asks.
func (s *Server) isCredential(name string) bool {
	return name == "Authorization" || s.proxies.has(name)
}

// warningCode says that a warning is of something that lasts (RFC 7234).
const warningCode = 299

// warner sends what authenticators warn of, who are heard before there is an answer.
type warner struct {
	x      *chain
	warned []string
}

// AddWarning implements warning.Recorder.
func (w *warner) AddWarning(agent, text string) {
	if text == "" || slices.Contains(w.warned, text) {
		return
	}
	if header, err := utilnet.NewWarningHeader(warningCode, agent, text); err == nil {
		w.warned = append(w.warned, text)
		w.x.Add("Warning", header)
	}
}
