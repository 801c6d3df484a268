package httpapi

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"hash"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// rememberCredentials is how long a connection's credentials are not looked at again.
// What authenticators remember by themselves they remember for as much less than
// upstream does.
const rememberCredentials = time.Second

// credentials is what a connection was last authenticated by. Of a secret nothing is
// kept but a digest under a key of this process.
type credentials struct {
	digest   [sha256.Size]byte
	response *authenticator.Response // nil: nothing is known
	until    time.Time
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

// remembered returns whom the connection was authenticated as, if the request has
// the same credentials. A client certificate is the connection's.
func (x *exchange) remembered() *authenticator.Response {
	known := &x.session.known
	if x.foreign || known.response == nil || !x.received.Before(known.until) {
		return nil
	}
	digest := &x.session.digest
	x.s.digester.digest(digest, x.peek("Authorization"))
	if subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 0 {
		return nil
	}
	return known.response
}

// remember keeps whom the request was authenticated as.
func (x *exchange) remember(response *authenticator.Response) {
	if x.foreign {
		return
	}
	known := &x.session.known
	*known = credentials{response: response, until: x.received.Add(rememberCredentials)}
	x.s.digester.digest(&known.digest, x.peek("Authorization"))
	if state := x.fast.TLSConnectionState(); state != nil && len(state.PeerCertificates) > 0 {
		if end := state.PeerCertificates[0].NotAfter; end.Before(known.until) {
			known.until = end
		}
	}
}

// isCredential reports whether a header, named in its canonical form, says who asks.
func isCredential(name string) bool {
	switch name {
	case "Authorization", "X-Remote-User", "X-Remote-Uid", "X-Remote-Group":
		return true
	}
	return strings.HasPrefix(name, "X-Remote-Extra-")
}
