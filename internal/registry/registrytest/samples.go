package registrytest

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsfuzzer "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/wire"
)

// Fill makes obj a random object, as upstream's tests do.
func Fill(obj runtime.Object, source rand.Source) {
	funcs := fuzzer.MergeFuzzerFuncs(apitesting.FuzzerFuncs, apiextensionsfuzzer.Funcs)
	fuzzer.FuzzerFor(funcs, source, legacyscheme.Codecs).Fill(obj)
}

// Object returns the cached object of a stored value. rest is the part of the key after the resource's root.
func Object(r *registry.Resource, rest string, value []byte, revision int64) *cache.Object {
	return r.Codec().DecodeValue(context.Background(), r.Root()+rest, rest, value, revision)
}

// Sample is a random object, as it is stored and as it is cached.
type Sample struct {
	Object   *cache.Object
	Value    []byte
	Revision int64
}

// NewSample makes the sample of a seed.
func NewSample(t testing.TB, r *registry.Resource, seed int64) Sample {
	t.Helper()
	obj := r.Codec().New()
	Fill(obj, rand.NewSource(seed))
	value, err := r.Codec().EncodeStored(obj)
	if err != nil {
		t.Fatal(err)
	}
	revision := 1 + seed*1_000_003
	s := Sample{Value: value, Revision: revision}
	s.Object = Object(r, fmt.Sprintf("ns/object-%d", seed), value, revision)
	if err := s.Object.Err(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Pod returns a pod about as large as a pod of a Deployment after it has started.
func Pod(i int) *corev1.Pod {
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
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:status":{%q:{".":{}}}}`, strings.Repeat("f:", 300))),
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

// Pods returns a registry's view of pods, and a thousand stored values for it.
func Pods(t testing.TB) (*registry.View, [][]byte) {
	server := New(t, nil)
	v := server.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View
	var values [][]byte
	for i := range 1000 {
		value := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "Pod"})
		raw, err := Pod(i).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, value.AppendObject(nil, raw))
	}
	return v, values
}
