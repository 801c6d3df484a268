package checkpoint_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// BenchmarkReset resets 1,000 changed objects: a third created, a third updated, a third deleted. The name says how
// many other objects the store has.
func BenchmarkReset(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			store, err := embedded.New(embedded.Config{Dir: b.TempDir(), UnsafeNoFsync: true})
			if err != nil {
				b.Fatal(err)
			}
			kvtest.RunUntilEnd(b, store.Run)
			value := string(bytes.Repeat([]byte("x"), 1500))
			for i := range others {
				kvtest.Put(b, store, fmt.Sprintf("/registry/configmaps/other/%d", i), value)
			}
			for i := range 667 {
				kvtest.Put(b, store, fmt.Sprintf("/registry/pods/a/%d", i), value)
			}
			c := checkpoint.New(checkpoint.Config{Stores: []kv.Store{store}, Prefix: "/registry"})
			take(b, c, "clean")
			for b.Loop() {
				b.StopTimer()
				for i := range 333 {
					kvtest.Put(b, store, fmt.Sprintf("/registry/pods/new/%d", i), value)
					kvtest.Put(b, store, fmt.Sprintf("/registry/pods/a/%d", i), value)
				}
				for i := 333; i < 667; i++ {
					key := fmt.Sprintf("/registry/pods/a/%d", i)
					item, _, _, _ := store.Get(b.Context(), key)
					if _, err := store.Delete(b.Context(), key, item.Revision); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				if got := reset(b, c, "clean"); got.Deleted+got.Restored+got.Changed != 1000 {
					b.Fatalf("reset: %+v", got)
				}
			}
		})
	}
}
