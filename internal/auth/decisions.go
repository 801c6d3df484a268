package auth

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/flow"
)

const (
	// decisionSlots is the number of slots, a power of two.
	decisionSlots = 1 << 12
	// rememberedSize limits the bytes of the key of a slot.
	rememberedSize = 1 << 10
)

// decisions caches RBAC's decisions. For each request RBAC searches all bindings, which costs more
// than the rest of a GET (B10).
//
// A decision is discarded after any change of the stores that RBAC reads. Each change is counted while the store is
// locked, and a lookup reads the count before RBAC reads the stores.
//
// A lookup takes no lock. The hash of a key determines its slot; a new decision overwrites the old one.
type decisions struct {
	next    authorizer.Authorizer
	changes atomic.Uint64 // of the objects that next reads
	seed    maphash.Seed
	// anyName is a random name that no rule has: a request that is allowed for it is allowed for
	// objects of any name.
	anyName string
	slots   [decisionSlots]atomic.Pointer[decided]
}

// decided is one decision. It is immutable.
type decided struct {
	key      string // of the request, by flow.AppendKey
	changes  uint64
	decision authorizer.Decision
	reason   string
	err      error
}

// newDecisions returns a cache of the decisions of next, which reads the informers' objects. The informers must
// not have been started.
func newDecisions(next authorizer.Authorizer, factory informers.SharedInformerFactory) (*decisions, error) {
	d := &decisions{next: next, seed: maphash.MakeSeed(), anyName: string(uuid.NewUUID())}
	for _, informer := range rbacInformers(factory) {
		if err := d.follow(informer); err != nil {
			return nil, fmt.Errorf("auth: follow RBAC objects: %w", err)
		}
	}
	return d, nil
}

// rbacInformers returns the informers of the objects that RBAC reads.
func rbacInformers(factory informers.SharedInformerFactory) []cache.SharedIndexInformer {
	rbac := factory.Rbac().V1()
	return []cache.SharedIndexInformer{
		rbac.Roles().Informer(), rbac.RoleBindings().Informer(), rbac.ClusterRoles().Informer(), rbac.ClusterRoleBindings().Informer(),
	}
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
	if a.GetUser() == nil {
		return d.next.Authorize(ctx, a)
	}
	changes := d.changes.Load() // before RBAC reads the stores
	if a.IsResourceRequest() && a.GetName() != "" {
		if known := d.decide(ctx, renamed{a, d.anyName}, changes); known.decision == authorizer.DecisionAllow {
			return known.decision, known.reason, known.err
		}
	}
	known := d.decide(ctx, a, changes)
	return known.decision, known.reason, known.err
}

// decide returns the decision that was cached at this number of changes. If there is none, it calls RBAC and caches the
// decision.
func (d *decisions) decide(ctx context.Context, a authorizer.Attributes, changes uint64) *decided {
	var room [flow.KeyRoom]byte
	key := flow.AppendKey(room[:0], a, a.GetName())
	slot := &d.slots[maphash.Bytes(d.seed, key)%decisionSlots]
	if known := slot.Load(); known != nil && known.changes == changes && known.key == string(key) {
		return known
	}
	made := &decided{changes: changes}
	made.decision, made.reason, made.err = d.next.Authorize(ctx, a)
	if len(key) <= rememberedSize {
		made.key = string(key)
		slot.Store(made)
	}
	return made
}

// renamed is a request for an object of another name.
type renamed struct {
	authorizer.Attributes
	name string
}

// GetName returns the other name.
func (r renamed) GetName() string { return r.name }
