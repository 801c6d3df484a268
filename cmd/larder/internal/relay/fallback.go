package relay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/relay"
	"github.com/larder-io/larder/internal/auth"
)

const (
	// maxDecisions limits the entries of each decisionCache.
	maxDecisions = 10_000
	// maxDecisionSize limits the text of an entry.
	maxDecisionSize = 16 << 10
	// fallbackTimeout limits the wait for the upstream if there is a last decision. After a timeout, last decisions are
	// repeated for fallbackPause without a request to the upstream.
	fallbackTimeout, fallbackPause = 2 * time.Second, time.Second
)

// decisionFallback repeats the last decisions of authenticators and authorizers while the upstream does not respond.
// Decisions expire. A refusal replaces an earlier approval.
type decisionFallback struct {
	digester         *identity.Digester
	users, decisions *decisionCache
	failed           atomic.Pointer[time.Time] // time of the last missing response of the upstream, nil without one
}

// newDecisionFallback returns an empty decisionFallback, whose decisions expire after bound. If bound is 0, it
// repeats none.
func newDecisionFallback(bound time.Duration) *decisionFallback {
	newCache := func() *decisionCache {
		return &decisionCache{bound: bound, entries: cache.NewLRUExpireCache(maxDecisions)}
	}
	return &decisionFallback{digester: identity.NewDigester(), users: newCache(), decisions: newCache()}
}

// authenticator returns an authenticator that falls back on next's last decisions about tokens.
func (d *decisionFallback) authenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		key, ok := d.credentialKey(req)
		if !ok {
			return next.AuthenticateRequest(req)
		}
		last := d.users.get(key)
		if last != nil && last.response != nil && d.isPaused() {
			return last.response, true, nil
		}
		ctx, cancel := last.limit(req.Context())
		defer cancel()
		requested := time.Now()
		resp, ok, err := next.AuthenticateRequest(req.WithContext(ctx))
		if auth.IsUnreachable(err) {
			d.fail(req.Context())
			if last != nil && last.response != nil {
				return last.response, true, nil
			}
			return resp, ok, err
		}
		if errors.Is(err, context.Canceled) {
			return resp, ok, err // the client has disconnected
		}
		now := &pastDecision{requested: requested}
		if ok && err == nil {
			now.response = resp
		}
		d.users.add(key, now)
		return resp, ok, err
	})
}

// authorizer returns an authorizer that falls back on next's last decisions.
func (d *decisionFallback) authorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		key, err := d.attributesKey(a)
		if err != nil {
			return next.Authorize(ctx, a)
		}
		last := d.decisions.get(key)
		if last != nil && d.isPaused() {
			return last.decision, last.reason, nil
		}
		limited, cancel := last.limit(ctx)
		defer cancel()
		requested := time.Now()
		decision, reason, err := next.Authorize(limited, a)
		switch {
		case err == nil || decision != authorizer.DecisionNoOpinion:
			d.decisions.add(key, &pastDecision{requested: requested, decision: decision, reason: reason})
		case utilerrors.FilterOut(err, apierrors.IsForbidden) == nil && a.IsResourceRequest() && !strings.HasPrefix(a.GetVerb(), "impersonate"):
			return decision, reason, utilerrors.NewAggregate([]error{relay.ErrNoReviews, err})
		case auth.IsUnreachable(err):
			d.fail(ctx)
			if last != nil {
				return last.decision, last.reason, nil
			}
		}
		return decision, reason, err
	})
}

// fail records that the upstream has not responded, unless the client's own context has ended.
func (d *decisionFallback) fail(ctx context.Context) {
	if ctx.Err() == nil {
		now := time.Now()
		d.failed.Store(&now)
	}
}

// isPaused reports whether requests to the upstream are paused.
func (d *decisionFallback) isPaused() bool {
	failed := d.failed.Load()
	return failed != nil && time.Since(*failed) < fallbackPause
}

// credentialKey returns a digest of the credentials of req. It returns false if req has no token, so that the
// upstream does not decide.
func (d *decisionFallback) credentialKey(req *http.Request) (key digest, ok bool) {
	b := fmt.Appendf(nil, "%q %q ", req.Header["Authorization"], req.Header["Sec-Websocket-Protocol"])
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		b = append(b, req.TLS.PeerCertificates[0].Raw...)
	}
	return d.digester.Digest(b), len(req.Header["Authorization"])+len(req.Header["Sec-Websocket-Protocol"]) > 0
}

// attributesKey returns a digest of all attributes that a SubjectAccessReview contains.
func (d *decisionFallback) attributesKey(a authorizer.Attributes) (key digest, err error) {
	fields, err := a.GetFieldSelector()
	if err != nil {
		return key, err
	}
	labels, err := a.GetLabelSelector()
	if err != nil {
		return key, err
	}
	u := a.GetUser()
	return d.digester.Digest(fmt.Appendf(nil, "%q", []any{
		u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), a.GetVerb(), a.GetNamespace(), a.GetResource(), a.GetSubresource(), a.GetName(),
		a.GetAPIGroup(), a.GetAPIVersion(), a.GetPath(), a.IsResourceRequest(), fields, labels,
	})), nil // quoting makes the text unambiguous
}

type digest = [sha256.Size]byte

// pastDecision is a decision, with the time of its request. It is immutable.
type pastDecision struct {
	requested time.Time

	response *authenticator.Response // nil is a refusal
	decision authorizer.Decision
	reason   string
}

// limit returns the context of a request to the upstream. It ends early if there is a last decision.
func (p *pastDecision) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if p == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, fallbackTimeout)
}

// decisionCache holds the last decisions.
type decisionCache struct {
	bound   time.Duration
	entries *cache.LRUExpireCache

	mu sync.Mutex // orders add
}

// get returns the decision of a key, nil if there is none or it has expired.
func (d *decisionCache) get(key digest) *pastDecision {
	known, _ := d.entries.Get(key)
	r, _ := known.(*pastDecision)
	return r
}

// add stores a decision unless it is too large, or there is the decision of a later request.
func (d *decisionCache) add(key digest, r *pastDecision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := d.get(key); last != nil && last.requested.After(r.requested) || len(r.reason) > maxDecisionSize {
		return
	}
	if r.response != nil && len(fmt.Sprint(r.response.User)) > maxDecisionSize {
		return
	}
	d.entries.Add(key, r, d.bound-time.Since(r.requested))
}
