package auth

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const (
	// rememberedDecisions is the number of slots, a power of two.
	rememberedDecisions = 1 << 12
	// rememberedSize limits the bytes of the key of a slot.
	rememberedSize = 1 << 10
)

// decisions caches RBAC's decisions. For each request RBAC searches all bindings, which costs more
// than the rest of a GET (B10).
//
// A decision is discarded as soon as RBAC could decide otherwise. The stores that RBAC reads count
// a change while they are locked for it, and the count is read before RBAC is asked.
//
// A lookup takes no lock. The hash of a key determines its slot; a decision overwrites the one
// before.
type decisions struct {
	next    authorizer.Authorizer
	changes atomic.Uint64 // of the objects that next reads
	allowed atomic.Int64  // decisions to allow that were found in a slot
	seed    maphash.Seed
	// anyName is a random name that no rule has: a request that is allowed for it is allowed for
	// objects of any name.
	anyName string
	slots   [rememberedDecisions]atomic.Pointer[decided]
}

// decided is one decision. It is immutable.
type decided struct {
	requestKey
	changes  uint64
	decision authorizer.Decision
	reason   string
	err      error
}

// requestKey is the part of a request that RBAC looks at.
type requestKey struct {
	isResource                              bool
	user, verb                              string
	namespace, group, resource, subresource string
	name                                    string
	path                                    string
	groups                                  []string
}

// newDecisions caches what next decides by the objects of the informers, which must not have
// been started.
func newDecisions(next authorizer.Authorizer, factory informers.SharedInformerFactory) (*decisions, error) {
	d := &decisions{next: next, seed: maphash.MakeSeed(), anyName: string(uuid.NewUUID())}
	rbac := factory.Rbac().V1()
	for _, informer := range []cache.SharedIndexInformer{
		rbac.Roles().Informer(), rbac.RoleBindings().Informer(),
		rbac.ClusterRoles().Informer(), rbac.ClusterRoleBindings().Informer(),
	} {
		if err := d.follow(informer); err != nil {
			return nil, fmt.Errorf("auth: follow RBAC objects: %w", err)
		}
	}
	return d, nil
}

// follow counts the changes of a store. A store calls its index functions for each object
// that it adds or removes, while it holds the lock that readers need. It does not call them for
// objects that a relist removes; the event handler counts those.
func (d *decisions) follow(informer cache.SharedIndexInformer) error {
	count := func(any) ([]string, error) {
		d.changes.Add(1)
		return nil, nil
	}
	// The name of the index is unique, because another Auth may use the same informers.
	if err := informer.AddIndexers(cache.Indexers{"changes for " + d.anyName: count}); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { d.changes.Add(1) },
	})
	return err
}

// Authorize implements authorizer.Authorizer.
func (d *decisions) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	q, ok := requestKeyOf(a)
	if !ok {
		return d.next.Authorize(ctx, a)
	}
	changes := d.changes.Load() // before RBAC reads what changes
	name := q.name
	if q.isResource && name != "" {
		q.name = d.anyName
		if known := d.ask(ctx, renamed{a, d.anyName}, &q, changes); known.decision == authorizer.DecisionAllow {
			return known.decision, known.reason, known.err
		}
		q.name = name
	}
	known := d.ask(ctx, a, &q, changes)
	return known.decision, known.reason, known.err
}

// ask returns the cached decision, or decides.
func (d *decisions) ask(ctx context.Context, a authorizer.Attributes, q *requestKey, changes uint64) *decided {
	known := d.known(q, changes)
	if known == nil {
		return d.decide(ctx, a, q, changes)
	}
	if known.decision == authorizer.DecisionAllow {
		d.allowed.Add(1)
	}
	return known
}

// addTo adds the decisions that the cache has answered to upstream's metric, which counts those that RBAC
// has made. The metric counts only decisions to allow or to deny, and RBAC never denies.
func (d *decisions) addTo(families []*dto.MetricFamily) {
	for _, family := range families {
		if family.GetName() != "apiserver_authorization_decisions_total" {
			continue
		}
		for _, sample := range family.GetMetric() {
			labels := make(map[string]string)
			for _, l := range sample.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["type"] == ModeRBAC && labels["decision"] == "allowed" {
				value := sample.GetCounter().GetValue() + float64(d.allowed.Load())
				sample.Counter.Value = &value
			}
		}
	}
}

// renamed is a request for an object of another name.
type renamed struct {
	authorizer.Attributes
	name string
}

// GetName returns the other name.
func (n renamed) GetName() string { return n.name }

// known returns the decision for q that was cached at this number of changes, nil if there is none.
func (d *decisions) known(q *requestKey, changes uint64) *decided {
	if known := d.slot(q).Load(); known != nil && known.changes == changes && known.equal(q) {
		return known
	}
	return nil
}

func (d *decisions) slot(q *requestKey) *atomic.Pointer[decided] {
	return &d.slots[q.hash(d.seed)%rememberedDecisions]
}

// decide asks RBAC and caches the decision.
func (d *decisions) decide(ctx context.Context, a authorizer.Attributes, q *requestKey, changes uint64) *decided {
	made := &decided{changes: changes}
	made.decision, made.reason, made.err = d.next.Authorize(ctx, a)
	if q.size() <= rememberedSize {
		made.requestKey = q.clone()
		d.slot(q).Store(made)
	}
	return made
}

// requestKeyOf returns the key of a request, if it has a user.
func requestKeyOf(a authorizer.Attributes) (requestKey, bool) {
	u := a.GetUser()
	if u == nil {
		return requestKey{}, false
	}
	q := requestKey{
		isResource: a.IsResourceRequest(), user: u.GetName(), groups: u.GetGroups(),
		verb: a.GetVerb(), namespace: a.GetNamespace(),
	}
	if q.isResource {
		q.group, q.resource, q.subresource, q.name = a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), a.GetName()
	} else {
		q.path = a.GetPath()
	}
	return q, true
}

func (q *requestKey) hash(seed maphash.Seed) uint64 {
	const odd = 0x9e3779b97f4a7c15
	var h uint64
	for _, s := range [...]string{q.user, q.verb, q.namespace, q.group, q.resource, q.subresource, q.name, q.path} {
		h = (h ^ maphash.String(seed, s)) * odd
	}
	for _, s := range q.groups {
		h = (h ^ maphash.String(seed, s)) * odd
	}
	return h >> 32
}

func (q *requestKey) equal(other *requestKey) bool {
	return q.isResource == other.isResource && q.user == other.user && q.verb == other.verb &&
		q.namespace == other.namespace && q.group == other.group && q.resource == other.resource &&
		q.subresource == other.subresource && q.name == other.name && q.path == other.path && slices.Equal(q.groups, other.groups)
}

func (q *requestKey) size() int {
	n := len(q.user) + len(q.verb) + len(q.namespace) + len(q.group) + len(q.resource) + len(q.subresource) + len(q.name) + len(q.path)
	for _, s := range q.groups {
		n += len(s)
	}
	return n
}

// clone returns q with copies of its strings, which may be parts of a larger buffer.
func (q *requestKey) clone() requestKey {
	c := *q
	for _, s := range []*string{&c.user, &c.verb, &c.namespace, &c.group, &c.resource, &c.subresource, &c.name, &c.path} {
		*s = strings.Clone(*s)
	}
	c.groups = slices.Clone(q.groups)
	for i, s := range c.groups {
		c.groups[i] = strings.Clone(s)
	}
	return c
}
