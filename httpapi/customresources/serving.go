package customresources

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// errRetired says that a CRD has changed, and that another serving has replaced this one.
var errRetired = errors.New("customresources: the CRD has changed")

// allCreates is the size of serving.creates. A request that may create objects holds one unit. Acquiring all units
// waits for the requests that began before.
const allCreates = math.MaxInt64

// serving serves one CRD with one UID, specification and set of accepted names.
type serving struct {
	extensions *Extensions
	// state differs between any two servings. Upstream compares UID and generation of a CRD
	// (apiextensions-apiserver pkg/controller/openapi/controller.go). But a reset or a restored etcd
	// can set the generation back.
	state   string
	crd     atomic.Pointer[apiextensionsv1.CustomResourceDefinition] // its newest state
	creates *semaphore.Weighted                                      // shared with the servings that it replaced: see allCreates

	once    sync.Once
	backend *backend // made in once
	err     error
}

// newServing returns the serving of a CRD. It replaces old, which may be nil.
func newServing(e *Extensions, crd *apiextensionsv1.CustomResourceDefinition, old *serving) *serving {
	s := &serving{extensions: e, state: strconv.FormatUint(e.made.Add(1), 10), creates: semaphore.NewWeighted(allCreates)}
	if old != nil {
		s.creates = old.creates
	}
	s.crd.Store(crd)
	return s
}

// covers reports whether s can serve crd, a possibly newer state of its own CRD. A backend depends only
// on the fields that covers compares.
func (s *serving) covers(crd *apiextensionsv1.CustomResourceDefinition) bool {
	own := s.crd.Load()
	return own.UID == crd.UID &&
		equality.Semantic.DeepEqual(own.Status.AcceptedNames, crd.Status.AcceptedNames) && // differs most often, and is small
		equality.Semantic.DeepEqual(own.Spec, crd.Spec)
}

// offers reports whether version is served.
func (s *serving) offers(version string) bool {
	crd := s.crd.Load()
	return apihelpers.HasServedCRDVersion(crd, version) &&
		(apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) ||
			apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established))
}

// revision returns the revision of the CRD's newest state.
func (s *serving) revision() int64 { return revisionOf(s.crd.Load()) }

func revisionOf(crd *apiextensionsv1.CustomResourceDefinition) int64 {
	n, _ := strconv.ParseInt(crd.ResourceVersion, 10, 64) // 0 if there is none
	return n
}

// get returns the backend. The first call builds it. get fails once building the storages has failed.
func (s *serving) get() (*backend, error) {
	s.once.Do(func() { s.backend, s.err = s.build() })
	if s.err != nil {
		return nil, s.err
	}
	if err := s.backend.failed.Load(); err != nil {
		return nil, *err
	}
	return s.backend, nil
}

// retire ends the backend once the requests in flight have ended.
func (s *serving) retire() {
	s.once.Do(func() { s.err = errRetired })
	if s.backend != nil {
		s.backend.retire()
	}
}

// crdOf returns the CRD with which an informer called a handler.
func crdOf(obj any) *apiextensionsv1.CustomResourceDefinition {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		panic(fmt.Sprintf("customresources: informer of CRDs gave %T", obj))
	}
	return crd
}

func resourceOf(crd *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	return schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
}

// changed handles a created or updated CRD.
func (e *Extensions) changed(crd *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) &&
		apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted) {
		var delay time.Duration
		if e.config.Servers > 1 { // apiextensions-apiserver pkg/apiserver/customresource_handler.go
			delay = 5 * time.Second
		}
		e.establish.QueueCRD(crd.Name, delay)
	}
	gr := resourceOf(crd)
	old := e.servings.Load().of(gr)
	if old != nil && old.covers(crd) {
		old.crd.Store(crd)
		e.publish(gr, old, old)
		return
	}
	e.publish(gr, old, newServing(e, crd, old))
}

// deleted handles a deleted CRD.
func (e *Extensions) deleted(crd *apiextensionsv1.CustomResourceDefinition) {
	gr := resourceOf(crd)
	old := e.servings.Load().of(gr)
	if old == nil || old.crd.Load().UID != crd.UID {
		return
	}
	e.publish(gr, old, nil)
}

// publish makes next the serving of gr in place of old; nil means that there is none. It updates discovery, wakes the
// requests that wait for a change of gr, and retires old if it was replaced. The informer calls its handlers one after
// the other, and only they call publish.
func (e *Extensions) publish(gr schema.GroupResource, old, next *serving) {
	if next != old {
		index := e.servings.Load().with(gr, next)
		e.servings.Store(&index)
	}
	var members []*apiextensionsv1.CustomResourceDefinition
	for _, s := range (*e.servings.Load())[gr.Group] {
		members = append(members, s.crd.Load())
	}
	e.published.Add(1)
	e.discovery.update(gr.Group, members)
	e.changes.notify()
	if old != nil && next != old && !e.begin(func(context.Context) { old.retire() }) {
		old.retire() // Run does not run, and so there is no backend to wait for
	}
}

// index holds the servings by group and resource. It is immutable. Copies share the groups that are the
// same, because there may be thousands of CRDs.
type index map[string]map[string]*serving

// of returns the serving of a resource, nil if there is none.
func (i index) of(gr schema.GroupResource) *serving { return i[gr.Group][gr.Resource] }

// established yields the servings of established CRDs, and their CRDs.
func (i index) established() iter.Seq2[*serving, *apiextensionsv1.CustomResourceDefinition] {
	return func(yield func(*serving, *apiextensionsv1.CustomResourceDefinition) bool) {
		for _, group := range i {
			for _, s := range group {
				if crd := s.crd.Load(); apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) && !yield(s, crd) {
					return
				}
			}
		}
	}
}

// with returns a copy of i with s in the place of gr; nil removes the entry.
func (i index) with(gr schema.GroupResource, s *serving) index {
	next, group := maps.Clone(i), maps.Clone(i[gr.Group])
	if group == nil {
		group = make(map[string]*serving)
	}
	if group[gr.Resource] = s; s == nil {
		delete(group, gr.Resource)
	}
	if next == nil {
		next = make(index)
	}
	if next[gr.Group] = group; len(group) == 0 {
		delete(next, gr.Group)
	}
	return next
}

// changeSignal wakes the goroutines that wait for a change.
type changeSignal struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change
}

// notify wakes all goroutines that wait.
func (c *changeSignal) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// until blocks until done, which is called after each change, returns true, or ctx ends. It
// reports whether done returned true.
func (c *changeSignal) until(ctx context.Context, done func() bool) bool {
	for {
		c.mu.Lock()
		if c.next == nil {
			c.next = make(chan struct{})
		}
		changed := c.next
		c.mu.Unlock()
		if done() {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Serves reports whether requests are served by the CRD of that name as of revision, or of a later write. deleted says
// that it was deleted at revision.
func (e *Extensions) Serves(name string, revision int64, deleted bool) bool {
	plural, groupName, _ := strings.Cut(name, ".")
	switch s := e.servings.Load().of(schema.GroupResource{Group: groupName, Resource: plural}); {
	case s != nil && deleted:
		return s.revision() > revision
	case s != nil:
		return s.revision() >= revision
	default:
		return e.lacks(name, revision, deleted)
	}
}

// lacks reports whether the informer's store has reached revision, and has no CRD of that name. A store that does not tell
// its revision counts as one that has reached the revision of a deletion.
func (e *Extensions) lacks(name string, revision int64, deleted bool) bool {
	informer := e.CRDs()
	last := informer.Informer().GetStore().LastStoreSyncResourceVersion()
	if last == "" { // before the first list, or without client-go's gate AtomicFIFO
		return deleted
	}
	if seen, err := strconv.ParseInt(last, 10, 64); err != nil || seen < revision {
		return false
	}
	_, err := informer.Lister().Get(name)
	return apierrors.IsNotFound(err)
}
