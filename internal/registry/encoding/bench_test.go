package encoding_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// BenchmarkDecodeValue decodes pods of one workload: as they are; each with an environment
// and a text of its own; without two of their defaults; and each with an annotation that no
// other has, so that no fingerprint is known (S1).
func BenchmarkDecodeValue(b *testing.B) {
	v, plain := registrytest.Pods(b)
	for _, c := range []struct {
		name   string
		change func(i int, pod *corev1.Pod)
	}{
		{"alike", func(int, *corev1.Pod) {}},
		{"environment", func(i int, pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("OWN_", i), Value: fmt.Sprint("value ", i)})
			pod.Status.Message = fmt.Sprint("text ", i)
		}},
		{"fewer-defaults", func(i int, pod *corev1.Pod) {
			pod.Spec.EnableServiceLinks, pod.Spec.Containers[0].TerminationMessagePolicy = nil, ""
		}},
		{"unknown", func(i int, pod *corev1.Pod) { pod.Annotations = map[string]string{fmt.Sprint("own-", i): ""} }},
	} {
		b.Run(c.name, func(b *testing.B) {
			values := make([][]byte, len(plain))
			for i := range plain {
				raw, _, _, _ := wire.Unenvelope(plain[i])
				var pod corev1.Pod
				if err := pod.Unmarshal(raw); err != nil {
					b.Fatal(err)
				}
				c.change(i, &pod)
				raw, err := pod.Marshal()
				if err != nil {
					b.Fatal(err)
				}
				values[i] = wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "Pod"}).AppendObject(nil, raw)
			}
			b.SetBytes(int64(len(values[0])))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if o := registrytest.Object(v.Resource, "default/web", values[i%len(values)], 5); o.Err() != nil {
					b.Fatal(o.Err())
				}
			}
		})
	}
}

// BenchmarkFirstRead decodes an object and reads it in an encoding.
func BenchmarkFirstRead(b *testing.B) {
	v, values := registrytest.Pods(b)
	for _, c := range []struct {
		name       string
		media      encoding.MediaType
		projection encoding.Projection
	}{
		{"json", encoding.JSON, encoding.Full},
		{"json-partial", encoding.JSON, encoding.Partial},
		{"protobuf-partial", encoding.Protobuf, encoding.Partial},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := v.Encoder(c.media, c.projection)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o := registrytest.Object(v.Resource, "default/web", values[i%len(values)], 5)
				if _, err := f.Item(o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkList writes a list of 1,000 pods that were read before.
func BenchmarkList(b *testing.B) {
	v, values := registrytest.Pods(b)
	var objects []*cache.Object
	for i, value := range values {
		objects = append(objects, registrytest.Object(v.Resource, fmt.Sprintf("default/web-%06d", i), value, int64(i+5)))
	}
	for name, media := range map[string]encoding.MediaType{runtime.ContentTypeProtobuf: encoding.Protobuf, runtime.ContentTypeJSON: encoding.JSON} {
		b.Run(name, func(b *testing.B) {
			f := v.Encoder(media, encoding.Full)
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
	v, values := registrytest.Pods(b)
	o := registrytest.Object(v.Resource, "default/web", values[0], 5)
	for name, media := range map[string]encoding.MediaType{runtime.ContentTypeProtobuf: encoding.Protobuf, runtime.ContentTypeJSON: encoding.JSON} {
		b.Run(name, func(b *testing.B) {
			f := v.Encoder(media, encoding.Full)
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
