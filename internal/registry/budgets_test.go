package registry_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
)

// TestResourcesAreInTheirBudgets checks that each resource is in its configured budget. One shares its storage with
// another group's resource, and the CRD of one is created later.
func TestResourcesAreInTheirBudgets(t *testing.T) {
	crontabs := schema.GroupResource{Group: "stable.example.com", Resource: "crontabs"}
	lookalike := schema.GroupResource{Group: "metrics.k8s.io", Resource: "secrets"}
	config := newConfig(t)
	config.CacheBytes = 1 << 30
	config.CacheShares = map[schema.GroupResource]int64{
		{Resource: "pods"}:                           512 << 20,
		{Group: "events.k8s.io", Resource: "events"}: 0,
		crontabs:  64 << 20,
		lookalike: 1 << 20,
	}
	r, err := registry.New(config)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"pods": 512 << 20, "events": 1, "secrets": 1 << 30}
	for _, res := range r.Resources() {
		if limit, ok := want[res.GroupResource.Resource]; ok && res.Cache.Schema().Budget().Limit() != limit {
			t.Errorf("%s may take %d, want %d", res.GroupResource, res.Cache.Schema().Budget().Limit(), limit)
		}
	}
	custom, err := r.NewCustomResource(registry.CustomResourceConfig{CustomConfig: encoding.CustomConfig{GroupResource: crontabs, Versions: 1}})
	if err != nil || custom.Codec().Schema.Budget().Limit() != 64<<20 {
		t.Errorf("a custom resource may take %d, %v", custom.Codec().Schema.Budget().Limit(), err)
	}
	var names []string
	for _, b := range r.Budgets() {
		names = append(names, b.Resource.String())
	}
	if want := []string{"", "crontabs.stable.example.com", "events.events.k8s.io", "pods", "secrets.metrics.k8s.io"}; !slices.Equal(names, want) {
		t.Errorf("budgets of %q, want %q", names, want)
	}
}

// TestOtherBudgetsFollowTheirObjects checks that without a limit of all caches, the shared limit follows the size of
// its objects.
func TestOtherBudgetsFollowTheirObjects(t *testing.T) {
	for bytes, want := range map[int64]int64{0: 144 << 20, -1: 0} {
		config := newConfig(t)
		config.CacheBytes = bytes
		config.CacheShares = map[schema.GroupResource]int64{{Resource: "pods"}: 1 << 20}
		r, err := registry.New(config)
		if err != nil {
			t.Fatal(err)
		}
		if all := r.Budgets(); all[0].Limit() != want || all[1].Limit() != 1<<20 {
			t.Errorf("with %d: %d and %d", bytes, all[0].Limit(), all[1].Limit())
		}
	}
}

func TestInvalidSharesAreRefused(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for _, c := range []struct {
		bytes  int64
		shares map[schema.GroupResource]int64
		want   string
	}{
		{0, map[schema.GroupResource]int64{{Resource: "pod"}: 1}, `"pod", which is not served`},
		{0, map[schema.GroupResource]int64{{Resource: "deployments"}: 1}, `"deployments.apps" is`},
		{0, map[schema.GroupResource]int64{{Group: "apps", Resource: "pods"}: 1}, `"pods.apps", which is not served; "pods" is`},
		{0, map[schema.GroupResource]int64{{Group: "example", Resource: "crontabs"}: 1}, `"crontabs.example", which is not served`},
		{0, map[schema.GroupResource]int64{pods: -1}, "cache limit of pods must not be negative"},
		{99, map[schema.GroupResource]int64{pods: 50, {Resource: "secrets"}: 50}, "add up to 100 bytes, more than the limit of all caches, 99"},
		{0, map[schema.GroupResource]int64{pods: 1 << 62}, "three eighths of the memory limit"},
		{0, map[schema.GroupResource]int64{{Resource: "events"}: 1, {Group: "events.k8s.io", Resource: "events"}: 1}, "are the same objects"},
	} {
		config := newConfig(t)
		config.CacheBytes, config.CacheShares = c.bytes, c.shares
		if _, err := registry.New(config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d of %v: %v, want %q", c.bytes, c.shares, err, c.want)
		}
	}
}
