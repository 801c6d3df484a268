package customresources_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

// lister returns upstream's lister, with which the finalizer controller lists and deletes a CRD's objects.
func (s *server) lister(t *testing.T, name string) finalizer.ListerCollectionDeleter {
	t.Helper()
	crd, err := s.extensions.CRDs().Lister().Get(name)
	must(t, err)
	lister, err := s.extensions.GetCustomResourceListerCollectionDeleter(crd)
	must(t, err)
	return lister
}

// TestRetiredGenerationsAreNeverEmpty checks that a lister or storage from before a change of the CRD returns an error
// instead of an empty list, with which the CRD could be deleted before its objects.
func TestRetiredGenerationsAreNeverEmpty(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *server){
		"changed": func(t *testing.T, s *server) { s.change(t, "shelves.example.com", describe("changed")) },
		"deleted": func(t *testing.T, s *server) {
			client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
			must(t, client.Delete(t.Context(), "shelves.example.com", deleteNow()))
			s.change(t, "shelves.example.com", func(d *apiextensionsv1.CustomResourceDefinition) { d.Finalizers = nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			// The object's finalizer keeps the object, and with it the CRD.
			s.define(t, shelves)
			s.put(t, shelfKey+"kept", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"kept","namespace":"ns","uid":"1","finalizers":["example.com/hold"]}}`)
			s.get(t, shelvesV1)
			lister := s.lister(t, "shelves.example.com")
			old := s.registry.CustomResource(shelvesResource())
			change(t, s)
			proctest.Eventually(t, "the old lister fails", func() error {
				list, err := lister.List(t.Context(), nil)
				switch {
				case err != nil:
					return nil
				case len(list.(*unstructured.UnstructuredList).Items) == 0:
					t.Fatal("the old lister returned an empty list")
				}
				return errors.New("it still lists")
			})
			if _, err := lister.DeleteCollection(request.WithNamespace(t.Context(), "ns"), nil, deleteOptions(), nil); err == nil {
				t.Error("the old lister deleted a collection")
			}
			// The storage that the lister uses fails, too.
			proctest.Eventually(t, "the cache is retired", func() error {
				if !old.Cache.Retired() {
					return errors.New("it is not")
				}
				return nil
			})
			var out unstructured.UnstructuredList
			if err := old.Storage().GetList(t.Context(), "/example.com/shelves/", everythingRecursive(), &out); !apierrors.IsGone(err) {
				t.Errorf("list: %d items, error %v, want 410", len(out.Items), err)
			}
			var one unstructured.Unstructured
			if err := old.Storage().Get(t.Context(), "/example.com/shelves/ns/kept", justGet(), &one); !apierrors.IsGone(err) {
				t.Errorf("get: error %v, want 410", err)
			}
			if _, err := old.Storage().Watch(t.Context(), "/example.com/shelves/", everythingRecursive()); !apierrors.IsGone(err) {
				t.Errorf("watch: error %v, want 410", err)
			}
			if stats, err := old.Storage().Stats(t.Context()); err != nil || stats.ObjectCount != 1 {
				t.Errorf("stats: %+v, error %v; want one object", stats, err)
			}
		})
	}
}

// describe returns a change of nothing but a description in a CRD's specification.
func describe(how string) func(*apiextensionsv1.CustomResourceDefinition) {
	return func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description = how
	}
}

// late is a source of listers that always returns a lister from before a change of the CRD.
type late struct {
	finalizer.ListerCollectionDeleter
}

// GetCustomResourceListerCollectionDeleter implements finalizer.CRClientGetter.
func (l *late) GetCustomResourceListerCollectionDeleter(*apiextensionsv1.CustomResourceDefinition) (finalizer.ListerCollectionDeleter, error) {
	return l, nil
}

// TestCRDOutlivesItsObjects deletes a CRD whose objects have finalizers, while upstream's finalizer controller uses a
// lister from before a change. The CRD must stay until its objects are gone.
func TestCRDOutlivesItsObjects(t *testing.T) {
	s := newServer(t)
	client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	s.define(t, shelves)
	const n = 1000
	many := map[string][]byte{}
	for i := range n {
		many[fmt.Sprintf("/registry/example.com/shelves/ns%d/s%d", i%3, i)] = fmt.Appendf(nil,
			`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"s%d","namespace":"ns%d","uid":"%d","finalizers":["example.com/hold"]}}`, i, i%3, i)
	}
	s.store.PutAll(many)
	s.get(t, shelvesV1)
	stale := &late{ListerCollectionDeleter: s.lister(t, "shelves.example.com")}
	old := s.registry.CustomResource(shelvesResource())
	must(t, client.Delete(t.Context(), "shelves.example.com", deleteNow()))
	proctest.Eventually(t, "all objects have a deletionTimestamp", func() error {
		if marked := strings.Count(s.get(t, "/apis/example.com/v1/shelves").body, "deletionTimestamp"); marked != n {
			return fmt.Errorf("%d of %d have", marked, n)
		}
		return nil
	})
	s.change(t, "shelves.example.com", describe("changed"))
	proctest.Eventually(t, "a new resource serves the CRD", func() error {
		if s.get(t, shelvesV1); s.registry.CustomResource(shelvesResource()) == old || len(s.registry.CustomResources()) != 1 {
			return errors.New("the old one still serves it")
		}
		return nil
	})

	cleanup := finalizer.NewCRDFinalizer(s.extensions.CRDs(), s.crds.ApiextensionsV1(), stale)
	kvtest.RunUntilEnd(t, func(ctx context.Context) error { cleanup.RunWithContext(1, ctx); return nil })
	proctest.Eventually(t, "the controller reports that it cannot delete the objects", func() error {
		crd, err := client.Get(t.Context(), "shelves.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the CRD is gone while it has %d objects: %v", n, err)
		}
		condition := apihelpers.FindCRDCondition(crd, apiextensionsv1.Terminating)
		if condition == nil || condition.Reason != "InstanceDeletionFailed" {
			return fmt.Errorf("%+v", condition)
		}
		return nil
	})
	page, err := s.store.Range(t.Context(), everythingBelow("/registry/example.com/shelves/"))
	must(t, err)
	if len(page.Items) != n {
		t.Errorf("%d objects are left, want %d", len(page.Items), n)
	}

	for key := range many {
		many[key] = nil
	}
	s.store.PutAll(many)
	proctest.Eventually(t, "the CRD is deleted", func() error {
		crd, err := client.Get(t.Context(), "shelves.example.com", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		must(t, err)
		describe(time.Now().String())(crd) // a change makes the controllers process the CRD again
		_, err = client.Update(t.Context(), crd, metav1.UpdateOptions{})
		return fmt.Errorf("get: error %v, want not found", err)
	})
}
