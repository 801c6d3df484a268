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
	// interval is how often is looked at what rights rest on.
	interval = time.Second
	// remoteInterval is how old what others said may be when they are asked again: in the
	// first round after that, which makes every three seconds.
	remoteInterval = 3*time.Second - interval/2
	// retryInterval is when those are asked again who did not answer.
	retryInterval = interval / 2
)

// round is one look at rights. What it asks nobody waits for.
type round struct {
	moment
	ctx        context.Context // of Run
	ledger     *ledger
	pools      *pools
	streams    *streams.Streams
	here, away *judges
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
			t.pools.permissions.add(t.ctx, func(ctx context.Context) func() bool {
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
	t.ledger.lookAgain(c)
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
		revisions[i], _ = t.objects.revision(name)
	}
	who, v := t.here.identify(ctx, c)
	switch {
	case v == rulingYes:
		c.near = true
	case v == rulingOthers && c.near: // what was known here is not known any more
		v = rulingNo
	case v == rulingOthers:
		c.asking = true
		t.pools.identities.add(t.ctx, func(ctx context.Context) func() bool {
			who, v := t.away.identify(ctx, c)
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
	t.learn(c, t.ledger.rightsOf(c), who, revisions, v)
	t.ledger.lookAgain(c)
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

// lose says that held is lost. The watches that rest on it end when streams look.
func (t *round) lose(held *right, loss uint32) {
	t.ledger.lose(held, loss)
	t.streams.Revoke()
	klog.V(2).InfoS("Watches end: their right is lost", "user", held.of.who.GetName(), "credentialLost", loss == lossCredential,
		"group", held.info.APIGroup, "resource", held.info.Resource, "namespace", held.info.Namespace)
}
