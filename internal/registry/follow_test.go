package registry_test

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/wire"
)

// TestServedValuesAreKept caches objects of another API server, with a field that this program does not know and
// without a default that it would set.
func TestServedValuesAreKept(t *testing.T) {
	server := registrytest.New(t, nil, func(c *registry.Config) { c.Served = true })
	if all := server.Registry.Resources(); len(all) > 0 { // pages would ask their store, which is none
		t.Errorf("%d resources are listed, none of which is read", len(all))
	}
	pods := server.Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "").View.Resource
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.ResourceVersion = "x", "a", "17"
	pod.Labels = map[string]string{"of": "test"}
	pod.Spec.NodeName = "n"
	raw, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, 0xba, 0x3e, 1, 'u') // field 999
	value := wire.Protobuf(wire.Kind{APIVersion: "v1", Kind: "Pod"}).AppendObject(nil, raw)
	o := pods.Codec().DecodeValue(t.Context(), "/registry/pods/a/x", "a/x", value, 17)
	switch {
	case o.Err() != nil:
		t.Fatal(o.Err())
	case !bytes.Equal(o.Body(), raw):
		t.Errorf("cached as %q, want %q", o.Body(), raw)
	case o.Labels().Get("of") != "test" || o.Fields().Get("spec.nodeName") != "n":
		t.Errorf("labels %v, fields %v", o.Labels(), o.Fields())
	}
	if o := pods.Codec().DecodeValue(t.Context(), "/registry/pods/a/x", "a/x", []byte(`{"kind":"Pod"}`), 17); o.Err() == nil {
		t.Error("a value in another form is cached")
	}
}
