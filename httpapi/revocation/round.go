package revocation

import (
	"context"
	"reflect"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/httpapi/streams"
)

const (
	// interval is how often Run looks at what rights rest on.
	interval = time.Second
	// remoteInterval is how old an answer of a provider or webhook may get: the first round
	// after that asks again, which makes every three seconds.
	remoteInterval = 3*time.Second - interval/2
	// retryInterval is how long after a question could not be decided it is asked again.
	retryInterval = interval / 2
)

// round is one look at rights. The pools ask its questions, and Run does not wait for them.
type round struct {
	state
	ctx           context.Context // of Run
	table         *table
	pools         *pools
	streams       *streams.Streams
	local, remote *checker
}

// check authenticates c and authorizes its watches again, where the outcome may have changed.
// It asks this process alone, and hands questions for providers and webhooks to their pools.
// c is busy meanwhile.
func (t *round) check(ctx context.Context, c *credential, all []*right) {
	if t.dueCredential(c) && !t.identify(ctx, c, all) {
		return
	}
	if c.impersonates && !c.asked {
		return // c.who is still the impersonated user: the requester must be authenticated first
	}
	for _, held := range all {
		if !t.dueRight(held) {
			continue
		}
		about := held.question(t.lossesOf(held))
		switch v := t.local.may(ctx, about, t.now); v {
		case remote:
			held.asking = true
			t.pools.permissions.add(t.ctx, func(ctx context.Context) func() bool {
				v := t.remote.may(ctx, about, t.now)
				return func() bool { return t.decided(about, v) }
			})
		default:
			t.decide(about, v)
		}
	}
}

// decided takes over a webhook's answer and reports true, unless the credential is busy. Only
// the goroutine that calls Run calls it.
func (t *round) decided(about *question, v verdict) bool {
	held, c := about.held, about.held.of
	if c.busy {
		return false
	}
	held.asking = false
	if about.who == c.who { // otherwise the question was about another user
		t.decide(about, v)
	}
	return true
}

// decide takes over the answer whether watches are still allowed.
func (t *round) decide(about *question, v verdict) {
	held := about.held
	switch v {
	case denied:
		t.lose(held, lossPermission)
	case allowed:
		held.asked, held.all, held.losses, held.next = true, t.authorizer.all, about.losses, t.now.Add(remoteInterval)
	default:
		held.retry = t.now.Add(retryInterval)
	}
}

// identify authenticates c once more. It reports whether the rights of c must be checked: not if
// c is no longer accepted.
func (t *round) identify(ctx context.Context, c *credential, all []*right) bool {
	if c.ties.Ends && t.expired(c) {
		return t.learn(c, all, nil, nil, denied)
	}
	revisions := make([]int64, len(c.ties.Objects))
	for i, name := range c.ties.Objects {
		revisions[i], _ = t.objects.revision(name)
	}
	who, v := t.local.identify(ctx, c)
	switch {
	case v == allowed:
		c.local = true
	case v == remote && c.local: // this process accepted it before, and does no longer
		v = denied
	case v == remote:
		c.asking = true
		t.pools.identities.add(t.ctx, func(ctx context.Context) func() bool {
			who, v := t.remote.identify(ctx, c)
			return func() bool { return t.identified(c, who, revisions, v) }
		})
		return true
	}
	return t.learn(c, all, who, revisions, v)
}

// identified takes over a provider's or webhook's answer about c and reports true, unless c is
// busy. Only the goroutine that calls Run calls it.
func (t *round) identified(c *credential, who user.Info, revisions []int64, v verdict) bool {
	if c.busy {
		return false
	}
	c.asking = false
	t.learn(c, t.table.rightsOf(c), who, revisions, v)
	return true
}

// learn takes over the outcome of authenticating c, and reports whether c still has rights.
func (t *round) learn(c *credential, all []*right, who user.Info, revisions []int64, v verdict) bool {
	switch v {
	case denied:
		for _, held := range all {
			t.lose(held, lossCredential)
		}
		return false
	case allowed:
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

// lose marks held as lost. Streams ends the watches that rest on it when it looks next.
func (t *round) lose(held *right, loss uint32) {
	t.table.lose(held, loss)
	t.streams.Revoke()
	asked := held.attributes.Request
	klog.V(2).InfoS("Watches end: their right is lost", "user", held.of.who.GetName(), "credentialLost", loss == lossCredential,
		"group", asked.Group, "resource", asked.Resource, "namespace", asked.Namespace)
}
