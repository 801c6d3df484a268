package registry

import (
	"maps"
	"slices"
	"strings"

	apistorage "k8s.io/apiserver/pkg/storage"
	clientcache "k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/cache"
)

// indexesOf turns the triggers and indexers that upstream declares into indexes.
// Upstream's indexers are named "f:" and "l:" for fields and labels (apiserver
// pkg/storage/selection_predicate.go). Namespaces are ranges of keys and need none.
func indexesOf(triggers apistorage.IndexerFuncs, indexers *clientcache.Indexers, labels []string) []cache.Index {
	set := make(map[cache.Index]bool)
	for field := range triggers {
		set[cache.Index{Field: field}] = true
	}
	if indexers != nil {
		for name := range *indexers {
			if field, ok := strings.CutPrefix(name, "f:"); ok {
				set[cache.Index{Field: field}] = true
			} else if label, ok := strings.CutPrefix(name, "l:"); ok {
				set[cache.Index{Label: label}] = true
			}
		}
	}
	for _, label := range labels {
		set[cache.Index{Label: label}] = true
	}
	delete(set, cache.Index{Field: "metadata.namespace"})
	delete(set, cache.Index{Field: "metadata.name"})
	return slices.SortedFunc(maps.Keys(set), func(a, b cache.Index) int {
		return strings.Compare(a.Name(), b.Name())
	})
}
