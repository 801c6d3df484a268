package httpapi

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
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

// round is one look at rights. What it asks nobody waits for.
type round struct {
	*rights
	mark
	ctx        context.Context // of run
	now        time.Time
	here, away *judges
}

// judges are who is asked.
type judges struct {
	again         authenticator.Request
	gate          authorizer.Authorizer          // nil: everything is allowed
	impersonation func() *identity.Impersonation // which remembers decisions, so it is made for each round
}

func newJudges(again authenticator.Request, gate authorizer.Authorizer) *judges {
	return &judges{again, gate, sync.OnceValue(func() *identity.Impersonation { return identity.NewImpersonation(doubting{gate}) })}
}

// look asks about what may have changed, and ends the watches whose right is lost. It
// waits for no answer.
func (r *rights) look(ctx context.Context, now time.Time) {
	r.told.settle()
	turn := &round{rights: r, ctx: ctx, now: now, mark: r.marks()}
	due := turn.due()
	if len(due) > 0 {
		turn.away = newJudges(r.config.Again, r.s.config.Authorizer)
		turn.here = turn.away
		if r.config.Near != nil {
			turn.here = newJudges(r.config.Near, cmp.Or(r.config.Gate, r.s.config.Authorizer))
		}
	}
	for c, all := range due {
		c.busy = true
		r.near.add(ctx, func(ctx context.Context) func() bool {
			turn.check(ctx, c, all)
			return func() bool {
				c.busy = false
				r.lookAgain(c)
				return true
			}
		})
	}
	r.s.streams.EndRevoked(now)
}

// check authenticates c and authorizes its watches again, where that may have changed, and
// asks nothing outside of this process. What others must decide is handed to their pools.
// c is busy meanwhile.
func (t *round) check(ctx context.Context, c *credential, all []*right) {
	if t.dueCredential(c) && !t.identify(ctx, c, all) {
		return
	}
	if c.impersonates && !c.asked {
		return // the impersonated user is known, but not yet who impersonates
	}
	for _, held := range all {
		if !t.dueRight(held) {
			continue
		}
		about := held.question()
		switch v := t.here.may(ctx, about, t.now); v {
		case rulingOthers:
			held.asking = true
			t.permissions.add(t.ctx, func(ctx context.Context) func() bool {
				v := t.away.may(ctx, about, t.now)
				return func() bool { return t.decided(about, v) }
			})
		default:
			t.decide(held, v)
		}
	}
}

// decided takes over what others say, unless c is busy. It belongs to the goroutine that
// calls run.
func (t *round) decided(about *question, v ruling) bool {
	held, c := about.held, about.held.of
	if c.busy {
		return false
	}
	held.asking = false
	if about.who == c.who { // else it was about somebody else
		t.decide(held, v)
	}
	t.lookAgain(c)
	return true
}

// decide takes over whether held's owner may watch still.
func (t *round) decide(held *right, v ruling) {
	switch v {
	case rulingNo:
		t.lose(held, lossPermission)
	case rulingYes:
		held.asked, held.all, held.nodes, held.next = true, t.authority.all, t.authority.nodes, t.now.Add(remoteInterval)
	default:
		held.retry = t.now.Add(retryInterval)
	}
}

// identify authenticates c once more, and reports whether it may go on with who it was.
func (t *round) identify(ctx context.Context, c *credential, all []*right) bool {
	if c.ties.Ends && t.expired(c) {
		return t.learn(c, all, nil, nil, rulingNo)
	}
	revisions := make([]int64, len(c.ties.Objects))
	for i, name := range c.ties.Objects {
		revisions[i], _ = t.revision(name)
	}
	who, v := t.here.identify(ctx, c, t.s.config.Audiences)
	switch {
	case v == rulingYes:
		c.near = true
	case v == rulingOthers && c.near: // what was known here is not known any more
		v = rulingNo
	case v == rulingOthers:
		c.asking = true
		t.identities.add(t.ctx, func(ctx context.Context) func() bool {
			who, v := t.away.identify(ctx, c, t.s.config.Audiences)
			return func() bool { return t.identified(c, who, revisions, v) }
		})
		return true
	}
	return t.learn(c, all, who, revisions, v)
}

// identified takes over what others say of who c is, unless c is busy. It belongs to the
// goroutine that calls run.
func (t *round) identified(c *credential, who user.Info, revisions []int64, v ruling) bool {
	if c.busy {
		return false
	}
	c.asking = false
	t.learn(c, t.rightsOf(c), who, revisions, v)
	t.lookAgain(c)
	return true
}

// learn takes over who c is, and reports whether it has rights still.
func (t *round) learn(c *credential, all []*right, who user.Info, revisions []int64, v ruling) bool {
	switch v {
	case rulingNo:
		for _, held := range all {
			t.lose(held, lossCredential)
		}
		return false
	case rulingYes:
	default:
		c.retry = t.now.Add(retryInterval)
		return true
	}
	c.asked, c.generation, c.revisions, c.next = true, t.generation, revisions, t.now.Add(remoteInterval)
	if !sameUser(c.who, who) {
		c.who = who
		for _, held := range all {
			held.asked = false
			if !c.impersonates {
				held.attributes.User = who
			}
		}
	}
	return true
}

func sameUser(a, b user.Info) bool {
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && slices.Equal(a.GetGroups(), b.GetGroups()) &&
		reflect.DeepEqual(a.GetExtra(), b.GetExtra())
}

// identify asks who c is.
func (j *judges) identify(ctx context.Context, c *credential, audiences authenticator.Audiences) (_ user.Info, v ruling) {
	defer fenceQuestion(&v)
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	req := c.request.WithContext(ctx)
	req.Header = c.request.Header.Clone() // which loses what authenticators have accepted
	resp, ok, err := j.again.AuthenticateRequest(req)
	switch {
	case errors.Is(err, auth.ErrOthers):
		return nil, rulingOthers
	case err != nil:
		return nil, rulingNone
	case !ok || !identity.Acceptable(audiences, resp.Audiences):
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
