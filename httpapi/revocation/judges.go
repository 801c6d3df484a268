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
	"github.com/larder-io/larder/httpapi/identity"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// ruling is the outcome of a question.
type ruling uint8

const (
	rulingNone   ruling = iota // the question could not be decided
	rulingOthers               // a provider or webhook must be asked
	rulingYes
	rulingNo
)

// judges are the authenticator and the authorizers that questions are put to.
type judges struct {
	again         authenticator.Request
	audiences     authenticator.Audiences
	gate          authorizer.Authorizer          // nil: everything is allowed
	impersonation func() *identity.Impersonation // which remembers decisions, so it is made for each round
}

func newJudges(again authenticator.Request, audiences authenticator.Audiences, gate authorizer.Authorizer) *judges {
	return &judges{again, audiences, gate, sync.OnceValue(func() *identity.Impersonation { return identity.NewImpersonation(doubting{gate}) })}
}

// identify authenticates c once more.
func (j *judges) identify(ctx context.Context, c *credential) (_ user.Info, v ruling) {
	defer fenceQuestion(&v)
	if len(j.audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, j.audiences)
	}
	req := c.request.WithContext(ctx)
	req.Header = c.request.Header.Clone() // authenticators delete the fields that they accept
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

// question asks whether a client may still watch. It is immutable.
type question struct {
	held       *right
	who        user.Info // the user of held's credential: the requester, if it impersonates
	attributes request.Attributes
	losses     uint64 // before it was asked
}

func (held *right) question(losses uint64) *question {
	return &question{held, held.of.who, held.attributes, losses}
}

// may asks whether the watches that question is about are still allowed.
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
	case errors.Is(err, auth.ErrNotSynced):
		return rulingNone // others might refuse what is allowed here
	case errors.Is(err, auth.ErrOthers):
		return rulingOthers
	case err != nil:
		return rulingNone
	}
	return rulingNo
}

// mayImpersonate asks upstream's filter whether the requester may still impersonate the user.
func (j *judges) mayImpersonate(ctx context.Context, about *question, now time.Time) ruling {
	doubt := new(doubt)
	ctx = context.WithValue(ctx, doubtKey{}, doubt)
	sent := about.held.of.request
	req := sent.WithContext(exchange.Context(ctx, about.attributes.Request.RequestInfo(), about.who, now))
	req.Header = sent.Header.Clone()
	switch as, err := j.impersonation().Admit(nethttp.NewRecorder(), req); {
	case as != nil:
		return rulingYes
	case err != nil:
		return rulingNone
	case doubt.others.Load():
		return rulingOthers
	case doubt.any.Load() || ctx.Err() != nil:
		return rulingNone
	}
	return rulingNo
}

// doubt says whether the authorizer failed to decide, and whether it left that to webhooks.
type doubt struct{ any, others atomic.Bool }

// doubtKey is the key of a context's *doubt.
type doubtKey struct{}

// doubting is an authorizer that notes in the context's doubt when it could not decide: the
// filter of impersonation refuses both then and where the authorizer denies.
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

// fenceQuestion confines a panic to the question, which then counts as not decided.
func fenceQuestion(v *ruling) {
	if p := recover(); p != nil {
		*v = rulingNone
		klog.ErrorS(nil, "A question about a watch's right panicked", "panic", p, "stack", exchange.Stack())
	}
}
