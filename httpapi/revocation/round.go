package revocation

import (
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
	// remoteInterval is the age at which a decision of a provider or webhook is checked again. The next
	// round does that, so it happens every three seconds.
	remoteInterval = 3*time.Second - interval/2
	// retryInterval is the pause before a question that could not be decided is asked again.
	retryInterval = interval / 2
)

// counters has the counters of changes that may concern all rights. A round reads them before it asks questions, so the
// next round sees changes that happen meanwhile.
type counters struct {
	generation uint64
	all        uint64 // of auth.Revocation.AuthorizerChanges
	remote     bool   // the authorizer asks a webhook
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
	return &round{
		Rights: r, counters: counters{config.Generation(), config.AuthorizerChanges(), config.Remote()}, ctx: ctx, now: now,
		byLocal:  newChecker(config.LocalAuthenticator, r.config.Audiences, config.LocalAuthorizer),
		byRemote: newChecker(config.Authenticator, r.config.Audiences, r.config.Authorizer),
	}
}

// claim returns the credentials that must be checked, and marks them busy. It locks mu for each credential
// separately, so that new watches do not wait for long.
func (r *round) claim() (due []*credential) {
	r.mu.Lock()
	all := slices.AppendSeq(r.all[:0], maps.Values(r.known))
	r.mu.Unlock()
	defer func() { clear(all); r.all = all }() // keep no secret of a dropped credential
	for _, c := range all {
		r.mu.Lock()
		if !c.busy && r.dueLocked(c) {
			c.busy = true
			due = append(due, c)
		}
		r.mu.Unlock()
	}
	return due
}

// dueLocked reports whether there is anything to ask about c.
func (r *round) dueLocked(c *credential) bool {
	if r.dueCredentialLocked(c) {
		return true
	}
	if c.impersonates && !c.asked {
		return false // the requester must be authenticated first
	}
	basis := decidedAt{true, r.counters.all, r.config.Revocation.NodeChanges(c.who)}
	if c.decided == basis {
		return false
	}
	for _, held := range c.rights {
		if r.dueRightLocked(held) {
			return true
		}
		// A decision is pending, not final, or depends on more than basis.
		basis.known = basis.known && !held.asking && !r.now.Before(held.retry)
	}
	basis.known = basis.known && !c.impersonates && !r.counters.remote
	c.decided = basis
	return false
}

// dueCredentialLocked reports whether c must be authenticated again.
func (r *round) dueCredentialLocked(c *credential) bool {
	if c.asking || r.now.Before(c.retry) {
		return false
	}
	if !c.asked || c.generation != r.counters.generation {
		return true
	}
	late := r.expired(c) || !c.ends.IsZero() && !r.now.Before(c.ends)
	if c.ties.Ends && r.expired(c) || (c.ties.Remote || late) && !r.now.Before(c.next) {
		return true
	}
	for i, name := range c.ties.Objects {
		if object, known := r.object(name); known && revisionOf(object) != c.revisions[i] {
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
func (r *round) bound(c *credential) (revisions []int64, ends time.Time) {
	revisions = make([]int64, len(c.ties.Objects))
	for i, name := range c.ties.Objects {
		object, _ := r.object(name)
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

// expired reports whether c has expired. Unless c.ties.Ends is set, the authenticator's cache may accept it
// a little longer.
func (r *round) expired(c *credential) bool {
	return !c.ties.Expires.IsZero() && !r.now.Before(c.ties.Expires)
}

// object returns an object, nil if there is none; known is false while its cache is not ready.
func (r *round) object(name auth.ObjectName) (object *cache.Object, known bool) {
	of := r.objects[name.Resource]
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
func (r *round) dueRightLocked(held *right) bool {
	if held.asking || r.now.Before(held.retry) {
		return false
	}
	return !held.asked || held.all != r.counters.all || held.losses != r.lossesOfLocked(held) ||
		r.counters.remote && !r.now.Before(held.next)
}

// lossesOfLocked counts the changes that may have revoked held, a node's right.
func (r *round) lossesOfLocked(held *right) uint64 {
	if !held.single {
		return 0
	}
	return r.config.Revocation.NodeChanges(held.attributes.User)
}

// check authenticates c and authorizes its watches again, where the outcome may have changed.
// It asks this process alone, and hands questions for providers and webhooks to their pools.
func (r *round) check(ctx context.Context, c *credential) {
	r.identify(ctx, c)
	for _, about := range r.questions(c) {
		v := r.byLocal.may(ctx, about, r.now)
		if v != remote {
			r.decide(about, v)
			continue
		}
		r.permissions.add(r.ctx, func(ctx context.Context) { r.decide(about, r.byRemote.may(ctx, about, r.now)) })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.busy = false
}

// identify authenticates c again, if that is due.
func (r *round) identify(ctx context.Context, c *credential) {
	r.mu.Lock()
	due := r.dueCredentialLocked(c)
	c.asking = c.asking || due
	r.mu.Unlock()
	if !due {
		return
	}
	if c.ties.Ends && r.expired(c) {
		r.learn(c, nil, nil, time.Time{}, denied)
		return
	}
	revisions, ends := r.bound(c)
	who, v := r.byLocal.identify(ctx, c)
	switch {
	case v == allowed:
		c.local = true
	case v == remote && c.local: // this process accepted it before, and does no longer
		v = denied
	case v == remote:
		r.identities.add(r.ctx, func(ctx context.Context) {
			who, v := r.byRemote.identify(ctx, c)
			r.learn(c, who, revisions, ends, v)
		})
		return
	}
	r.learn(c, who, revisions, ends, v)
}

// learn records the outcome of authenticating c. revisions and ends are the results of bound before that.
func (r *round) learn(c *credential, who user.Info, revisions []int64, ends time.Time, v verdict) {
	var lost []*right
	r.mu.Lock()
	c.asking = false
	switch v {
	case denied:
		lost = slices.Collect(maps.Values(c.rights))
	case allowed:
		c.asked, c.generation, c.revisions, c.ends, c.next = true, r.counters.generation, revisions, ends, r.now.Add(remoteInterval)
		if c.who.GetName() != who.GetName() || c.who.GetUID() != who.GetUID() || !slices.Equal(c.who.GetGroups(), who.GetGroups()) ||
			!reflect.DeepEqual(c.who.GetExtra(), who.GetExtra()) {
			c.changeUserLocked(who)
		}
	default:
		c.retry = r.now.Add(retryInterval)
	}
	r.mu.Unlock()
	for _, held := range lost {
		r.lose(held, lostCredential)
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

// questions returns the questions that are due about the rights of c. decide handles the verdicts.
func (r *round) questions(c *credential) (list []*question) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.impersonates && !c.asked {
		return nil // c.who is still the impersonated user: the requester must be authenticated first
	}
	for _, held := range c.rights {
		if r.dueRightLocked(held) {
			held.asking = true
			list = append(list, &question{held, c.who, held.attributes, r.lossesOfLocked(held)})
		}
	}
	return list
}

// decide records whether watches are still allowed.
func (r *round) decide(about *question, v verdict) {
	held := about.held
	r.mu.Lock()
	held.asking = false
	current := about.who == held.of.who // otherwise the question was about another user
	switch {
	case !current || v == denied:
	case v == allowed:
		held.asked, held.all, held.losses, held.next = true, r.counters.all, about.losses, r.now.Add(remoteInterval)
	default:
		held.retry = r.now.Add(retryInterval)
	}
	r.mu.Unlock()
	if current && v == denied {
		r.lose(held, lostPermission)
	}
}

// lose removes held and marks it as lost. Run then ends its watches.
func (r *round) lose(held *right, what string) {
	r.mu.Lock()
	r.dropLocked(held)
	who := held.of.who
	r.mu.Unlock()
	held.lost.Store(&what)
	r.config.Streams.Revoke()
	asked := &held.attributes
	klog.V(2).InfoS("Ended watches whose users lost access", "user", who.GetName(), "credentialLost", what == lostCredential,
		"group", asked.APIGroup, "resource", asked.Resource, "namespace", asked.Namespace)
}
