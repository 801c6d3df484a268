package auth

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ErrNotSynced says that an authorizer has not loaded its objects yet, so its decision is not
// known. The client should retry.
var ErrNotSynced = errors.New("auth: objects that authorization needs are not loaded yet")

// firstSync reports whether an authorizer has loaded its objects for the first time.
type firstSync struct {
	loads []<-chan struct{} // each is closed once a part is loaded
	ended <-chan struct{}   // closed when no request may wait any longer
	done  atomic.Bool       // all of loads were seen closed
}

// has reports whether everything is loaded. From then on it costs one atomic load.
func (f *firstSync) has() bool {
	if f.done.Load() {
		return true
	}
	for _, load := range f.loads {
		select {
		case <-load:
		default:
			return false
		}
	}
	f.done.Store(true)
	return true
}

// wait blocks until everything is loaded. It fails with ErrNotSynced if ctx or the server ends
// first.
func (f *firstSync) wait(ctx context.Context) error {
	for _, load := range f.loads {
		select {
		case <-load:
		case <-ctx.Done():
		case <-f.ended:
		}
	}
	if !f.has() {
		return ErrNotSynced
	}
	return nil
}

// syncedAuthorizer denies nothing before the first sync of its objects. It allows at once every request that the
// objects loaded so far allow: more objects never allow less.
type syncedAuthorizer struct {
	next     authorizer.Authorizer
	first    *firstSync
	failFast bool                             // fail at once instead of waiting
	concerns func(authorizer.Attributes) bool // the requests that more objects may allow
}

// Authorize implements authorizer.Authorizer.
func (s *syncedAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	synced := s.first.has() // before next reads
	decision, reason, err := s.next.Authorize(ctx, a)
	if synced || decision != authorizer.DecisionNoOpinion || !s.concerns(a) {
		return decision, reason, err
	}
	if s.failFast {
		return authorizer.DecisionNoOpinion, "", ErrNotSynced
	}
	if err := s.first.wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return s.next.Authorize(ctx, a)
}

// noProbe reports whether a is not a health probe. Probes must not wait.
func noProbe(a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return true
	}
	root, _, _ := strings.Cut(strings.TrimPrefix(a.GetPath(), "/"), "/")
	return root != "livez" && root != "readyz" && root != "healthz"
}

// syncedRules resolves rules after the first sync of RBAC objects.
type syncedRules struct {
	next  authorizer.RuleResolver
	first *firstSync
}

// RulesFor implements authorizer.RuleResolver.
func (s *syncedRules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if err := s.first.wait(ctx); err != nil {
		return nil, nil, true, err
	}
	return s.next.RulesFor(ctx, u, namespace)
}

// afterSync makes an authorizer wait for first before it denies a request for which concerns returns true. It
// changes nothing if Config.Ended is nil.
func (c *chain) afterSync(made link, first *firstSync, concerns func(authorizer.Attributes) bool) link {
	if c.ended == nil {
		return made
	}
	first.ended = c.ended
	made.local = &syncedAuthorizer{next: made.cached, first: first, failFast: true, concerns: concerns}
	made.authorizer = &syncedAuthorizer{next: made.authorizer, first: first, concerns: concerns}
	made.cached = &syncedAuthorizer{next: made.cached, first: first, concerns: concerns}
	return made
}
