package table_test

import (
	"encoding/json"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// BenchmarkTable writes a Table of 1,000 pods: from rows that are not cached yet, from cached rows, and from rows that
// cannot be cached.
func BenchmarkTable(b *testing.B) {
	v, values := registrytest.Pods(b)
	var objects []*cache.Object
	decode := func() {
		objects = objects[:0]
		for i, value := range values {
			objects = append(objects, registrytest.Object(v.Resource, fmt.Sprintf("default/web-%06d", i), value, int64(i+5)))
		}
	}
	var dst []byte
	table := func(b *testing.B) {
		rows, err := v.Rows(b.Context(), objects, wire.ListMeta{Revision: 99}, &metav1.TableOptions{}, metav1.SchemeGroupVersion)
		if err != nil {
			b.Fatal(err)
		}
		dst = dst[:0]
		if err := rows.Write(func(p []byte) { dst = append(dst, p...) }); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(dst)))
	}
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			decode()
			table(b)
		}
	})
	b.Run("again", func(b *testing.B) {
		decode()
		b.ReportAllocs()
		for b.Loop() {
			table(b)
		}
	})
	b.Run("printed", func(b *testing.B) {
		decode()
		b.ReportAllocs()
		for b.Loop() {
			table, err := v.Table(b.Context(), objects, wire.ListMeta{Revision: 99}, &metav1.TableOptions{}, metav1.SchemeGroupVersion)
			if err != nil {
				b.Fatal(err)
			}
			if dst, err = json.Marshal(table); err != nil {
				b.Fatal(err)
			}
		}
	})
}
