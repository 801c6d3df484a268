package encoding_test

import (
	"bytes"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestItemsWithoutRoomAreTheSame checks that list items that do not fit into the budget equal cached ones, and that
// most of those that fit are built once.
func TestItemsWithoutRoomAreTheSame(t *testing.T) {
	for _, c := range []struct {
		room         int64 // bytes of the budget
		fewest, most int   // items that are built again
		media        encoding.MediaType
		name         string
	}{
		{-1, 0, 0, encoding.JSON, "no bound"},
		{16 << 20, 0, 0, encoding.JSON, "room for all"},
		{1 << 20, 100, 400, encoding.JSON, "room for most"},
		{1 << 10, 480, 500, encoding.JSON, "room for almost nothing"},
		{1 << 10, 0, 0, encoding.Protobuf, "items within the canonical bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := registrytest.New(t, nil, func(config *registry.Config) { config.CacheBytes = c.room })
			v := server.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View
			var objects []*cache.Object
			for i := range 500 {
				raw, err := registrytest.Pod(i).Marshal()
				if err != nil {
					t.Fatal(err)
				}
				value := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "Pod"}).AppendObject(nil, raw)
				objects = append(objects, registrytest.Object(v.Resource, fmt.Sprintf("default/web-%06d", i), value, int64(7*i+5)))
			}
			f := v.Encoder(c.media, encoding.Full)
			from := f.Source(objects)
			list := func() (items [][]byte, made int) {
				for _, o := range objects {
					if _, ok := from.Cached(o); !ok {
						made++
					}
					b, err := from.Item(t.Context(), o)
					if err != nil {
						t.Fatal(err)
					}
					items = append(items, b)
				}
				return items, made
			}
			first, _ := list()
			for range 3 {
				again, made := list()
				for i := range again {
					if !bytes.Equal(first[i], again[i]) {
						t.Fatalf("item %d changed", i)
					}
				}
				if made < c.fewest || made > c.most {
					t.Errorf("%d of %d items were built again, want %d to %d", made, len(objects), c.fewest, c.most)
				}
			}
			for i, o := range objects {
				shared, grown, err := from.Next([]byte("head"), o)
				if shared == nil {
					shared = bytes.TrimPrefix(grown, []byte("head"))
				}
				if err != nil || !bytes.Equal(shared, first[i]) {
					t.Fatalf("item %d differs from the first read, error %v", i, err)
				}
			}
			for i, o := range objects {
				if b, err := f.Item(t.Context(), o); err != nil || !bytes.Equal(b, first[i]) {
					t.Fatalf("item %d differs from the cached one, error %v", i, err)
				}
			}
		})
	}
}

// TestCheapItemsAreNotCached checks that if not all items of a list fit into the cache, it holds items that resemble no
// other, and no items that are copied from templates.
func TestCheapItemsAreNotCached(t *testing.T) {
	server := registrytest.New(t, nil, func(config *registry.Config) { config.CacheBytes = 1 << 20 })
	v := server.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View
	const each = 300
	var objects []*cache.Object
	for i := range 2 * each {
		pod := registrytest.Pod(i)
		if i >= each {
			pod.Labels[fmt.Sprintf("label-%04d", i)] = "yes"
		}
		raw, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		value := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "Pod"}).AppendObject(nil, raw)
		objects = append(objects, registrytest.Object(v.Resource, fmt.Sprintf("default/web-%06d", i), value, int64(7*i+5)))
	}
	from := v.Encoder(encoding.JSON, encoding.Full).Source(objects)
	for _, o := range objects {
		if _, _, err := from.Next(nil, o); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(objects []*cache.Object) (n int) {
		for _, o := range objects {
			if _, ok := from.Cached(o); ok {
				n++
			}
		}
		return n
	}
	// Under the race detector, pools drop some of their items, so that some objects are not copied.
	if alike, others := kept(objects[:each]), kept(objects[each:]); others < each/10 || alike > others/2 {
		t.Errorf("of %d similar objects %d are cached, of as many others %d", each, alike, others)
	}
}
