package embedded_test

import (
	"context"
	"fmt"
	"testing"
	"time"

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

// BenchmarkStart opens a store in a new directory, or in one that has been used. Each operation also closes it.
func BenchmarkStart(b *testing.B) {
	for _, reopen := range []bool{false, true} {
		b.Run(fmt.Sprintf("reopen=%t", reopen), func(b *testing.B) {
			cfg := embedded.Config{Dir: b.TempDir(), UnsafeNoFsync: true}
			var starting time.Duration
			for b.Loop() {
				if !reopen {
					cfg.Dir = b.TempDir()
				}
				began := time.Now()
				store := must[*kv.Etcd](b)(embedded.New(cfg))
				ctx, stop := context.WithCancel(b.Context())
				ended := make(chan error)
				go func() { ended <- store.Run(ctx) }()
				<-store.Ready()
				starting += time.Since(began)
				stop()
				must[error](b)(nil, <-ended)
			}
			b.ReportMetric(float64(starting.Microseconds())/1000/float64(b.N), "start-ms/op")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	store := open(b, embedded.Config{})
	must[kv.WriteResult](b)(store.Put(b.Context(), "/registry/a", make([]byte, 5000), kv.PutOptions{}))
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
		result := must[kv.WriteResult](b)(store.Put(b.Context(), "/registry/a", value, kv.PutOptions{IfRevision: revision}))
		revision = result.Revision
	}
}

func BenchmarkRangeAll(b *testing.B) {
	const items = 10_000
	store := open(b, embedded.Config{})
	for i := range items {
		must[kv.WriteResult](b)(store.Put(b.Context(), fmt.Sprintf("/registry/pods/ns/%05d", i), make([]byte, 500), kv.PutOptions{}))
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
					b.Fatalf("read %d items, want %d", n, items)
				}
			}
		})
	}
}
