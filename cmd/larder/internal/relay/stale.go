package relay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
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
	// rememberedDecisions limits the entries of each memory.
	rememberedDecisions = 10_000
	// maxRemembered limits the text of an entry.
	maxRemembered = 16 << 10
	// patience limits the wait for the upstream if there is a last decision. After a timeout, last decisions are
	// repeated for pause without a request to the upstream.
	patience, pause = 2 * time.Second, time.Second
)

// stale repeats the last decisions of authenticators and authorizers while the upstream does not respond. Decisions
// expire. A refusal replaces an earlier approval.
type stale struct {
	digester         *identity.Digester
	users, decisions *memory
	failed           atomic.Pointer[time.Time] // time of the last missing response of the upstream, nil without one
}

// newStale returns an empty stale, whose decisions expire after bound. If bound is 0, it repeats none.
func newStale(bound time.Duration) *stale {
	newMemory := func() *memory { return &memory{bound: bound, entries: cache.NewLRUExpireCache(rememberedDecisions)} }
	return &stale{digester: identity.NewDigester(), users: newMemory(), decisions: newMemory()}
}

// authenticator returns an authenticator that falls back on next's last decisions about tokens.
func (s *stale) authenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		key, ok := s.credentialKey(req)
		if !ok {
			return next.AuthenticateRequest(req)
		}
		last := s.users.recall(key)
		if last != nil && last.response != nil && s.pauses() {
			return last.response, true, nil
		}
		ctx, cancel := last.limit(req.Context())
		defer cancel()
		asked := time.Now()
		resp, ok, err := next.AuthenticateRequest(req.WithContext(ctx))
		if err != nil && auth.IsUnreachable(err) {
			s.fail(req.Context())
			if last != nil && last.response != nil {
				return last.response, true, nil
			}
			return resp, ok, err
		}
		if err != nil && errors.Is(err, context.Canceled) {
			return resp, ok, err // the client has disconnected
		}
		now := &remembered{asked: asked}
		if ok && err == nil {
			now.response = resp
		}
		s.users.remember(key, now)
		return resp, ok, err
	})
}

// authorizer returns an authorizer that falls back on next's last decisions.
func (s *stale) authorizer(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		key, err := s.attributesKey(a)
		if err != nil {
			return next.Authorize(ctx, a)
		}
		last := s.decisions.recall(key)
		if last != nil && s.pauses() {
			return last.decision, last.reason, nil
		}
		limited, cancel := last.limit(ctx)
		defer cancel()
		asked := time.Now()
		decision, reason, err := next.Authorize(limited, a)
		switch {
		case err == nil || decision != authorizer.DecisionNoOpinion:
			s.decisions.remember(key, &remembered{asked: asked, decision: decision, reason: reason})
		case mayNotReview(err) && a.IsResourceRequest() && !strings.HasPrefix(a.GetVerb(), "impersonate"):
			return decision, reason, utilerrors.NewAggregate([]error{relay.ErrNoReviews, err})
		case auth.IsUnreachable(err):
			s.fail(ctx)
			if last != nil {
				return last.decision, last.reason, nil
			}
		}
		return decision, reason, err
	})
}

// mayNotReview reports whether the upstream refused to review access.
func mayNotReview(err error) bool {
	if all, ok := err.(utilerrors.Aggregate); ok {
		return slices.ContainsFunc(all.Errors(), mayNotReview)
	}
	return apierrors.IsForbidden(err)
}

// fail records that the upstream has not responded, unless the client's own context has ended.
func (s *stale) fail(ctx context.Context) {
	if ctx.Err() == nil {
		now := time.Now()
		s.failed.Store(&now)
	}
}

// pauses reports whether requests to the upstream are paused.
func (s *stale) pauses() bool {
	failed := s.failed.Load()
	return failed != nil && time.Since(*failed) < pause
}

// credentialKey returns a digest of the credentials of req. It returns false if req has no token, so that the
// upstream does not decide.
func (s *stale) credentialKey(req *http.Request) (key digest, ok bool) {
	b := fmt.Appendf(nil, "%q %q ", req.Header["Authorization"], req.Header["Sec-Websocket-Protocol"])
	if req.TLS != nil && len(req.TLS.PeerCertificates) > 0 {
		b = append(b, req.TLS.PeerCertificates[0].Raw...)
	}
	return s.digester.Digest(b), len(req.Header["Authorization"])+len(req.Header["Sec-Websocket-Protocol"]) > 0
}

// attributesKey returns a digest of all attributes that a SubjectAccessReview contains.
func (s *stale) attributesKey(a authorizer.Attributes) (key digest, err error) {
	fields, err := a.GetFieldSelector()
	if err != nil {
		return key, err
	}
	labels, err := a.GetLabelSelector()
	if err != nil {
		return key, err
	}
	u := a.GetUser()
	return s.digester.Digest(fmt.Appendf(nil, "%q", []any{
		u.GetName(), u.GetUID(), u.GetGroups(), u.GetExtra(), a.GetVerb(), a.GetNamespace(), a.GetResource(), a.GetSubresource(), a.GetName(),
		a.GetAPIGroup(), a.GetAPIVersion(), a.GetPath(), a.IsResourceRequest(), fields, labels,
	})), nil // quoting makes the text unambiguous
}

type digest = [sha256.Size]byte

// remembered is a decision, with the time of its request. It is immutable.
type remembered struct {
	asked time.Time

	response *authenticator.Response // nil is a refusal
	decision authorizer.Decision
	reason   string
}

// limit returns the context of a request to the upstream. It ends early if there is a last decision.
func (r *remembered) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if r == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, patience)
}

// memory holds the last decisions.
type memory struct {
	bound   time.Duration
	entries *cache.LRUExpireCache

	mu sync.Mutex // orders remember
}

// recall returns the decision of a key, nil if there is none or it has expired.
func (m *memory) recall(key digest) *remembered {
	known, _ := m.entries.Get(key)
	r, _ := known.(*remembered)
	return r
}

// remember stores a decision unless it is too large, or memory has the decision of a later request.
func (m *memory) remember(key digest, r *remembered) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.recall(key); last != nil && last.asked.After(r.asked) || len(r.reason) > maxRemembered {
		return
	}
	if r.response != nil && len(fmt.Sprint(r.response.User)) > maxRemembered {
		return
	}
	m.entries.Add(key, r, m.bound-time.Since(r.asked))
}
