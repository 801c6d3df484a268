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
	// rememberedDecisions bounds the memory of decisions, a power of two.
	rememberedDecisions = 1 << 12
	// rememberedSize bounds what one of them may hold of its request.
	rememberedSize = 1 << 10
)

// decisions remembers what RBAC decided. RBAC looks through all bindings for each
// request, which costs more than the rest of a GET (B10).
//
// A decision is forgotten the moment RBAC could decide otherwise: the stores that it
// reads count their changes while they are still locked for them, and the count is
// read before RBAC is asked.
//
// Looking up takes no lock. A decision has one place; another that falls on it takes
// its place.
type decisions struct {
	next    authorizer.Authorizer
	changes atomic.Uint64 // of the objects that next reads
	allowed atomic.Int64  // decisions that were remembered
	seed    maphash.Seed
	// stranger is a random name, which no rule names: what may be done to it may be done
	// to an object of any name.
	stranger string
	places   [rememberedDecisions]atomic.Pointer[decided]
}

// decided is one decision. It is immutable.
type decided struct {
	question
	changes  uint64
	decision authorizer.Decision
	reason   string
	err      error
}

// question is all that RBAC looks at.
type question struct {
	resource                     bool
	user, verb                   string
	namespace, group, kind, part string
	name                         string
	path                         string
	groups                       []string
}

// newDecisions remembers what next decides from the objects of the informers, which
// have not been started.
func newDecisions(next authorizer.Authorizer, factory informers.SharedInformerFactory) (*decisions, error) {
	d := &decisions{next: next, seed: maphash.MakeSeed(), stranger: string(uuid.NewUUID())}
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

// follow counts the changes of a store. Its index functions are called with what
// comes and what goes under the lock that readers need to see it. A store that is
// emptied at once calls none: for that there is the event behind it.
func (d *decisions) follow(informer cache.SharedIndexInformer) error {
	count := func(any) ([]string, error) {
		d.changes.Add(1)
		return nil, nil
	}
	// Others that were loaded with the same informers count for themselves.
	if err := informer.AddIndexers(cache.Indexers{"changes for " + d.stranger: count}); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { d.changes.Add(1) },
	})
	return err
}

// Authorize implements authorizer.Authorizer.
func (d *decisions) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	q, ok := questionOf(a)
	if !ok {
		return d.next.Authorize(ctx, a)
	}
	changes := d.changes.Load() // before RBAC reads what changes
	name := q.name
	if q.resource && name != "" {
		q.name = d.stranger
		if known := d.ask(ctx, nameless{a, d.stranger}, &q, changes); known.decision == authorizer.DecisionAllow {
			return known.decision, known.reason, known.err
		}
		q.name = name
	}
	known := d.ask(ctx, a, &q, changes)
	return known.decision, known.reason, known.err
}

// ask returns what was decided, or decides it.
func (d *decisions) ask(ctx context.Context, a authorizer.Attributes, q *question, changes uint64) *decided {
	known := d.known(q, changes)
	if known == nil {
		return d.decide(ctx, a, q, changes)
	}
	if known.decision == authorizer.DecisionAllow {
		d.allowed.Add(1)
	}
	return known
}

// addTo adds the decisions that were remembered to upstream's metric, which counts those
// that allow or deny, and RBAC denies nothing. It has counted the first of each.
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

// nameless asks about an object of another name.
type nameless struct {
	authorizer.Attributes
	name string
}

// GetName returns the other name.
func (n nameless) GetName() string { return n.name }

// known returns what was decided after so many changes, nil if that is forgotten.
func (d *decisions) known(q *question, changes uint64) *decided {
	if known := d.place(q).Load(); known != nil && known.changes == changes && known.equal(q) {
		return known
	}
	return nil
}

func (d *decisions) place(q *question) *atomic.Pointer[decided] {
	return &d.places[q.hash(d.seed)%rememberedDecisions]
}

// decide asks RBAC and remembers.
func (d *decisions) decide(ctx context.Context, a authorizer.Attributes, q *question, changes uint64) *decided {
	made := &decided{changes: changes}
	made.decision, made.reason, made.err = d.next.Authorize(ctx, a)
	if q.size() <= rememberedSize {
		made.question = q.clone()
		d.place(q).Store(made)
	}
	return made
}

// questionOf returns what RBAC looks at, if there is a user.
func questionOf(a authorizer.Attributes) (question, bool) {
	u := a.GetUser()
	if u == nil {
		return question{}, false
	}
	q := question{
		resource: a.IsResourceRequest(), user: u.GetName(), groups: u.GetGroups(),
		verb: a.GetVerb(), namespace: a.GetNamespace(),
	}
	if q.resource {
		q.group, q.kind, q.part, q.name = a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), a.GetName()
	} else {
		q.path = a.GetPath()
	}
	return q, true
}

func (q *question) hash(seed maphash.Seed) uint64 {
	const odd = 0x9e3779b97f4a7c15
	var h uint64
	for _, s := range [...]string{q.user, q.verb, q.namespace, q.group, q.kind, q.part, q.name, q.path} {
		h = (h ^ maphash.String(seed, s)) * odd
	}
	for _, s := range q.groups {
		h = (h ^ maphash.String(seed, s)) * odd
	}
	return h >> 32
}

func (q *question) equal(other *question) bool {
	return q.resource == other.resource && q.user == other.user && q.verb == other.verb &&
		q.namespace == other.namespace && q.group == other.group && q.kind == other.kind &&
		q.part == other.part && q.name == other.name && q.path == other.path && slices.Equal(q.groups, other.groups)
}

func (q *question) size() int {
	n := len(q.user) + len(q.verb) + len(q.namespace) + len(q.group) + len(q.kind) + len(q.part) + len(q.name) + len(q.path)
	for _, s := range q.groups {
		n += len(s)
	}
	return n
}

// clone returns q without the memory that its strings are parts of.
func (q *question) clone() question {
	c := *q
	for _, s := range []*string{&c.user, &c.verb, &c.namespace, &c.group, &c.kind, &c.part, &c.name, &c.path} {
		*s = strings.Clone(*s)
	}
	c.groups = slices.Clone(q.groups)
	for i, s := range c.groups {
		c.groups[i] = strings.Clone(s)
	}
	return c
}
