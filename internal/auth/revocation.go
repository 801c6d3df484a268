package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Revocation tells the front door that a client which it accepted, and still serves, would
// not be accepted any more.
type Revocation struct {
	// Again authenticates a request once more, from what there is now: nothing is
	// remembered of tokens. An error says that it cannot be told at the moment. It may
	// change the request's header.
	Again authenticator.Request
	// Near authenticates and Gate authorizes without asking anything outside of this
	// process; where that is not enough, they fail with [ErrOthers]. They are nil if
	// everything is decided in this process.
	Near authenticator.Request
	Gate authorizer.Authorizer
	// Ties says when to ask Again about a request that was accepted.
	Ties func(*http.Request) Ties
	// Generation changes when Again is to be asked about all requests.
	Generation func() uint64
	// Authority changes when the authorizer may decide otherwise: all counts what
	// concerns everybody, nodes what concerns nodes alone and single objects.
	Authority func() (all, nodes uint64)
	// Remote says that the authorizer asks others, such as a webhook, that do not tell of
	// changes: it must be asked again at intervals.
	Remote func() bool
}

// Ties are what an accepted credential hangs on, beside what Generation counts.
type Ties struct {
	// Expires is when it will not be accepted any more, or not much longer; zero is never.
	Expires time.Time
	// Ends says that the credential is not accepted after Expires, even if it is remembered.
	Ends bool
	// Objects must be as they were.
	Objects []ObjectName
	// Remote says that it also depends on others that do not tell of changes.
	Remote bool
}

// ObjectName names an object that is stored here.
type ObjectName struct {
	Resource        string // of the core group
	Namespace, Name string
}

// ErrOthers says that others have to be asked, who may take their time.
var ErrOthers = errors.New("auth: others are to be asked")

// Revocation returns what a's decisions hang on.
func (a *Auth) Revocation() *Revocation {
	return &Revocation{
		Again: a.again, Near: nearby{a.again}, Gate: nearGate{a.chain}, Ties: a.again.ties, Generation: a.Generation,
		Authority: a.chain.authority, Remote: a.chain.remote,
	}
}

// again authenticates as Authenticator does, but past what is remembered of tokens, and
// tells a refusal from an answer that could not be had. It is immutable.
type again struct {
	trusted   []authenticator.Request // front proxies and certificates
	near      authenticator.Request   // by tokens that are known here; may be nil
	away      authenticator.Request   // by tokens that others are asked about; may be nil
	anonymous authenticator.Request   // nil: nobody is
	issuers   []string                // of service accounts
}

// nearby authenticates so without asking others.
type nearby struct{ *again }

// AuthenticateRequest implements authenticator.Request.
func (n nearby) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	return n.authenticate(req, authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, ErrOthers
	}))
}

// AuthenticateRequest implements authenticator.Request.
func (a *again) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	return a.authenticate(req, a.away)
}

// authenticate asks away, if there is somebody to ask, about tokens that are not known here.
func (a *again) authenticate(req *http.Request, away authenticator.Request) (*authenticator.Response, bool, error) {
	token, untold := bearer(req), new(atomic.Bool)
	req = req.WithContext(context.WithValue(req.Context(), untoldKey{}, untold))
	refused := false
	for _, trusted := range a.trusted {
		resp, ok, err := trusted.AuthenticateRequest(req)
		if ok && err == nil {
			return resp, true, nil
		}
		refused = refused || err != nil
	}
	if a.near != nil {
		resp, ok, err := a.near.AuthenticateRequest(req)
		switch {
		case err == nil && ok:
			return resp, true, nil
		case err != nil && (untold.Load() || errors.Is(err, errUntold)):
			return nil, false, err
		}
		refused = refused || err != nil
	}
	if a.away != nil && token != "" {
		resp, ok, err := away.AuthenticateRequest(req)
		switch {
		case err == nil && ok:
			return resp, true, nil
		case err != nil && !a.refuses(req.Context(), err, token):
			return nil, false, err
		}
		refused = refused || err != nil
	}
	if refused || a.anonymous == nil {
		return nil, false, nil
	}
	return a.anonymous.AuthenticateRequest(req)
}

// refuses reports whether err, which came of asking others about a token, is a refusal:
// else somebody did not answer. A token that is issued here was refused already.
func (a *again) refuses(ctx context.Context, err error, token string) bool {
	text := err.Error()
	switch {
	case errors.Is(err, ErrOthers):
		return false
	case text == refusedToken:
		return true
	case ctx.Err() != nil:
		return false
	case a.claims(token).local(a.issuers):
		return true
	}
	// A webhook refuses without an error: this is of a provider of tokens, and its last word
	// unless the provider could not be reached. Two errors at once begin otherwise.
	return strings.HasPrefix(text, "oidc: ") && !slices.ContainsFunc(silentProvider, func(part string) bool { return strings.Contains(text, part) })
}

// refusedToken is what upstream says of a token that everybody who was asked has refused:
// apiserver pkg/authentication/request/bearertoken and websocket.
const refusedToken = "invalid bearer token"

// silentProvider is what upstream says of a token where its provider could not be asked:
// apiserver plugin/pkg/authenticator/token/oidc, and go-oidc below it.
var silentProvider = []string{"oidc: authenticator not initialized", "fetching keys", "oidc: could not expand distributed claims"}

// errUntold says that something that a credential hangs on could not be looked up.
var errUntold = errors.New("auth: it cannot be told now")

// untoldError is errUntold beside the reason, whose text it has.
type untoldError struct{ error }

// Is lets errors.Is find errUntold.
func (untoldError) Is(target error) bool { return target == errUntold }

// Unwrap returns the reason.
func (e untoldError) Unwrap() error { return e.error }

// untoldKey is where a context has an *atomic.Bool, for what is looked up by code that does
// not hand errors on.
type untoldKey struct{}

// lookedUp passes on what came of looking for an object. That there is none tells something;
// any other error does not.
func lookedUp[T any](ctx context.Context, object T, err error) (T, error) {
	if err == nil || apierrors.IsNotFound(err) {
		return object, err
	}
	if untold, ok := ctx.Value(untoldKey{}).(*atomic.Bool); ok {
		untold.Store(true)
	}
	return object, untoldError{err}
}

// ties implements Revocation.Ties.
func (a *again) ties(req *http.Request) Ties {
	var t Ties
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		for _, certificate := range req.TLS.PeerCertificates {
			if t.Expires.IsZero() || certificate.NotAfter.Before(t.Expires) {
				t.Expires = certificate.NotAfter
			}
		}
	}
	token := bearer(req)
	if token == "" {
		return t
	}
	claims := a.claims(token)
	if exp := time.Unix(int64(claims.Expires), 0); claims.Expires > 0 && (t.Expires.IsZero() || exp.Before(t.Expires)) {
		t.Expires, t.Ends = exp, !claims.local(a.issuers)
	}
	if t.Objects = claims.objects(); !claims.local(a.issuers) {
		t.Remote = true
	}
	return t
}

// claims are what a token says of itself. They count for when it is looked at again, and
// for nothing else: nobody has verified them.
type claims struct {
	Issuer  string  `json:"iss"`
	Expires float64 `json:"exp"`
	Bound   struct {
		Namespace string     `json:"namespace"`
		Account   boundName  `json:"serviceaccount"`
		Pod       *boundName `json:"pod"`
		Secret    *boundName `json:"secret"`
		Node      *boundName `json:"node"`
	} `json:"kubernetes.io"`

	LegacyNamespace string `json:"kubernetes.io/serviceaccount/namespace"`
	LegacyAccount   string `json:"kubernetes.io/serviceaccount/service-account.name"`
	LegacySecret    string `json:"kubernetes.io/serviceaccount/secret.name"`
}

type boundName struct {
	Name string `json:"name"`
}

// claims reads those of a token. One that is no JSON web token has none.
func (a *again) claims(token string) *claims {
	c := new(claims)
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, c) != nil {
		return new(claims)
	}
	return c
}

// local reports whether this server alone says what becomes of the token.
func (c *claims) local(issuers []string) bool {
	return c.Issuer == serviceaccount.LegacyIssuer || c.Issuer != "" && slices.Contains(issuers, c.Issuer)
}

// objects lists what the token is bound to.
func (c *claims) objects() []ObjectName {
	namespace, account := c.Bound.Namespace, c.Bound.Account.Name
	if namespace == "" {
		namespace, account = c.LegacyNamespace, c.LegacyAccount
	}
	if namespace == "" || account == "" {
		return nil
	}
	names := []ObjectName{{"serviceaccounts", namespace, account}}
	if c.LegacySecret != "" {
		names = append(names, ObjectName{"secrets", namespace, c.LegacySecret})
	}
	if c.Bound.Secret != nil {
		names = append(names, ObjectName{"secrets", namespace, c.Bound.Secret.Name})
	}
	if c.Bound.Pod != nil {
		names = append(names, ObjectName{"pods", namespace, c.Bound.Pod.Name})
	}
	if c.Bound.Node != nil {
		names = append(names, ObjectName{"nodes", "", c.Bound.Node.Name})
	}
	return names
}

// bearer returns the token that a request shows, "" if there is none.
func bearer(req *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(req.Header.Get("Authorization")), " ")
	if strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	// apiserver pkg/authentication/request/websocket/protocol.go
	const prefix = "base64url.bearer.authorization.k8s.io."
	for _, header := range req.Header["Sec-Websocket-Protocol"] {
		for protocol := range strings.SplitSeq(header, ",") {
			if encoded, ok := strings.CutPrefix(strings.TrimSpace(protocol), prefix); ok {
				decoded, _ := base64.RawURLEncoding.DecodeString(encoded) // what is no token is refused elsewhere
				return string(decoded)
			}
		}
	}
	return ""
}

// authority implements Revocation.Authority.
func (c *chain) authority() (all, nodes uint64) {
	all = c.changes.Load()
	if c.decisions != nil {
		all += c.decisions.changes.Load()
	}
	if c.graph != nil {
		nodes = c.graph.losses.Load()
	}
	return all, nodes
}

// remote implements Revocation.Remote.
func (c *chain) remote() bool { return c.current.Load().remote }
