//go:build !race

package table_test

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestMetadataThatAreNotKeptLeaveNoGarbage writes a table of pods whose metadata do not fit into the budget, so that
// they are built in the output. Under the race detector, pools drop some of their items, and new ones would count.
func TestMetadataThatAreNotKeptLeaveNoGarbage(t *testing.T) {
	_, values := registrytest.Pods(t)
	values = values[:200]
	// Rows fit, and the metadata of a few pods.
	server := registrytest.New(t, nil, func(c *registry.Config) { c.CacheBytes = 200 << 10 })
	v := server.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View
	var objects []*cache.Object
	for i, value := range values {
		objects = append(objects, registrytest.Object(v.Resource, fmt.Sprintf("default/web-%06d", i), value, int64(i+5)))
	}
	rows, err := v.Rows(t.Context(), objects, wire.ListMeta{Revision: 99}, &metav1.TableOptions{}, metav1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	write := func() {
		size = 0
		if err := rows.Write(func(p []byte) { size += len(p) }); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if rows.Cached() {
		t.Fatal("all metadata are kept")
	}
	// Others allocate meanwhile, and collections empty pools: the least of several counts is the table's own.
	least := uint64(math.MaxUint64)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		write()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > uint64(size/2) {
		t.Errorf("a table of %d bytes left %d bytes of garbage", size, least)
	}
}
