package reads

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// benchPod returns the object of a pod that has run for a while: 7.5 KB of JSON with unique names, addresses and
// times.
func benchPod(b *testing.B, v *registry.View, n, revision int) *cache.Object {
	id := rand.New(rand.NewPCG(uint64(n), uint64(revision)))
	uid := fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", id.Uint32(), id.Uint32()>>16, id.Uint32()>>16, id.Uint32()>>16, id.Uint64()>>16)
	at := metav1.Date(2026, 1, 2, 3, n/60%60, n%60, 0, time.UTC)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("app-%d-7d4b9c6f8-%06d", n%100, n), Namespace: fmt.Sprintf("bench-%d", n%50), UID: types.UID(uid),
			ResourceVersion: fmt.Sprint(revision), CreationTimestamp: at,
			Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("app-%d", n%100), "pod-template-hash": "7d4b9c6f8"},
		},
		Spec: corev1.PodSpec{NodeName: fmt.Sprintf("node-%d", id.IntN(500))},
	}
	for _, manager := range []string{"kube-controller-manager", "kubelet"} {
		fields := strings.Repeat(`"f:env":{".":{},"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}}},"f:image":{},"f:imagePullPolicy":{},"f:name":{},`, 21)
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", Time: &at,
			FieldsV1: metav1.NewFieldsV1(`{"f:spec":{` + fields + `"f:x":{}}}`),
		})
	}
	for c := range 3 {
		name := fmt.Sprintf("c%d", c)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: name, Image: "registry.example.com/team/web:1.2.3",
			Env:       []corev1.EnvVar{{Name: "A", Value: uid}, {Name: "C", Value: "d"}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}},
		})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, Image: "registry.example.com/team/web:1.2.3", ContainerID: fmt.Sprintf("containerd://%016x%016x", id.Uint64(), id.Uint64()),
			ImageID: fmt.Sprintf("registry.example.com/team/web@sha256:%016x%016x", id.Uint64(), id.Uint64()),
			State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
		})
	}
	pod.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", id.IntN(255), id.IntN(255), id.IntN(255))
	body, err := pod.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	key := pod.Namespace + "/" + pod.Name
	return cache.NewObject(cache.ObjectConfig{Key: key, Revision: int64(revision), Body: body}, v.Resource.Cache.Schema())
}

// BenchmarkStitch sends compressed lists of 10,000 pods. Between lists it changes the number of pods in its name.
// cpu-ms is the CPU time of the whole process for one list.
func BenchmarkStitch(b *testing.B) {
	v := registrytest.New(b, nil).Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View
	f := v.Encoder(encoding.JSON, encoding.Full)
	objects := make([]*cache.Object, 10_000)
	for n := range objects {
		objects[n] = benchPod(b, v, n, 1)
	}
	slices.SortFunc(objects, func(a, b *cache.Object) int { return strings.Compare(a.Key(), b.Key()) })
	for _, changes := range []int{0, 1, 10, 100, -1} {
		name := fmt.Sprintf("changes=%d", changes)
		if changes < 0 {
			name = "cold"
		}
		b.Run(name, func(b *testing.B) {
			s, revision := NewStitcher(64<<20), 1
			var list *stitchedList
			stitch := func() {
				var err error
				if list, err = s.stitch(f, wire.ListMeta{Revision: int64(revision)}, objects); err != nil {
					b.Fatal(err)
				}
				_, _ = list.WriteTo(io.Discard)
			}
			stitch()
			random := rand.New(rand.NewPCG(1, 2))
			b.ReportAllocs()
			var used time.Duration
			for b.Loop() {
				revision++
				for range changes {
					at := random.IntN(len(objects))
					n := 0
					_, _ = fmt.Sscanf(objects[at].Name()[strings.LastIndexByte(objects[at].Name(), '-')+1:], "%d", &n)
					objects[at] = benchPod(b, v, n, revision)
				}
				if changes < 0 {
					s = NewStitcher(64 << 20)
				}
				began := proctest.OfProcess.Now(b)
				stitch()
				used += proctest.OfProcess.Now(b) - began
			}
			b.ReportMetric(float64(used.Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(list.length)/1e6, "MB-sent")
			b.ReportMetric(float64(list.size)/1e6, "MB-listed")
			b.ReportMetric(float64(len(list.pieces)), "pieces")
			b.ReportMetric(float64(s.Bytes())/1e6, "MB-kept")
		})
	}
}
