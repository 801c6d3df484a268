package customresources_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/proctest"
)

// TestInformersFollowCustomResources checks that client-go's dynamic client and informers work with custom
// resources while their CRD changes and is deleted.
func TestInformersFollowCustomResources(t *testing.T) {
	s := newServer(t)
	s.define(t, shelves)
	client, err := dynamic.NewForConfig(&restclient.Config{Host: "https://larder.invalid", Transport: s.http.RoundTripper(), QPS: -1})
	must(t, err)
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "shelves"}
	own := client.Resource(gvr).Namespace("ns")
	create := func(name string) {
		t.Helper()
		shelf := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"color": "red"}}}
		shelf.SetGroupVersionKind(gvr.GroupVersion().WithKind("Shelf"))
		shelf.SetName(name)
		_, err := own.Create(t.Context(), shelf, metav1.CreateOptions{})
		must(t, err)
	}
	create("a")
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(gvr)
	seen := make(chan string, 100)
	_, err = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen <- "added " + nameOf(obj) },
		DeleteFunc: func(obj any) { seen <- "deleted " + nameOf(obj) },
	})
	must(t, err)
	stop := make(chan struct{})
	factory.Start(stop)
	defer factory.Shutdown()
	defer close(stop)
	await(t, seen, "added a")
	create("b")
	await(t, seen, "added b")
	must(t, own.Delete(t.Context(), "a", metav1.DeleteOptions{}))
	await(t, seen, "deleted a")
	must(t, s.crds.ApiextensionsV1().CustomResourceDefinitions().Delete(t.Context(), "shelves.example.com", deleteNow()))
	await(t, seen, "deleted b")
}

func nameOf(obj any) string {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	return obj.(*unstructured.Unstructured).GetName()
}

// await waits until seen has delivered want.
func await(t *testing.T, seen <-chan string, want string) {
	t.Helper()
	var others []string
	for {
		select {
		case got := <-seen:
			if got == want {
				return
			}
			others = append(others, got)
		case <-time.After(proctest.Patience):
			t.Fatalf("%q was not delivered, only %q", want, slices.Compact(others))
		}
	}
}
