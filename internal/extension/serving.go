package extension

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// errRetired says that a definition has changed, and that the map of servings says what
// it is now.
var errRetired = errors.New("extension: definition has changed")

// serving is how one definition, by its UID, specification and accepted names, is
// served.
type serving struct {
	extensions *Extensions
	definition atomic.Pointer[apiextensionsv1.CustomResourceDefinition] // its newest state

	once       sync.Once
	generation *generation // made when first asked for, in once
	err        error
}

func newServing(e *Extensions, definition *apiextensionsv1.CustomResourceDefinition) *serving {
	s := &serving{extensions: e}
	s.update(definition)
	return s
}

// update takes in a newer state of the same definition.
func (s *serving) update(definition *apiextensionsv1.CustomResourceDefinition) {
	if s.extensions.config.Alone {
		definition = longEstablished(definition)
	}
	s.definition.Store(definition)
}

// longEstablished returns definition as if it were established long ago. Upstream has
// creates wait while it is new, for servers that have not heard of it.
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

// covers reports whether definition is served in the same way.
func (s *serving) covers(definition *apiextensionsv1.CustomResourceDefinition) bool {
	own := s.definition.Load()
	return own.UID == definition.UID && equality.Semantic.DeepEqual(own.Spec, definition.Spec) &&
		equality.Semantic.DeepEqual(own.Status.AcceptedNames, definition.Status.AcceptedNames)
}

// offers reports whether version is served.
func (s *serving) offers(version string) bool {
	definition := s.definition.Load()
	return apihelpers.HasServedCRDVersion(definition, version) &&
		(apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.NamesAccepted) ||
			apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established))
}

// revision is that of the definition's newest state.
func (s *serving) revision() int64 {
	n, err := strconv.ParseInt(s.definition.Load().ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// get returns what serves the definition. The first call makes it.
func (s *serving) get() (*generation, error) {
	s.once.Do(func() { s.generation, s.err = s.build() })
	return s.generation, s.err
}

// retire ends what serves the definition, after the requests that have begun.
func (s *serving) retire() {
	s.once.Do(func() { s.err = errRetired })
	if s.generation != nil {
		s.generation.retire()
	}
}

// definitionOf takes a definition out of what an informer gives.
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

// changed takes in a definition that is new or was updated.
func (e *Extensions) changed(definition *apiextensionsv1.CustomResourceDefinition) {
	if !apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.Established) &&
		apihelpers.IsCRDConditionTrue(definition, apiextensionsv1.NamesAccepted) {
		e.establish.QueueCRD(definition.Name, 0)
	}
	if e.builtIn.Has(definition.Spec.Group) {
		return // upstream's router takes its requests before anybody asks for definitions
	}
	gr := resourceOf(definition)
	old := (*e.servings.Load())[gr]
	if old != nil && old.covers(definition) {
		old.update(definition)
	} else {
		e.replace(gr, newServing(e, definition))
	}
	e.settle(definition.Spec.Group, old)
}

// deleted takes in that a definition is gone.
func (e *Extensions) deleted(definition *apiextensionsv1.CustomResourceDefinition) {
	gr := resourceOf(definition)
	old := (*e.servings.Load())[gr]
	if old == nil || old.definition.Load().UID != definition.UID {
		return
	}
	e.replace(gr, nil)
	e.settle(definition.Spec.Group, old)
}

// replace puts s in place of what serves gr; nil is nothing. The informer alone calls
// it, one call after the other.
func (e *Extensions) replace(gr schema.GroupResource, s *serving) {
	next := make(map[schema.GroupResource]*serving, len(*e.servings.Load())+1)
	for key, value := range *e.servings.Load() {
		next[key] = value
	}
	if next[gr] = s; s == nil {
		delete(next, gr)
	}
	e.servings.Store(&next)
}

// settle tells discovery and those who wait that a group has changed, and retires what
// served before, if something else does now.
func (e *Extensions) settle(group string, old *serving) {
	var members []*apiextensionsv1.CustomResourceDefinition
	replaced := old != nil
	for gr, s := range *e.servings.Load() {
		if gr.Group == group {
			members = append(members, s.definition.Load())
		}
		replaced = replaced && s != old
	}
	e.discovery.update(group, members)
	e.news.tell()
	if replaced && !e.begin(func(context.Context) { old.retire() }) {
		old.retire() // nothing is served: it was never built
	}
}
