package registry_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// benchPod is about as large as a pod of a Deployment after it has started.
func benchPod(i int) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("web-%06d", i), Namespace: "default", UID: "0b1f5a3c-6f4a-4c60-8a0e-5d1d0f0c2b3a",
			CreationTimestamp: metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Labels:            map[string]string{"app": "web", "pod-template-hash": "6d4cf56db6"},
		},
		Spec: corev1.PodSpec{NodeName: "node-1"},
	}
	for range 2 {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: fmt.Appendf(nil, `{"f:status":{%q:{".":{}}}}`, strings.Repeat("f:", 300))},
		})
	}
	for c := range 3 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("c%d", c), Image: "registry.example.com/team/web:1.2.3",
			Env:       []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", Value: "d"}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}},
		})
	}
	return pod
}

func benchView(b *testing.B) (*registry.View, [][]byte) {
	server := registrytest.New(b, nil)
	v := server.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View
	var values [][]byte
	for i := range 1000 {
		value := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "Pod"})
		raw, err := benchPod(i).Marshal()
		if err != nil {
			b.Fatal(err)
		}
		values = append(values, value.AppendObject(nil, raw))
	}
	return v, values
}

func BenchmarkIngest(b *testing.B) {
	v, values := benchView(b)
	b.SetBytes(int64(len(values[0])))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if o := v.Resource.Ingest("default/web", values[i%len(values)], 5); o.Err() != nil {
			b.Fatal(o.Err())
		}
	}
}

// BenchmarkFirstRead ingests an object and reads it in a form.
func BenchmarkFirstRead(b *testing.B) {
	v, values := benchView(b)
	for _, c := range []struct {
		name  string
		media registry.MediaType
		shape registry.Shape
	}{
		{"json", registry.JSON, registry.Full},
		{"json-partial", registry.JSON, registry.Partial},
		{"protobuf-partial", registry.Protobuf, registry.Partial},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := v.Form(c.media, c.shape)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o := v.Resource.Ingest("default/web", values[i%len(values)], 5)
				if _, err := f.Item(o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkList writes a list of 1,000 pods that were read before.
func BenchmarkList(b *testing.B) {
	v, values := benchView(b)
	var objects []*cache.Object
	for i, value := range values {
		objects = append(objects, v.Resource.Ingest(fmt.Sprintf("default/web-%06d", i), value, int64(i+5)))
	}
	for name, media := range map[string]registry.MediaType{runtime.ContentTypeProtobuf: registry.Protobuf, runtime.ContentTypeJSON: registry.JSON} {
		b.Run(name, func(b *testing.B) {
			f := v.Form(media, registry.Full)
			items := make([][]byte, len(objects))
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				size := 0
				for i, o := range objects {
					item, err := f.Item(o)
					if err != nil {
						b.Fatal(err)
					}
					items[i], size = item, size+f.ItemSize(item)
				}
				meta := wire.ListMeta{Revision: 99}
				dst = f.AppendListHeader(dst[:0], meta, len(items), size)
				for i, item := range items {
					dst = append(f.AppendItemHeader(dst, i, item), item...)
				}
				dst = f.AppendListFooter(dst, meta, len(items))
			}
			b.SetBytes(int64(len(dst)))
		})
	}
}

// BenchmarkDeletedFrame splices a revision and frames the object.
func BenchmarkDeletedFrame(b *testing.B) {
	v, values := benchView(b)
	o := v.Resource.Ingest("default/web", values[0], 5)
	for name, media := range map[string]registry.MediaType{runtime.ContentTypeProtobuf: registry.Protobuf, runtime.ContentTypeJSON: registry.JSON} {
		b.Run(name, func(b *testing.B) {
			f := v.Form(media, registry.Full)
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				item, err := f.ItemAt(o, 123456)
				if err != nil {
					b.Fatal(err)
				}
				dst = f.AppendFrame(dst[:0], "DELETED", item)
			}
		})
	}
}

// BenchmarkTable writes a table of 1,000 pods: rows that are made, rows that were,
// and rows that cannot be kept.
func BenchmarkTable(b *testing.B) {
	v, values := benchView(b)
	var objects []*cache.Object
	ingest := func() {
		objects = objects[:0]
		for i, value := range values {
			objects = append(objects, v.Resource.Ingest(fmt.Sprintf("default/web-%06d", i), value, int64(i+5)))
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
			ingest()
			table(b)
		}
	})
	b.Run("again", func(b *testing.B) {
		ingest()
		b.ReportAllocs()
		for b.Loop() {
			table(b)
		}
	})
	b.Run("printed", func(b *testing.B) {
		ingest()
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
