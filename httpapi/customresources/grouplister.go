package customresources

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// byGroup is the index of definitions by group.
const byGroup = "group"

// groupIndexers index definitions by group.
func groupIndexers() cache.Indexers {
	return cache.Indexers{byGroup: func(obj any) ([]string, error) {
		definition, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
		if !ok {
			return nil, fmt.Errorf("extension: informer of definitions has %T", obj)
		}
		return []string{definition.Spec.Group}, nil
	}}
}

// grouped is the informer of definitions for upstream's controller of names
// (apiextensions-apiserver pkg/controller/status/naming_controller.go). That looks at one
// definition after the other on one goroutine, and for each lists all that there are, twice,
// of which it wants those of the same group. So it is given these alone: with 10,000
// definitions, listing them all was a fifth of what installing them allocates.
type grouped struct {
	informers.CustomResourceDefinitionInformer
}

// Lister implements informers.CustomResourceDefinitionInformer.
func (g grouped) Lister() listers.CustomResourceDefinitionLister {
	return &groupLister{CustomResourceDefinitionLister: g.CustomResourceDefinitionInformer.Lister(), indexer: g.Informer().GetIndexer()}
}

// groupLister lists the definitions of the group that the last one it was asked for is in. One
// goroutine uses it.
type groupLister struct {
	listers.CustomResourceDefinitionLister
	indexer cache.Indexer
	group   string // "" before one was asked for
}

// Get implements listers.CustomResourceDefinitionLister.
func (l *groupLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	_, l.group, _ = strings.Cut(name, ".") // names are PLURAL.GROUP
	return l.CustomResourceDefinitionLister.Get(name)
}

// List implements listers.CustomResourceDefinitionLister.
func (l *groupLister) List(selector labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	if l.group == "" {
		return l.CustomResourceDefinitionLister.List(selector)
	}
	objects, err := l.indexer.ByIndex(byGroup, l.group)
	if err != nil {
		return nil, fmt.Errorf("extension: %w", err)
	}
	var list []*apiextensionsv1.CustomResourceDefinition
	for _, obj := range objects {
		if definition := definitionOf(obj); selector.Matches(labels.Set(definition.Labels)) {
			list = append(list, definition)
		}
	}
	return list, nil
}
