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

// TestUncachedMetadataLeaveNoGarbage writes a Table of pods whose metadata do not fit into the budget, and are built in
// the output. It does not run under the race detector, with which pools drop some items and allocate new ones.
func TestUncachedMetadataLeaveNoGarbage(t *testing.T) {
	_, values := registrytest.Pods(t)
	values = values[:200]
	// The budget has room for the rows, and for the metadata of a few pods.
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
		t.Fatal("all metadata are cached")
	}
	// Other goroutines allocate, too, and the garbage collector empties pools. So the least of several counts is used.
	least := uint64(math.MaxUint64)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		write()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > uint64(size/2) {
		t.Errorf("a Table of %d bytes allocated %d bytes, want at most half its size", size, least)
	}
}
