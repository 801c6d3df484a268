package encoding_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/storage"
	"github.com/larder-io/larder/internal/registry/wire"
)

// BenchmarkDecodeValue decodes pods of one workload: identical ones; each with its own environment and text; without two
// of their defaults; and each with a unique annotation, so that no fingerprint is known (S1).
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
				if _, err := f.Item(b.Context(), o); err != nil {
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
					item, err := f.Item(b.Context(), o)
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

// BenchmarkWrite writes objects and makes the responses, with upstream's encoder or from the written bytes.
func BenchmarkWrite(b *testing.B) {
	server := registrytest.New(b, nil)
	server.Start(b)
	for _, c := range []struct {
		name, group, resource string
		create                bool
		obj                   runtime.Object
		change                func(obj runtime.Object, i int)
	}{
		{"create pod", "", "pods", true, registrytest.Pod(1), nil},
		{"update lease", "coordination.k8s.io", "leases", false, lease(), func(obj runtime.Object, i int) {
			obj.(*coordination.Lease).Spec.RenewTime = &metav1.MicroTime{Time: time.Unix(int64(i), 1000)}
		}},
		{"pod status", "", "pods", false, registrytest.Pod(1), func(obj runtime.Object, i int) {
			obj.(*core.Pod).Status = core.PodStatus{
				Phase: core.PodRunning, HostIP: "10.0.0.1", Message: fmt.Sprint(i),
				Conditions: []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue, LastTransitionTime: metav1.Unix(int64(i), 0)}},
			}
		}},
	} {
		v := server.Registry.Endpoint(schema.GroupVersionResource{Group: c.group, Version: "v1", Resource: c.resource}, "").View
		for _, media := range []encoding.MediaType{encoding.Protobuf, encoding.JSON} {
			for _, upstreams := range []bool{true, false} {
				b.Run(fmt.Sprintf("%s/media=%d/upstream=%t", c.name, media, upstreams), func(b *testing.B) {
					w := benchWriter{B: b, view: v, media: media}
					if u := newUpstream(v, media, encoding.Full); upstreams {
						w.upstreams = u.codecs.EncoderForVersion(u.info(b).Serializer, u.gv)
					}
					w.run(c.obj, c.create, c.change)
				})
			}
		}
	}
}

func lease() runtime.Object {
	now := metav1.NewMicroTime(time.Unix(1, 1000))
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Namespace: "kube-node-lease", UID: "0b1f5a3c-6f4a-4c60-8a0e-5d1d0f0c2b3a"}}
	l.Spec.RenewTime, l.Spec.HolderIdentity = &now, &l.Name
	l.ManagedFields = registrytest.Pod(1).ManagedFields[:1]
	return l
}

type benchWriter struct {
	*testing.B
	view      *registry.View
	media     encoding.MediaType
	upstreams runtime.Encoder // nil: responses are built from the stored bytes
	out       bytes.Buffer
}

func (w *benchWriter) run(versioned runtime.Object, create bool, change func(runtime.Object, int)) {
	s, newObject := w.view.Resource.Storage(), w.view.Resource.Codec().New
	obj := newObject()
	if err := legacyscheme.Scheme.Convert(versioned, obj, nil); err != nil {
		w.Fatal(err)
	}
	key := func(i int) string {
		return w.view.Resource.KeyOf(storage.Scope{Namespace: "default", Name: fmt.Sprintf("%s%d", w.Name(), i)})
	}
	if !create {
		if err := s.Create(w.Context(), key(0), obj, newObject(), 0); err != nil {
			w.Fatal(err)
		}
	}
	w.ReportAllocs()
	for i := 0; w.Loop(); i++ {
		ctx, written := storage.Track(w.Context())
		out := newObject()
		var err error
		if create {
			err = s.Create(ctx, key(w.N+i), obj, out, 0)
		} else {
			err = s.GuaranteedUpdate(ctx, key(0), out, false, nil, apistorage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				change(obj, i+2)
				return obj, nil
			}), nil)
		}
		if err != nil {
			w.Fatal(err)
		}
		w.respond(written, out)
	}
}

func (w *benchWriter) respond(written *storage.Written, out runtime.Object) {
	w.out.Reset()
	if w.upstreams != nil {
		if err := w.upstreams.Encode(out, &w.out); err != nil {
			w.Fatal(err)
		}
		return
	}
	f := w.view.Encoder(w.media, encoding.Full)
	item, err := f.Uncached().Item(context.Background(), written.For(out))
	if err != nil {
		w.Fatal(err)
	}
	w.out.Write(f.AppendObject(w.out.AvailableBuffer(), item))
}
