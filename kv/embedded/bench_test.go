package embedded_test

import (
	"fmt"
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
)

func must[T any](b *testing.B) func(T, error) T {
	return func(v T, err error) T {
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
}

func BenchmarkGet(b *testing.B) {
	store := open(b, embedded.Config{})
	must[kv.Result](b)(store.Put(b.Context(), "/registry/a", make([]byte, 5000), kv.PutOptions{}))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, _, err := store.Get(b.Context(), "/registry/a"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRevision(b *testing.B) {
	for _, callers := range []int{1, 16} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			store := open(b, embedded.Config{})
			b.SetParallelism(callers)
			b.ReportAllocs()
			before := store.RevisionReads()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := store.Revision(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(store.RevisionReads()-before)/float64(b.N), "reads/op")
		})
	}
}

func BenchmarkPut(b *testing.B) {
	store := open(b, embedded.Config{})
	value := make([]byte, 5000)
	var revision int64
	b.ReportAllocs()
	for b.Loop() {
		result := must[kv.Result](b)(store.Put(b.Context(), "/registry/a", value, kv.PutOptions{IfRevision: revision}))
		revision = result.Revision
	}
}

func BenchmarkRangeAll(b *testing.B) {
	const items = 10_000
	store := open(b, embedded.Config{})
	for i := range items {
		must[kv.Result](b)(store.Put(b.Context(), fmt.Sprintf("/registry/pods/ns/%05d", i), make([]byte, 500), kv.PutOptions{}))
	}
	for _, size := range []int64{500, 10_000} {
		b.Run(fmt.Sprintf("page=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				must[int64](b)(kv.RangeAll(b.Context(), store, kv.RangeOptions{Prefix: "/registry/pods/", Limit: size}, func(page kv.Page) error {
					n += len(page.Items)
					return nil
				}))
				if n != items {
					b.Fatalf("%d items", n)
				}
			}
		})
	}
}
