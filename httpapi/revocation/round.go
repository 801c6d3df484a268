package revocation

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/auth"
	"github.com/larder-io/larder/internal/registry/wire"
)

const (
	// interval is the time between rounds.
	interval = time.Second
	// remoteInterval is the age from which an answer of a provider or webhook is renewed. The next round
	// does that, so it happens every three seconds.
	remoteInterval = 3*time.Second - interval/2
	// retryInterval is the pause before a question that could not be decided is asked again.
	retryInterval = interval / 2
)

// counters has the counters of changes that may concern all rights.
type counters struct {
	generation uint64
	all, nodes uint64 // of auth.Revocation.AuthorizerChanges
	remote     bool   // the authorizer asks a webhook
}

// countersOf reads the counters. A round reads them before it asks questions, so the next round sees changes
// that happen meanwhile.
func countersOf(config *auth.Revocation) counters {
	m := counters{generation: config.Generation(), remote: config.Remote()}
	m.all, m.nodes = config.AuthorizerChanges()
	return m
}

// round is one check of all rights. The pools ask its questions, and Run does not wait for them.
type round struct {
	*Rights
	counters          counters
	ctx               context.Context // of Run
	now               time.Time
	byLocal, byRemote *checker
}

func (r *Rights) newRound(ctx context.Context, now time.Time) *round {
	config := r.config.Revocation
	t := &round{Rights: r, counters: countersOf(config), ctx: ctx, now: now}
	t.byRemote = newChecker(config.Authenticator, r.config.Audiences, r.config.Authorizer)
	if t.byLocal = t.byRemote; config.LocalAuthenticator != nil {
		t.byLocal = newChecker(config.LocalAuthenticator, r.config.Audiences, cmp.Or(config.LocalAuthorizer, r.config.Authorizer))
	}
	return t
}

// claim returns the credentials that must be checked, and marks them busy. It locks mu for each credential
// separately, so that new watches do not wait for long.
func (t *round) claim() (due []*credential) {
	t.mu.Lock()
	all := slices.AppendSeq(t.all[:0], maps.Values(t.known))
	t.mu.Unlock()
	defer func() { clear(all); t.all = all }() // keep no secret of a dropped credential
	for _, c := range all {
		t.mu.Lock()
		if !c.busy && t.dueLocked(c) {
			c.busy = true
			due = append(due, c)
		}
		t.mu.Unlock()
	}
	return due
}

// dueLocked reports whether there is anything to ask about c.
func (t *round) dueLocked(c *credential) bool {
	if t.dueCredentialLocked(c) {
		return true
	}
	if c.impersonates && !c.asked {
		return false // the requester must be authenticated first
	}
	basis := decidedAt{true, t.counters.all, t.config.Revocation.NodeChanges(c.who)}
	if c.decided == basis {
		return false
	}
	for _, held := range c.rights {
		if t.dueRightLocked(held) {
			return true
		}
		// An answer may still come or is not final, or depends on more than basis.
		basis.known = basis.known && !held.asking && !t.now.Before(held.retry)
	}
	basis.known = basis.known && !c.impersonates && !t.counters.remote
	c.decided = basis
	return false
}

// dueCredentialLocked reports whether c must be authenticated again.
func (t *round) dueCredentialLocked(c *credential) bool {
	if c.asking || t.now.Before(c.retry) {
		return false
	}
	if !c.asked || c.generation != t.counters.generation {
		return true
	}
	late := t.expired(c) || !c.ends.IsZero() && !t.now.Before(c.ends)
	if c.ties.Ends && t.expired(c) || (c.ties.Remote || late) && !t.now.Before(c.next) {
		return true
	}
	for i, name := range c.ties.Objects {
		if object, known := t.object(name); known && revisionOf(object) != c.revisions[i] {
			return true
		}
	}
	return false
}

// deletionLeeway is how long after its deletionTimestamp an object still makes tokens valid (kubernetes
// pkg/serviceaccount/claims.go).
const deletionLeeway = time.Minute

// bound returns the revisions of the objects that c is bound to, and when the first of them that is being deleted
// makes c invalid.
func (t *round) bound(c *credential) (revisions []int64, ends time.Time) {
	revisions = make([]int64, len(c.ties.Objects))
	for i, name := range c.ties.Objects {
		object, _ := t.object(name)
		if revisions[i] = revisionOf(object); object == nil || object.Err() != nil {
			continue
		}
		var meta metav1.ObjectMeta
		raw, err := wire.ObjectMetaProtobuf(object.Body())
		if err != nil || meta.Unmarshal(raw) != nil || meta.DeletionTimestamp == nil {
			continue
		}
		if end := meta.DeletionTimestamp.Add(deletionLeeway); ends.IsZero() || end.Before(ends) {
			ends = end
		}
	}
	return revisions, ends
}

// expired reports whether c has expired. Unless its ties say that it ends then, it may be
// accepted for a little longer, from a cache.
func (t *round) expired(c *credential) bool {
	return !c.ties.Expires.IsZero() && !t.now.Before(c.ties.Expires)
}

// object returns an object, nil if there is none; known is false while its cache is not ready.
func (t *round) object(name auth.ObjectName) (object *cache.Object, known bool) {
	of := t.objects[name.Resource]
	if of == nil || !of.Ready() {
		return nil, false
	}
	key := name.Name
	if name.Namespace != "" {
		key = name.Namespace + "/" + name.Name
	}
	return of.Snapshot().Get(key), true
}

func revisionOf(object *cache.Object) int64 {
	if object == nil {
		return 0
	}
	return object.Revision()
}

// dueRightLocked reports whether held must be authorized again.
func (t *round) dueRightLocked(held *right) bool {
	if held.asking || t.now.Before(held.retry) {
		return false
	}
	return !held.asked || held.all != t.counters.all || held.losses != t.lossesOfLocked(held) ||
		t.counters.remote && !t.now.Before(held.next)
}

// lossesOfLocked counts the changes that may have taken held from a node.
func (t *round) lossesOfLocked(held *right) uint64 {
	if !held.single {
		return 0
	}
	return t.config.Revocation.NodeChanges(held.attributes.User)
}

// check authenticates c and authorizes its watches again, where the outcome may have changed.
// It asks this process alone, and hands questions for providers and webhooks to their pools.
func (t *round) check(ctx context.Context, c *credential) {
	t.identify(ctx, c)
	for _, about := range t.questions(c) {
		v := t.byLocal.may(ctx, about, t.now)
		if v != remote {
			t.decide(about, v)
			continue
		}
		t.permissions.add(t.ctx, func(ctx context.Context) { t.decide(about, t.byRemote.may(ctx, about, t.now)) })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c.busy = false
}

// identify authenticates c again, if that is due.
func (t *round) identify(ctx context.Context, c *credential) {
	t.mu.Lock()
	due := t.dueCredentialLocked(c)
	c.asking = c.asking || due
	t.mu.Unlock()
	if !due {
		return
	}
	if c.ties.Ends && t.expired(c) {
		t.learn(c, nil, nil, time.Time{}, denied)
		return
	}
	revisions, ends := t.bound(c)
	who, v := t.byLocal.identify(ctx, c)
	switch {
	case v == allowed:
		c.local = true
	case v == remote && c.local: // this process accepted it before, and does no longer
		v = denied
	case v == remote:
		t.identities.add(t.ctx, func(ctx context.Context) {
			who, v := t.byRemote.identify(ctx, c)
			t.learn(c, who, revisions, ends, v)
		})
		return
	}
	t.learn(c, who, revisions, ends, v)
}

// learn records the outcome of authenticating c. revisions and ends are the results of bound before that.
func (t *round) learn(c *credential, who user.Info, revisions []int64, ends time.Time, v verdict) {
	var lost []*right
	t.mu.Lock()
	c.asking = false
	switch v {
	case denied:
		lost = slices.Collect(maps.Values(c.rights))
	case allowed:
		c.asked, c.generation, c.revisions, c.ends, c.next = true, t.counters.generation, revisions, ends, t.now.Add(remoteInterval)
		if c.who.GetName() != who.GetName() || c.who.GetUID() != who.GetUID() || !slices.Equal(c.who.GetGroups(), who.GetGroups()) ||
			!reflect.DeepEqual(c.who.GetExtra(), who.GetExtra()) {
			c.changeUserLocked(who)
		}
	default:
		c.retry = t.now.Add(retryInterval)
	}
	t.mu.Unlock()
	for _, held := range lost {
		t.lose(held, lostCredential)
	}
}

// changeUserLocked makes the rights of c due, because c now belongs to another user.
func (c *credential) changeUserLocked(who user.Info) {
	c.who, c.decided = who, decidedAt{}
	for _, held := range c.rights {
		held.asked = false
		if !c.impersonates {
			held.attributes.User = who
		}
	}
}

// questions returns the questions that are due about the rights of c. decide handles the answers.
func (t *round) questions(c *credential) (list []*question) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.impersonates && !c.asked {
		return nil // c.who is still the impersonated user: the requester must be authenticated first
	}
	for _, held := range c.rights {
		if t.dueRightLocked(held) {
			held.asking = true
			list = append(list, &question{held, c.who, held.attributes, t.lossesOfLocked(held)})
		}
	}
	return list
}

// decide records whether watches are still allowed.
func (t *round) decide(about *question, v verdict) {
	held := about.held
	t.mu.Lock()
	held.asking = false
	current := about.who == held.of.who // otherwise the question was about another user
	switch {
	case !current || v == denied:
	case v == allowed:
		held.asked, held.all, held.losses, held.next = true, t.counters.all, about.losses, t.now.Add(remoteInterval)
	default:
		held.retry = t.now.Add(retryInterval)
	}
	t.mu.Unlock()
	if current && v == denied {
		t.lose(held, lostPermission)
	}
}

// lose removes held and marks it as lost. Streams then ends its watches.
func (t *round) lose(held *right, what string) {
	t.mu.Lock()
	t.dropLocked(held)
	who := held.of.who
	t.mu.Unlock()
	held.lost.Store(&what)
	t.config.Streams.Revoke()
	asked := &held.attributes
	klog.V(2).InfoS("Ended watches whose users lost access", "user", who.GetName(), "credentialLost", what == lostCredential,
		"group", asked.APIGroup, "resource", asked.Resource, "namespace", asked.Namespace)
}
