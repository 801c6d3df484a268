package auth

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// ErrNotSynced says that an authorizer has not loaded yet what it decides by, so that nobody
// knows whether it allows a request. It is worth trying again.
var ErrNotSynced = errors.New("auth: what decides about access is not loaded yet")

// firstSync knows whether an authorizer has loaded once what it decides by.
type firstSync struct {
	loads []<-chan struct{} // each is closed once a part is loaded
	ended <-chan struct{}   // closed when nobody is to wait any longer
	done  atomic.Bool       // all of loads were seen closed
}

// has reports whether everything is loaded. Afterwards it costs one load.
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
			continue
		default:
		}
		select {
		case <-load:
		case <-ctx.Done():
			return ErrNotSynced
		case <-f.ended:
			return ErrNotSynced
		}
	}
	return nil
}

// patient is an authorizer that does not withhold its consent before the first sync of what it
// decides by. What it allows by then it allows at once: more objects never allow less.
type patient struct {
	next     authorizer.Authorizer
	first    *firstSync
	hasty    bool                             // it fails at once instead of waiting
	concerns func(authorizer.Attributes) bool // the requests that more objects may allow
}

// Authorize implements authorizer.Authorizer.
func (p *patient) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	synced := p.first.has() // before next reads
	decision, reason, err := p.next.Authorize(ctx, a)
	if synced || decision != authorizer.DecisionNoOpinion || !p.concerns(a) {
		return decision, reason, err
	}
	if p.hasty {
		return authorizer.DecisionNoOpinion, "", ErrNotSynced
	}
	if err := p.first.wait(ctx); err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	return p.next.Authorize(ctx, a)
}

// noProbe reports whether a is no request for the server's health. Probes must not wait.
func noProbe(a authorizer.Attributes) bool {
	if a.IsResourceRequest() {
		return true
	}
	root, _, _ := strings.Cut(strings.TrimPrefix(a.GetPath(), "/"), "/")
	return root != "livez" && root != "readyz" && root != "healthz"
}

// patientRules is a resolver of rules that waits for the first sync of what it resolves them
// from.
type patientRules struct {
	next  authorizer.RuleResolver
	first *firstSync
}

// RulesFor implements authorizer.RuleResolver.
func (p *patientRules) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if !p.first.has() {
		if err := p.first.wait(ctx); err != nil {
			return nil, nil, true, err
		}
	}
	return p.next.RulesFor(ctx, u, namespace)
}

// patiently makes an authorizer wait for first before it withholds its consent from requests that
// concerns reports. Without an end of the server it does not.
func (c *chain) patiently(made link, first *firstSync, concerns func(authorizer.Attributes) bool) link {
	if c.ended == nil {
		return made
	}
	first.ended = c.ended
	made.local = &patient{next: made.cached, first: first, hasty: true, concerns: concerns}
	made.authorizer = &patient{next: made.authorizer, first: first, concerns: concerns}
	made.cached = &patient{next: made.cached, first: first, concerns: concerns}
	return made
}
