package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
)

// CacheTTL is how long a connection's credentials are not authenticated again. The caches
// of the authenticators last for that much less than upstream's.
const CacheTTL = time.Second

// authCache keeps the user of a connection's client in the connection's slot.
type authCache struct {
	digester   *Digester
	generation func() uint64
	byPath     bool // anonymous clients are accepted on some paths only
}

// credentials are those by which a connection was last authenticated, and the answer. They keep a digest of
// the secret, under a key of this process.
type credentials struct {
	digest   [sha256.Size]byte
	current  [sha256.Size]byte // room for the digest of the current request's secret
	response *authenticator.Response
	until    time.Time

	generation uint64               // Config.Generation's when the client was authenticated
	class      apimetrics.UserClass // of the user, for metrics
	token      bool                 // it was a token, which upstream would have looked up
}

// lookup returns the credentials by which x's connection was last authenticated, if they are still valid
// and the request has the same Authorization header. The caller has checked that no other field has
// credentials. A client certificate belongs to the connection, so it cannot differ.
func (m *authCache) lookup(x *exchange.Exchange) *credentials {
	slot := x.Carrier.Slot()
	if slot == nil {
		return nil
	}
	known, _ := (*slot).(*credentials)
	if known == nil || !x.Received.Before(known.until) || known.generation != m.generation() {
		return nil
	}
	digest := &known.current
	m.digester.Digest(digest, x.Peek("Authorization"))
	if subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 0 {
		return nil
	}
	return known
}

// store remembers the authenticator's response to x, which it gave in that generation.
func (m *authCache) store(x *exchange.Exchange, response *authenticator.Response, generation uint64) {
	name := response.User.GetName()
	if m.byPath && name == user.Anonymous {
		return
	}
	secret := x.Peek("Authorization")
	slot := x.Carrier.Slot()
	if slot == nil {
		return
	}
	known := &credentials{
		response: response, until: x.Received.Add(CacheTTL), generation: generation,
		class: apimetrics.ClassOf(name), token: len(secret) > 0,
	}
	m.digester.Digest(&known.digest, secret)
	if state := x.Carrier.TLS(); state != nil && len(state.PeerCertificates) > 0 {
		leaf := state.PeerCertificates[0]
		if leaf.NotAfter.Before(known.until) {
			known.until = leaf.NotAfter
		}
		known.token = known.token && name != leaf.Subject.CommonName
	}
	*slot = known
}
