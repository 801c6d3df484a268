package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"slices"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/nethttp"
)

// Why a request was not authenticated.
var (
	// ErrUnauthenticated: no credentials of the client were accepted.
	ErrUnauthenticated = errors.New("identity: no credential was accepted")
	// ErrTimeout: the request's deadline passed before the authenticator responded.
	ErrTimeout = errors.New("identity: the authenticator did not respond in time")
)

// Authentication authenticates requests.
type Authentication struct {
	// Authenticator authenticates requests; nil makes every client the super-user. Its response is reused on the same
	// connection for [CacheTTL], or until Generation changes. With AnonymousByPath, responses for anonymous clients are
	// not reused. Audiences are the accepted audiences of tokens.
	Authenticator   authenticator.Request
	Generation      func() uint64
	AnonymousByPath bool
	Audiences       authenticator.Audiences

	Digester *Digester
	// Access counts authentications.
	Access *apimetrics.Access
}

// processUser is the user that this process itself is: the super-user.
var processUser = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}}

// Authenticate sets x.User. foreign says that the request may have credentials outside the Authorization
// header. The error is ErrUnauthenticated, ErrTimeout or the authenticator's.
func (a *Authentication) Authenticate(x *nethttp.Call, foreign bool) error {
	if a.Authenticator == nil || x.Carrier.Internal() {
		x.User = processUser
		return nil
	}
	// Authenticators add to the audit record, so an audited request is authenticated again.
	if !foreign && x.Audit == nil {
		if known := a.lookup(&x.Exchange); known != nil {
			x.User = known.response.User
			a.Access.Remembered(known.class, known.token)
			return nil
		}
	}
	generation, warner := a.Generation(), &warner{x: &x.Exchange}
	resp, err := a.ask(x, warner)
	if err != nil {
		return err
	}
	x.User = resp.User
	if len(warner.warned) == 0 && !foreign { // the client is to get the warnings with each response
		a.store(&x.Exchange, resp, generation)
	}
	x.HideCredential()
	return nil
}

// ask asks the authenticator, and records and counts its response.
func (a *Authentication) ask(x *nethttp.Call, warner *warner) (*authenticator.Response, error) {
	began := time.Now()
	bound, cancel := x.PrepareContext()
	defer cancel()
	ctx := warning.WithWarningRecorder(x.Audit.Context(bound), warner)
	if len(a.Audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, a.Audiences)
	}
	resp, ok, err := a.Authenticator.AuthenticateRequest(x.HTTP().WithContext(ctx))
	if err == nil && ok && !Acceptable(a.Audiences, resp.Audiences) {
		err = fmt.Errorf("unable to match the audience: %v , accepted: %v", resp.Audiences, a.Audiences)
	}
	x.Decided(time.Since(began))
	x.Audit.Authenticated(time.Since(began))
	a.Access.Authenticated(resp, ok, err, time.Since(began))
	switch {
	case err != nil && bound.Err() != nil:
		return nil, ErrTimeout
	case err != nil:
		klog.ErrorS(err, "Unable to authenticate the request", "auditID", x.AuditID)
		return nil, err
	case !ok:
		return nil, ErrUnauthenticated
	}
	return resp, nil
}

// Acceptable reports whether a server that accepts the audiences want accepts credentials for the audiences have. An
// empty list means all audiences.
func Acceptable(want, have authenticator.Audiences) bool {
	return len(want) == 0 || len(have) == 0 || len(want.Intersect(have)) > 0
}

// warningCode is the code of persistent warnings (RFC 7234).
const warningCode = 299

// warner adds the warnings of authenticators to the response's header, each once, and keeps them.
type warner struct {
	x      *exchange.Exchange
	warned []string
}

func (w *warner) AddWarning(agent, text string) {
	if text == "" || slices.Contains(w.warned, text) {
		return
	}
	if header, err := utilnet.NewWarningHeader(warningCode, agent, text); err == nil {
		w.warned = append(w.warned, text)
		w.x.Add("Warning", header)
	}
}

// CacheTTL is how long a connection's credentials are not authenticated again. Entries of the authenticators'
// caches expire that much earlier than upstream's.
const CacheTTL = time.Second

// credentials are the credentials by which a connection was last authenticated, and the response. They hold a digest
// of the secret, under a key of this process. They are immutable.
type credentials struct {
	by       *Authentication // a connection may have requests for several clusters
	digest   [sha256.Size]byte
	response *authenticator.Response
	until    time.Time

	generation uint64               // Authentication.Generation's when the client was authenticated
	class      apimetrics.UserClass // of the user, for metrics
	token      bool                 // it was a token, which upstream would find in its cache
}

// lookup returns the credentials by which x's connection was last authenticated, if they are still valid
// and the request has the same Authorization header. The caller has checked that no other field has
// credentials. A client certificate belongs to the connection, so it cannot differ.
func (a *Authentication) lookup(x *exchange.Exchange) *credentials {
	known, _ := x.Carrier.Slot().Load().(*credentials)
	if known == nil || known.by != a || !x.Received.Before(known.until) || known.generation != a.Generation() {
		return nil
	}
	digest := a.Digester.Digest(x.Peek("Authorization"))
	if subtle.ConstantTimeCompare(digest[:], known.digest[:]) == 0 {
		return nil
	}
	return known
}

// store caches the authenticator's response to x in that generation.
func (a *Authentication) store(x *exchange.Exchange, response *authenticator.Response, generation uint64) {
	name := response.User.GetName()
	if a.AnonymousByPath && name == user.Anonymous {
		return
	}
	secret := x.Peek("Authorization")
	known := &credentials{
		by: a, response: response, until: x.Received.Add(CacheTTL), generation: generation,
		digest: a.Digester.Digest(secret), class: apimetrics.ClassOf(name), token: len(secret) > 0,
	}
	if state := x.Carrier.TLS(); state != nil && len(state.PeerCertificates) > 0 {
		leaf := state.PeerCertificates[0]
		if leaf.NotAfter.Before(known.until) {
			known.until = leaf.NotAfter
		}
		known.token = known.token && name != leaf.Subject.CommonName
	}
	x.Carrier.Slot().Store(known)
}

// Digester makes digests of credentials under a key of its own.
type Digester struct{ pool sync.Pool }

// digesting is a hash with room for its sum.
type digesting struct {
	hash.Hash
	sum [sha256.Size]byte
}

// NewDigester returns a Digester with a new key.
func NewDigester() *Digester {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails
	return &Digester{pool: sync.Pool{New: func() any { return &digesting{Hash: hmac.New(sha256.New, key)} }}}
}

// Digest returns the digest of secret; the digest of an empty secret is all zeros.
func (d *Digester) Digest(secret []byte) (digest [sha256.Size]byte) {
	if len(secret) == 0 {
		return digest
	}
	h := d.pool.Get().(*digesting)
	defer d.pool.Put(h)
	h.Reset()
	h.Write(secret)
	h.Sum(h.sum[:0])
	return h.sum
}
