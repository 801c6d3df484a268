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

// Remembered is how long a connection's credentials are not looked at again.
// What authenticators remember by themselves they remember for as much less than
// upstream does.
const Remembered = time.Second

// memory remembers in a connection's slot who its sender is.
type memory struct {
	digester   *Digester
	generation func() uint64
	byPath     bool // anonymous clients are accepted on some paths only
}

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

// recall returns what x's connection was last authenticated by, if the request has the same
// credentials, all of them in the Authorization header. A client certificate is the
// connection's.
func (m *memory) recall(x *exchange.Exchange) *credentials {
	slot := x.Carrier.Slot()
	if slot == nil {
		return nil
	}
	known, _ := (*slot).(*credentials)
	if known == nil || !x.Received.Before(known.until) || known.generation != m.generation() {
		return nil
	}
	digest := &known.asked
	m.digester.Digest(digest, x.Peek("Authorization"))
	if subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 0 {
		return nil
	}
	return known
}

// keep keeps whom the request was authenticated as, in that generation.
func (m *memory) keep(x *exchange.Exchange, response *authenticator.Response, generation uint64) {
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
		response: response, until: x.Received.Add(Remembered), generation: generation,
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
