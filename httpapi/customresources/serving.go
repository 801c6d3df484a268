package customresources

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// errRetired says that a definition has changed, and that the map of servings has what
// serves it now.
var errRetired = errors.New("extension: definition has changed")

// serving is how one definition, by its UID, specification and accepted names, is
// served.
type serving struct {
	extensions *Extensions
	// state differs between any two servings, and so between any two states of a definition that
	// are described differently. Upstream takes the UID and the generation for that
	// (apiextensions-apiserver pkg/controller/openapi/controller.go), which two states may share
	// where the generation goes back: by a reset, or in a restored etcd.
	state      string
	definition atomic.Pointer[apiextensionsv1.CustomResourceDefinition] // its newest state
	creates    *underway                                                // also of the servings that it replaced

	once       sync.Once
	generation *generation // made when first asked for, in once
	err        error
}

// newServing returns the serving of a definition. It replaces old, if that is not nil.
func newServing(e *Extensions, definition *apiextensionsv1.CustomResourceDefinition, old *serving) *serving {
	s := &serving{extensions: e, state: strconv.FormatUint(e.made.Add(1), 10), creates: new(underway)}
	if old != nil {
		s.creates = old.creates
	}
	s.update(definition)
	return s
}

// update sets a newer state of the same definition.
func (s *serving) update(definition *apiextensionsv1.CustomResourceDefinition) {
	if s.extensions.config.Alone {
		definition = longEstablished(definition)
	}
	s.definition.Store(definition)
}

// longEstablished returns a copy of definition that looks established long ago. Upstream's
// handler delays creates while a definition is new, until other servers have seen it.
func longEstablished(definition *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	out := *definition
	out.Status.Conditions = append([]apiextensionsv1.CustomResourceDefinitionCondition(nil), definition.Status.Conditions...)
	for i := range out.Status.Conditions {
		if out.Status.Conditions[i].Type == apiextensionsv1.Established {
			out.Status.Conditions[i].LastTransitionTime = metav1.Time{}
		}
	}
	return &out
}

// covers reports whether s can go on serving definition, which may be a newer state of its
// own: a generation depends on nothing else.
func (s *serving) covers(definition *apiextensionsv1.CustomResourceDefinition) bool {
	own := s.definition.Load()
	return own.UID == definition.UID &&
		equality.Semantic.DeepEqual(own.Status.AcceptedNames, definition.Status.AcceptedNames) && // differs most often, and is small
		equality.Semantic.DeepEqual(own.Spec, definition.Spec)
}

// offers reports whether version is served.
func (s *serving) offers(version string) bool {
	definition := s.definition.Load()
	return apihelpers.HasServedCRDVersion(definition, version) &&
		(apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.NamesAccepted) ||
			apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established))
}

// revision returns the revision of the definition's newest state.
func (s *serving) revision() int64 { return revisionOf(s.definition.Load()) }

func revisionOf(definition *apiextensionsv1.CustomResourceDefinition) int64 {
	n, err := strconv.ParseInt(definition.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// get returns the generation. The first call builds it. It fails if the storages could
// not be built, be that found out later.
func (s *serving) get() (*generation, error) {
	s.once.Do(func() { s.generation, s.err = s.build() })
	if s.err != nil {
		return nil, s.err
	}
	if err := s.generation.failed.Load(); err != nil {
		return nil, *err
	}
	return s.generation, nil
}

// retire ends the generation once the requests that have begun are answered.
func (s *serving) retire() {
	s.once.Do(func() { s.err = errRetired })
	if s.generation != nil {
		s.generation.retire()
	}
}

// definitionOf returns the definition that an informer's handler was called with.
func definitionOf(obj any) *apiextensionsv1.CustomResourceDefinition {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		panic(fmt.Sprintf("extension: informer of definitions gave %T", obj))
	}
	return definition
}

func resourceOf(definition *apiextensionsv1.CustomResourceDefinition) schema.GroupResource {
	return schema.GroupResource{Group: definition.Spec.Group, Resource: definition.Spec.Names.Plural}
}

// changed handles a definition that was created or updated.
func (e *Extensions) changed(definition *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established) &&
		apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.NamesAccepted) {
		var delay time.Duration
		if e.config.Servers > 1 { // apiextensions-apiserver pkg/apiserver/customresource_handler.go
			delay = 5 * time.Second
		}
		e.establish.QueueCRD(definition.Name, delay)
	}
	gr := resourceOf(definition)
	old := e.servings.Load().of(gr)
	if old != nil && old.covers(definition) {
		old.update(definition)
	} else {
		e.replace(gr, newServing(e, definition, old))
	}
	e.publish(gr, old)
}

// deleted handles a definition that was deleted.
func (e *Extensions) deleted(definition *apiextensionsv1.CustomResourceDefinition) {
	gr := resourceOf(definition)
	old := e.servings.Load().of(gr)
	if old == nil || old.definition.Load().UID != definition.UID {
		return
	}
	e.replace(gr, nil)
	e.publish(gr, old)
}

// replace makes s the serving of gr; nil removes it. Only the informer's handlers call it,
// one after the other.
func (e *Extensions) replace(gr schema.GroupResource, s *serving) {
	next := e.servings.Load().with(gr, s)
	e.servings.Store(&next)
}

// publish tells discovery, and requests that wait, that gr has changed, and retires old, its
// serving until then, if it was replaced.
func (e *Extensions) publish(gr schema.GroupResource, old *serving) {
	var members []*apiextensionsv1.CustomResourceDefinition
	for _, s := range (*e.servings.Load())[gr.Group] {
		members = append(members, s.definition.Load())
	}
	e.published.Add(1)
	e.discovery.update(gr.Group, members)
	e.changes.notify()
	replaced := old != nil && e.servings.Load().of(gr) != old
	if replaced && !e.begin(func(context.Context) { old.retire() }) {
		old.retire() // nothing is served: it was never built
	}
}
