package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Revocation checks whether a request that was accepted, and is still served, would be accepted
// now.
type Revocation struct {
	// Authenticator authenticates a request again, without the cache of tokens. An error means
	// that it cannot decide at the moment. It may change the request's header.
	Authenticator authenticator.Request
	// LocalAuthenticator and LocalAuthorizer decide within this process. They fail with [ErrRemote] if a provider or
	// webhook must be called.
	LocalAuthenticator authenticator.Request
	LocalAuthorizer    authorizer.Authorizer
	// Dependencies returns the dependencies of an accepted request: when they change, Authenticator must be called
	// again.
	Dependencies func(*http.Request) Dependencies
	// Generation changes when all requests must be authenticated again.
	Generation func() uint64
	// AuthorizerChanges counts changes after which the authorizer may decide differently about any user. NodeChanges
	// counts those that concern a node and single objects.
	AuthorizerChanges func() uint64
	NodeChanges       func(user.Info) uint64
	// Remote reports whether the authorizer calls a webhook. Its changes are unknown, so it must be called again
	// periodically.
	Remote func() bool
}

// Dependencies are the objects and times that an accepted credential depends on, besides those that Generation
// counts.
type Dependencies struct {
	// Expires is when the credential expires; zero is never.
	Expires time.Time
	// Ends says that the credential is invalid after Expires, without authenticating it again.
	Ends bool
	// Objects are the objects that the token is bound to.
	Objects []ObjectName
	// Remote says that a provider or a webhook also decides. Its changes are unknown.
	Remote bool
}

// ObjectName names an object that is stored here.
type ObjectName struct {
	Resource        string // of the core group
	Namespace, Name string
}

// ErrRemote says that a provider or a webhook must be called, which may take long.
var ErrRemote = errors.New("auth: a provider or webhook must be called")

// Revocation returns the Revocation of a.
func (a *Auth) Revocation() *Revocation {
	return &Revocation{
		Authenticator: a.reauthenticator, LocalAuthenticator: authenticator.RequestFunc(a.reauthenticator.authenticateLocally),
		LocalAuthorizer: authorizer.AuthorizerFunc(a.chain.local), Dependencies: a.reauthenticator.dependencies, Generation: a.Generation,
		AuthorizerChanges: a.chain.authorizerChanges, NodeChanges: a.chain.lossesOf, Remote: a.chain.remote,
	}
}

// reauthenticator authenticates as Authenticator does, but without the cache of tokens, and distinguishes a rejection
// from an error. It is immutable.
type reauthenticator struct {
	trusted   []authenticator.Request // front proxies and certificates
	local     authenticator.Request   // by tokens that this process verifies; may be nil
	remote    authenticator.Request   // by tokens that providers and webhooks verify; may be nil
	anonymous authenticator.Request   // nil if anonymous requests are refused
	issuers   []string                // of service accounts
}

// authenticateLocally is like AuthenticateRequest, but fails with ErrRemote instead of calling a provider or webhook.
func (r *reauthenticator) authenticateLocally(req *http.Request) (*authenticator.Response, bool, error) {
	return r.authenticate(req, authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, ErrRemote
	}))
}

// AuthenticateRequest implements authenticator.Request.
func (r *reauthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	return r.authenticate(req, r.remote)
}

// authenticate tries remote for tokens that local does not accept, unless there is no remote authenticator.
func (r *reauthenticator) authenticate(req *http.Request, remote authenticator.Request) (*authenticator.Response, bool, error) {
	token, lookupFailed := bearer(req), new(atomic.Bool)
	req = req.WithContext(context.WithValue(req.Context(), lookupFailedKey{}, lookupFailed))
	refused := false
	for _, trusted := range r.trusted {
		resp, ok, err := trusted.AuthenticateRequest(req)
		if ok && err == nil {
			return resp, true, nil
		}
		refused = refused || err != nil
	}
	if r.local != nil {
		resp, ok, err := r.local.AuthenticateRequest(req)
		switch {
		case err == nil && ok:
			return resp, true, nil
		case err != nil && (lookupFailed.Load() || errors.Is(err, ErrLookup)):
			return nil, false, err
		}
		refused = refused || err != nil
	}
	if r.remote != nil && token != "" {
		resp, ok, err := remote.AuthenticateRequest(req)
		switch {
		case err == nil && ok:
			return resp, true, nil
		case err != nil && !r.refuses(req.Context(), err, token):
			return nil, false, err
		}
		refused = refused || err != nil
	}
	if refused || r.anonymous == nil {
		return nil, false, nil
	}
	return r.anonymous.AuthenticateRequest(req)
}

// refuses reports whether err of a remote authenticator rejects the token. Otherwise that authenticator could not
// decide. A token of this server's own issuers was already rejected by the local authenticator.
func (r *reauthenticator) refuses(ctx context.Context, err error, token string) bool {
	if errors.Is(err, ErrRemote) || ctx.Err() != nil {
		return false
	}
	return claimsOf(token).local(r.issuers) || !isUndecided(err)
}

// isUndecided reports whether err, or one of several errors, says that a provider or webhook could not be reached, or
// has returned something other than a TokenReview, such as a page of a proxy. Most of these errors have no type. Every
// other error is a rejection, for which a webhook may give a reason.
func isUndecided(err error) bool {
	if all, ok := err.(utilerrors.Aggregate); ok {
		return slices.ContainsFunc(all.Errors(), isUndecided)
	}
	text := err.Error()
	if strings.HasPrefix(text, "oidc: ") {
		return slices.ContainsFunc(unreachableProviderErrors, func(part string) bool { return strings.Contains(text, part) })
	}
	var field *json.UnmarshalTypeError
	return IsUnreachable(err) || errors.Is(err, io.ErrUnexpectedEOF) || runtime.IsNotRegisteredError(err) || errors.As(err, &field) ||
		slices.ContainsFunc(notReviewErrors, func(begin string) bool { return strings.HasPrefix(text, begin) })
}

// IsUnreachable reports whether err, from an authenticator or authorizer, means that a webhook could not be reached.
// Every other error is a decision: a TokenReview, for example, may have the reason of a rejection. So is an error of
// the webhook about the content of a review, because clients control that content.
func IsUnreachable(err error) bool {
	if all, ok := err.(utilerrors.Aggregate); ok {
		return slices.ContainsFunc(all.Errors(), IsUnreachable)
	}
	var status apierrors.APIStatus // of the review as a request
	var network net.Error
	if errors.As(err, &status) {
		code := status.Status().Code
		return code != http.StatusRequestEntityTooLarge && code != http.StatusUnprocessableEntity
	}
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)
}

// FailedConditions reports whether err of an authorizer says only that match conditions of webhooks failed. They fail
// each time, so the webhooks never have an opinion on the request.
func FailedConditions(err error) bool {
	if all, ok := err.(utilerrors.Aggregate); ok {
		return !slices.ContainsFunc(all.Errors(), func(one error) bool { return !FailedConditions(one) })
	}
	return strings.HasPrefix(err.Error(), failedCondition)
}

// failedCondition begins upstream's error for a match condition: apiserver pkg/authorization/cel.
const failedCondition = "cel evaluation error: "

// refusedToken is the text of upstream's error for a token that all authenticators have rejected: apiserver
// pkg/authentication/request/bearertoken and websocket.
const refusedToken = "invalid bearer token"

// notReviewErrors are the beginnings of untyped errors for a response that is not a TokenReview, or is truncated:
// client-go rest/request.go, and apimachinery. JSON without a kind counts as a TokenReview that rejects.
var notReviewErrors = []string{
	"0-length response with status code: ", "couldn't get version/kind; ", "converting (v", "unexpected error when reading response body",
	"stream error when reading response body",
}

// unreachableProviderErrors are parts of upstream's errors for a token whose provider could not be reached: apiserver
// plugin/pkg/authenticator/token/oidc, and go-oidc.
var unreachableProviderErrors = []string{"oidc: authenticator not initialized", "fetching keys", "oidc: could not expand distributed claims"}

// ErrLookup says that an object that a credential depends on could not be read, so it is unknown whether the credential
// is valid.
var ErrLookup = errors.New("auth: an object cannot be read now")

// lookupError is an ErrLookup that wraps the reason and has its text.
type lookupError struct{ error }

// Is lets errors.Is find ErrLookup.
func (lookupError) Is(target error) bool { return target == ErrLookup }

// Unwrap returns the reason.
func (e lookupError) Unwrap() error { return e.error }

// lookupFailedKey is the key of an *atomic.Bool in a context. lookedUp sets it, because
// upstream's authenticators do not return the errors of lookups.
type lookupFailedKey struct{}

// lookedUp returns the result of a lookup. An error other than NotFound becomes a lookupError.
func lookedUp[T any](ctx context.Context, object T, err error) (T, error) {
	if err == nil || apierrors.IsNotFound(err) {
		return object, err
	}
	if lookupFailed, ok := ctx.Value(lookupFailedKey{}).(*atomic.Bool); ok {
		lookupFailed.Store(true)
	}
	return object, lookupError{err}
}

// dependencies implements Revocation.Dependencies.
func (r *reauthenticator) dependencies(req *http.Request) Dependencies {
	var t Dependencies
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		t.Expires = earliestExpiry(req.TLS.PeerCertificates)
	}
	token := bearer(req)
	if token == "" {
		return t
	}
	claims := claimsOf(token)
	t.Objects, t.Remote = claims.objects(), !claims.local(r.issuers)
	if exp := time.Unix(int64(claims.Expires), 0); claims.Expires > 0 && (t.Expires.IsZero() || exp.Before(t.Expires)) {
		t.Expires, t.Ends = exp, t.Remote
	}
	return t
}

// claims are the unverified claims of a token. They only decide when the token is authenticated again.
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

// claimsOf reads the claims of a token. There are none if the token is not a JSON web token.
func claimsOf(token string) *claims {
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

// local reports whether only this server verifies the token. A server without issuers, such as a relay, verifies no
// tokens.
func (c *claims) local(issuers []string) bool {
	return len(issuers) > 0 && c.Issuer == serviceaccount.LegacyIssuer || c.Issuer != "" && slices.Contains(issuers, c.Issuer)
}

// objects lists the objects that the token is bound to.
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

// bearer returns the token of a request, "" if there is none.
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
				decoded, _ := base64.RawURLEncoding.DecodeString(encoded) // a malformed one is rejected as a token
				return string(decoded)
			}
		}
	}
	return ""
}

// authorizerChanges implements Revocation.AuthorizerChanges.
func (c *chain) authorizerChanges() uint64 {
	if c.decisions == nil {
		return c.changes.Load()
	}
	return c.changes.Load() + c.decisions.changes.Load()
}

// lossesOf implements Revocation.NodeChanges.
func (c *chain) lossesOf(node user.Info) uint64 {
	if c.graph == nil {
		return 0
	}
	return c.graph.losses.node(node)
}

// remote implements Revocation.Remote.
func (c *chain) remote() bool { return c.current.Load().remote }
