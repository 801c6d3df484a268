package revocation

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/internal/auth"
)

// verdict is the outcome of a check.
type verdict uint8

const (
	undecided verdict = iota // the question could not be decided
	remote                   // a provider or webhook must be asked
	allowed
	denied
)

// checker has the authenticator and the authorizer that decide on rights.
type checker struct {
	again         authenticator.Request
	audiences     authenticator.Audiences
	authz         authorizer.Authorizer
	impersonation func() *identity.Impersonation // caches decisions, so each round makes a new one
}

func newChecker(again authenticator.Request, audiences authenticator.Audiences, authz authorizer.Authorizer) *checker {
	return &checker{again, audiences, authz, sync.OnceValue(func() *identity.Impersonation { return identity.NewImpersonation(authz) })}
}

// identify authenticates c once more.
func (j *checker) identify(ctx context.Context, c *credential) (user.Info, verdict) {
	defer recoverQuestion()
	if len(j.audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, j.audiences)
	}
	req := c.request.WithContext(ctx)
	req.Header = c.request.Header.Clone() // authenticators delete the fields that they accept
	resp, ok, err := j.again.AuthenticateRequest(req)
	switch {
	case errors.Is(err, auth.ErrRemote):
		return nil, remote
	case err != nil:
		return nil, undecided
	case !ok || !identity.Acceptable(j.audiences, resp.Audiences):
		return nil, denied
	}
	return resp.User, allowed
}

// question asks whether a client may still watch. It is immutable.
type question struct {
	held       *right
	who        user.Info // the user of held's credential: the requester, if it impersonates
	attributes authorizer.AttributesRecord
	losses     uint64 // before it was asked
}

// may checks whether the watches that about names are still allowed.
func (j *checker) may(ctx context.Context, about *question, now time.Time) verdict {
	defer recoverQuestion()
	if about.held.of.impersonates {
		if v := j.mayImpersonate(ctx, about, now); v != allowed {
			return v
		}
	}
	decision, _, err := j.authz.Authorize(ctx, &about.attributes)
	return verdictOf(ctx, decision == authorizer.DecisionAllow, err)
}

// verdictOf returns the verdict of an authorizer. A denial with an error is undecided, because the authorizer may decide
// otherwise later. If only match conditions failed before ctx ended, the denial is final.
func verdictOf(ctx context.Context, allows bool, err error) verdict {
	switch {
	case allows:
		return allowed
	case errors.Is(err, auth.ErrNotSynced):
		return undecided // other authorizers might deny it
	case errors.Is(err, auth.ErrRemote):
		return remote
	case err != nil && (ctx.Err() != nil || !auth.FailedConditions(err)):
		return undecided
	}
	return denied
}

// mayImpersonate asks upstream's filter whether the requester may still impersonate the user.
func (j *checker) mayImpersonate(ctx context.Context, about *question, now time.Time) verdict {
	sent := about.held.of.request
	req := sent.WithContext(exchange.Context(ctx, about.held.info, about.who, now))
	req.Header = sent.Header.Clone()
	as, err := j.impersonation().Admit(nethttp.NewRecorder(), req)
	return verdictOf(ctx, as != nil, err)
}

// recoverQuestion confines a panic to the question. The result is then the zero verdict, undecided.
func recoverQuestion() {
	if p := recover(); p != nil {
		klog.ErrorS(nil, "A check of a watch's access panicked", "panic", p, "stack", exchange.Stack())
	}
}
