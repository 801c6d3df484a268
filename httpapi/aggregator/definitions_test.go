package aggregator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// syncedVersions records the versions it receives, by name.
type syncedVersions map[string]apiregistrationv1.APIServiceSpec

func (v syncedVersions) AddAPIServiceToSyncOnStart(s *apiregistrationv1.APIService) {
	v[s.Name] = s.Spec
}
func (v syncedVersions) AddAPIServiceToSync(s *apiregistrationv1.APIService) { v[s.Name] = s.Spec }
func (v syncedVersions) RemoveAPIServiceToSync(name string)                  { delete(v, name) }

// countingIndexer counts how many objects and keys are read of an index.
type countingIndexer struct {
	cache.Indexer
	count int
}

func (c *countingIndexer) IndexKeys(name, value string) ([]string, error) {
	keys, err := c.Indexer.IndexKeys(name, value)
	c.count += len(keys)
	return keys, err
}

func (c *countingIndexer) List() []any {
	list := c.Indexer.List()
	c.count += len(list)
	return list
}

// crdOf makes a CRD whose versions are served or not.
func crdOf(name, group string, versions map[string]bool) *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name + "." + group}}
	d.Spec.Group = group
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: v, Served: versions[v]})
	}
	return d
}

// TestServedVersionsOfCRDsAreSynced checks that while CRDs are created, changed and deleted, exactly the versions
// that some CRD serves have an APIService, with upstream's priorities.
func TestServedVersionsOfCRDsAreSynced(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	to := make(syncedVersions)
	d := &crdVersions{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byServed: servedVersions}), to: to}
	known := make(map[string]*apiextensionsv1.CustomResourceDefinition)
	removed := false
	for range 500 {
		group := fmt.Sprintf("g%d.io", random.IntN(2))
		next := crdOf(fmt.Sprintf("kinds%d", random.IntN(3)), group, map[string]bool{
			"v1": random.IntN(2) == 0, fmt.Sprintf("v%d", 2+random.IntN(2)): random.IntN(2) == 0,
		})
		old := known[next.Name]
		before := len(to)
		switch {
		case old != nil && random.IntN(3) == 0:
			must(t, d.indexer.Delete(old))
			delete(known, next.Name)
			gone := any(old)
			if random.IntN(2) == 0 {
				gone = cache.DeletedFinalStateUnknown{Key: old.Name, Obj: old}
			}
			d.handlers().OnDelete(gone)
		case old != nil:
			must(t, d.indexer.Update(next))
			known[next.Name] = next
			d.handlers().OnUpdate(old, next)
		default:
			must(t, d.indexer.Add(next))
			known[next.Name] = next
			d.handlers().OnAdd(next, false)
		}
		want := make(syncedVersions)
		for _, k := range known {
			for _, v := range k.Spec.Versions {
				if v.Served {
					want[v.Name+"."+k.Spec.Group] = apiregistrationv1.APIServiceSpec{Group: k.Spec.Group, Version: v.Name, GroupPriorityMinimum: 1000, VersionPriority: 100}
				}
			}
		}
		if !reflect.DeepEqual(to, want) {
			t.Fatalf("synced versions %v, want %v", to, want)
		}
		removed = removed || len(want) < before
	}
	if !removed {
		t.Error("no version was ever removed")
	}
}

// TestCostOfACRDChangeIsConstant checks that the cost of a CRD's change does not grow with the number of groups.
func TestCostOfACRDChangeIsConstant(t *testing.T) {
	read := func(groups int) int {
		l := &countingIndexer{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byServed: servedVersions})}
		d := &crdVersions{indexer: l, to: make(syncedVersions)}
		for i := range groups {
			one := crdOf("kinds", fmt.Sprintf("g%d.io", i), map[string]bool{"v1": true})
			must(t, l.Add(one))
			d.changed(one)
		}
		return l.count
	}
	if few, many := read(300), read(3000); few == 0 || many != 10*few {
		t.Errorf("%d index entries are read for 300 CRDs, %d for 3,000; want ten times as many", few, many)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
