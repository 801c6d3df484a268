package registry_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/builtin"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// offline is a transport that a Registry under construction must not use.
type offline struct{ t testing.TB }

func (o offline) RoundTrip(req *http.Request) (*http.Response, error) {
	o.t.Errorf("request to %s", req.URL)
	return nil, http.ErrServerClosed
}

func newConfig(t testing.TB) registry.Config {
	client := &restclient.Config{Host: "http://in.process", Transport: offline{t}}
	clients, err := kubernetes.NewForConfig(client)
	if err != nil {
		t.Fatal(err)
	}
	store := kvtest.NewMemory()
	store.SetHook(func(op, key string) error {
		t.Errorf("New touches the store: %s %s", op, key)
		return nil
	})
	return registry.Config{
		Store: store,
		Tail:  kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"}),
		Config: builtin.Config{
			GenericConfig: corerest.GenericConfig{LoopbackClientConfig: client, Informers: informers.NewSharedInformerFactory(clients, 0)},
			Authorizer:    authorizerfactory.NewAlwaysAllowAuthorizer(),
		},
	}
}

// TestNewDoesNoIO builds a Registry over a store and a client that fail the test
// when they are used; that no goroutine is left is seen at the end of all tests.
func TestNewDoesNoIO(t *testing.T) {
	config := newConfig(t)
	before := *config.LoopbackClientConfig
	if _, err := registry.New(config); err != nil {
		t.Fatal(err)
	}
	if config.LoopbackClientConfig.QPS != before.QPS || config.LoopbackClientConfig.ContentType != before.ContentType {
		t.Error("New has changed the caller's client config")
	}
}

// TestConfiguredLabelsAreIndexed checks that configured labels are indexed, also for a resource that shares its
// storage with another group's.
func TestConfiguredLabelsAreIndexed(t *testing.T) {
	config := newConfig(t)
	config.IndexLabels = map[schema.GroupResource][]string{
		{Resource: "pods"}:                           {"app", "job-name"},
		{Group: "events.k8s.io", Resource: "events"}: {"app"},
	}
	r, err := registry.New(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ resource, label, index string }{
		{"pods", "app=a", "app"},
		{"pods", "job-name=a", "job-name"},
		{"pods", "tier=a", ""},
		{"events", "app=a", "app"},
		{"secrets", "app=a", ""},
	} {
		selector, err := labels.Parse(c.label)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(r.Resources(), func(r *registry.Resource) bool { return r.GroupResource.Resource == c.resource })
		page, err := r.Resources()[at].Cache.Snapshot().List(cache.Query{Label: selector}, nil)
		if err != nil || page.Index != c.index {
			t.Errorf("%s with %s: index %q, %v; want %q", c.resource, c.label, page.Index, err, c.index)
		}
	}
	config = newConfig(t)
	config.IndexLabels = map[schema.GroupResource][]string{{Group: "apps", Resource: "pods"}: {"app"}}
	if _, err := registry.New(config); err == nil || !strings.Contains(err.Error(), "pods.apps") {
		t.Errorf("an index of nothing: %v", err)
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.New(newConfig(b)); err != nil {
			b.Fatal(err)
		}
	}
}
