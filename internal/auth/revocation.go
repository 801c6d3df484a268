package auth

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Revocation is what the front door asks to learn that somebody whom it has let in, and
// whom it serves still, would not be let in any more.
type Revocation struct {
	// Again authenticates a request once more, from what there is now: nothing is
	// remembered of tokens. An error says that it cannot be told at the moment. It may
	// change the request's header.
	Again authenticator.Request
	// Ties says when to ask Again about a request that was accepted.
	Ties func(*http.Request) Ties
	// Generation changes when Again is to be asked about all requests.
	Generation func() uint64
	// Authority changes when the authorizer may decide otherwise: all counts what
	// concerns everybody, nodes what concerns nodes alone and single objects.
	Authority func() (all, nodes uint64)
	// Remote says that others are asked, of whose changes nobody tells: the authorizer is
	// to be asked every so often.
	Remote func() bool
}

// Ties are what an accepted credential hangs on, beside what Generation counts.
type Ties struct {
	// Expires is when it will not be accepted any more, or not much longer; zero is never.
	Expires time.Time
	// Ends says that at Expires it is over, whatever anybody remembers.
	Ends bool
	// Objects must be as they were.
	Objects []ObjectName
	// Remote says that nobody tells of what else it hangs on.
	Remote bool
}

// ObjectName names an object that is stored here.
type ObjectName struct {
	Resource        string // of the core group
	Namespace, Name string
}

// Revocation returns what a's decisions hang on.
func (a *Auth) Revocation() *Revocation {
	return &Revocation{
		Again: a.again, Ties: a.again.ties, Generation: a.Generation,
		Authority: a.chain.authority, Remote: a.chain.remote,
	}
}

// again authenticates as Authenticator does, but past what is remembered of tokens, and
// tells a refusal from an answer that could not be had. It is immutable.
type again struct {
	trusted   []authenticator.Request // front proxies and certificates
	token     authenticator.Request   // may be nil
	anonymous authenticator.Request   // nil: nobody is
	issuers   []string                // of service accounts
	remote    bool                    // a webhook may be asked about tokens
}

// AuthenticateRequest implements authenticator.Request.
func (a *again) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	refused := false
	for _, trusted := range a.trusted {
		resp, ok, err := trusted.AuthenticateRequest(req)
		if ok && err == nil {
			return resp, true, nil
		}
		refused = refused || err != nil
	}
	if a.token != nil {
		mine := a.claims(bearer(req)).local(a.issuers)
		resp, ok, err := a.token.AuthenticateRequest(req)
		switch {
		case err == nil && ok:
			return resp, true, nil
		case err != nil && err.Error() != refusedToken && (a.remote && !mine || req.Context().Err() != nil):
			return nil, false, err
		}
		refused = refused || err != nil
	}
	if refused || a.anonymous == nil {
		return nil, false, nil
	}
	return a.anonymous.AuthenticateRequest(req)
}

// refusedToken is what upstream says of a token that everybody who was asked has refused:
// apiserver pkg/authentication/request/bearertoken and websocket. Else somebody did not answer.
const refusedToken = "invalid bearer token"

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
