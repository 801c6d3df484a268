package httpapi

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/internal/auth"
)

// round is one look at all rights.
type round struct {
	*rights
	now                    time.Time
	generation, all, nodes uint64
	remote                 bool // the authorizer asks others
	impersonation          func() http.Handler
	silent                 atomic.Bool // somebody who is asked does not answer
}

// look asks about what may have changed, and ends the watches whose right is lost.
func (r *rights) look(ctx context.Context, now time.Time) {
	// Counters are read before anybody is asked: what changes meanwhile is seen the next time.
	turn := &round{rights: r, now: now, generation: r.config.Generation(), remote: r.config.Remote()}
	turn.all, turn.nodes = r.config.Authority()
	turn.impersonation = sync.OnceValue(func() http.Handler { return newImpersonation(doubting{r.s.config.Authorizer}) })
	group := new(errgroup.Group)
	group.SetLimit(recheckCrowd)
	for c, held := range turn.due() {
		group.Go(func() error { turn.check(ctx, c, held); return nil })
	}
	_ = group.Wait() // nobody fails
	r.part(now)
}

// due returns the credentials that are to be asked about, and the rights of each.
func (t *round) due() map[*credential][]*right {
	t.mu.Lock()
	defer t.mu.Unlock()
	var due map[*credential][]*right
	for _, c := range t.known {
		ask := t.dueCredential(c)
		for _, held := range c.rights {
			ask = ask || t.dueRight(held)
		}
		if !ask {
			continue
		}
		all := make([]*right, 0, len(c.rights))
		for _, held := range c.rights {
			all = append(all, held)
		}
		if due == nil {
			due = make(map[*credential][]*right)
		}
		due[c] = all
	}
	return due
}

// dueCredential reports whether to ask who c is.
func (t *round) dueCredential(c *credential) bool {
	if !c.asked || c.generation != t.generation {
		return true
	}
	if !c.ties.Expires.IsZero() && !t.now.Before(c.ties.Expires) || c.ties.Remote && !t.now.Before(c.next) {
		return true
	}
	for i, name := range c.ties.Objects {
		if revision, known := t.revision(name); known && revision != c.revisions[i] {
			return true
		}
	}
	return false
}

// revision is that of an object, 0 if there is none; known says that it can be told now.
func (r *rights) revision(name auth.ObjectName) (revision int64, known bool) {
	of := r.caches[name.Resource]
	if of == nil || !of.Ready() {
		return 0, false
	}
	key := name.Name
	if name.Namespace != "" {
		key = name.Namespace + "/" + name.Name
	}
	if o := of.Snapshot().Get(key); o != nil {
		return o.Revision(), true
	}
	return 0, true
}

// dueRight reports whether to ask what held's owner may do.
func (t *round) dueRight(held *right) bool {
	return !held.asked || held.all != t.all || held.single && held.nodes != t.nodes ||
		t.remote && !t.now.Before(held.next)
}

// check asks who c is and what he may do, where that may have changed.
func (t *round) check(ctx context.Context, c *credential, all []*right) {
	if t.dueCredential(c) && !t.identify(ctx, c, all) {
		return
	}
	if c.impersonates && !c.asked {
		return // whom he acts as is known, but not yet who he is
	}
	for _, held := range all {
		if !t.dueRight(held) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
		allowed, known := t.may(ctx, held)
		cancel()
		switch {
		case known && !allowed:
			t.lose(held, lossPermission)
		case known:
			held.asked, held.all, held.nodes, held.next = true, t.all, t.nodes, t.now.Add(remoteInterval)
		}
	}
}

// identify authenticates c once more, and reports whether that is who it was.
func (t *round) identify(ctx context.Context, c *credential, all []*right) bool {
	if c.ties.Remote && t.silent.Load() {
		return true // others wait for the same who does not answer
	}
	revisions := make([]int64, len(c.ties.Objects))
	for i, name := range c.ties.Objects {
		revisions[i], _ = t.revision(name)
	}
	resp, ok, err := t.authenticate(ctx, c)
	switch {
	case c.ties.Ends && !t.now.Before(c.ties.Expires), err == nil && !ok:
		for _, held := range all {
			t.lose(held, lossCredential)
		}
		return false
	case err != nil: // it cannot be told now
		if c.ties.Remote && errors.Is(err, context.DeadlineExceeded) {
			t.silent.Store(true)
		}
		return true
	}
	c.asked, c.generation, c.revisions, c.next = true, t.generation, revisions, t.now.Add(remoteInterval)
	if !sameUser(c.who, resp.User) {
		c.who = resp.User
		for _, held := range all {
			held.asked = false
			if !c.impersonates {
				held.attributes.User = resp.User
			}
		}
	}
	return true
}

// authenticate asks who c is.
func (t *round) authenticate(ctx context.Context, c *credential) (*authenticator.Response, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
	defer cancel()
	audiences := t.s.config.Audiences
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	req := c.request.WithContext(ctx)
	req.Header = c.request.Header.Clone() // which loses what authenticators have accepted
	resp, ok, err := t.config.Again.AuthenticateRequest(req)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err()) // however it is told
	}
	if err == nil && ok && !acceptable(audiences, resp.Audiences) {
		return nil, false, nil
	}
	return resp, ok, err
}

func sameUser(a, b user.Info) bool {
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && slices.Equal(a.GetGroups(), b.GetGroups()) &&
		reflect.DeepEqual(a.GetExtra(), b.GetExtra())
}

// may asks whether held's owner may watch still. known says that there was an answer.
func (t *round) may(ctx context.Context, held *right) (allowed, known bool) {
	if t.s.config.Authorizer == nil {
		return true, true
	}
	if held.of.impersonates {
		if allowed, known := t.mayImpersonate(ctx, held); !allowed {
			return false, known
		}
	}
	decision, _, err := t.s.config.Authorizer.Authorize(ctx, &held.attributes)
	if decision == authorizer.DecisionAllow {
		return true, true
	}
	return false, err == nil
}

// mayImpersonate asks, by upstream's filter, whether held's owner may act as whom he does.
// known says that there was an answer.
func (t *round) mayImpersonate(ctx context.Context, held *right) (allowed, known bool) {
	var doubt atomic.Bool
	ctx = context.WithValue(ctx, doubtKey{}, &doubt)
	ctx = context.WithValue(handlerContext(ctx, held.info, held.of.who, t.now), impersonatedKey{}, func(*http.Request) { allowed = true })
	req := held.of.request.WithContext(ctx)
	req.Header = held.of.request.Header.Clone()
	t.impersonation().ServeHTTP(newRecorder(), req)
	return allowed, !doubt.Load() && ctx.Err() == nil
}

// doubtKey is where a context has the *atomic.Bool that doubting sets.
type doubtKey struct{}

// doubting takes note of questions that were not answered: the filter of impersonation
// refuses then, as it does where the answer is no.
type doubting struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (d doubting) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := d.Authorizer.Authorize(ctx, a)
	if doubt, ok := ctx.Value(doubtKey{}).(*atomic.Bool); ok && err != nil && decision != authorizer.DecisionAllow {
		doubt.Store(true)
	}
	return decision, reason, err
}
