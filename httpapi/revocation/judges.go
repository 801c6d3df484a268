package revocation

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/exchange"
	"github.com/larder-io/larder/httpapi/handlers"
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// ruling is what comes of a question.
type ruling uint8

const (
	rulingNone   ruling = iota // nobody could tell
	rulingOthers               // those who were asked leave it to others
	rulingYes
	rulingNo
)

// judges are who is asked.
type judges struct {
	again         authenticator.Request
	audiences     authenticator.Audiences
	gate          authorizer.Authorizer          // nil: everything is allowed
	impersonation func() *identity.Impersonation // which remembers decisions, so it is made for each round
}

func newJudges(again authenticator.Request, audiences authenticator.Audiences, gate authorizer.Authorizer) *judges {
	return &judges{again, audiences, gate, sync.OnceValue(func() *identity.Impersonation { return identity.NewImpersonation(doubting{gate}) })}
}

// identify asks who c is.
func (j *judges) identify(ctx context.Context, c *credential) (_ user.Info, v ruling) {
	defer fenceQuestion(&v)
	if len(j.audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, j.audiences)
	}
	req := c.request.WithContext(ctx)
	req.Header = c.request.Header.Clone() // which loses what authenticators have accepted
	resp, ok, err := j.again.AuthenticateRequest(req)
	switch {
	case errors.Is(err, auth.ErrOthers):
		return nil, rulingOthers
	case err != nil:
		return nil, rulingNone
	case !ok || !identity.Acceptable(j.audiences, resp.Audiences):
		return nil, rulingNo
	}
	return resp.User, rulingYes
}

// question is whether a client may still watch. It is immutable.
type question struct {
	held       *right
	who        user.Info // held's owner, who may act as another
	attributes request.Attributes
}

func (held *right) question() *question { return &question{held, held.of.who, held.attributes} }

// may asks a question.
func (j *judges) may(ctx context.Context, about *question, now time.Time) (v ruling) {
	defer fenceQuestion(&v)
	if j.gate == nil {
		return rulingYes
	}
	if about.held.of.impersonates {
		if v := j.mayImpersonate(ctx, about, now); v != rulingYes {
			return v
		}
	}
	decision, _, err := j.gate.Authorize(ctx, &about.attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return rulingYes
	case errors.Is(err, auth.ErrOthers):
		return rulingOthers
	case err != nil:
		return rulingNone
	}
	return rulingNo
}

// mayImpersonate asks upstream's filter whether the client may impersonate as it does.
func (j *judges) mayImpersonate(ctx context.Context, about *question, now time.Time) ruling {
	doubt := new(doubt)
	ctx = context.WithValue(ctx, doubtKey{}, doubt)
	sent := about.held.of.request
	req := sent.WithContext(handlers.Context(ctx, about.held.info, about.who, now))
	req.Header = sent.Header.Clone()
	switch as := j.impersonation().Admit(handlers.NewRecorder(), req); {
	case as != nil:
		return rulingYes
	case doubt.others.Load():
		return rulingOthers
	case doubt.any.Load() || ctx.Err() != nil:
		return rulingNone
	}
	return rulingNo
}

// doubt takes note of questions that were not answered.
type doubt struct{ any, others atomic.Bool }

// doubtKey is where a context has its *doubt.
type doubtKey struct{}

// doubting takes note of questions that were not answered: the filter of impersonation
// refuses then, as it does where the answer is no.
type doubting struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (d doubting) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := d.Authorizer.Authorize(ctx, a)
	if doubt, ok := ctx.Value(doubtKey{}).(*doubt); ok && err != nil && decision != authorizer.DecisionAllow {
		doubt.any.Store(true)
		if errors.Is(err, auth.ErrOthers) {
			doubt.others.Store(true)
		}
	}
	return decision, reason, err
}

// fenceQuestion keeps a panic to the question, which nobody has answered then.
func fenceQuestion(v *ruling) {
	if p := recover(); p != nil {
		*v = rulingNone
		klog.ErrorS(nil, "A question about a watch's right panicked", "panic", p, "stack", exchange.Stack())
	}
}
