package registry_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/test/integration/etcd"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/bootstrap"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/kv/kvtest"
)

// elsewhere are groups of upstream's table that other parts of a server store.
var elsewhere = map[string]bool{
	"cr.bar.com": true, "awesome.bears.com": true, "random.numbers.com": true, "custom.fancy.com": true,
}

const tableNamespace = "etcdstoragepathtestnamespace"

// TestStoredAsUpstreamStores walks the table with which Kubernetes guards its layout of etcd (kubernetes
// test/integration/etcd): every object is created through the API and looked up under the table's key, in the table's
// version. Then it is read back through every version that serves it.
func TestStoredAsUpstreamStores(t *testing.T) {
	t.Run("default", func(t *testing.T) { walkTable(t, false) })
	t.Run("everything", func(t *testing.T) {
		featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate,
			featuregatetesting.FeatureOverrides{"AllAlpha": true, "AllBeta": true})
		walkTable(t, true)
	})
}

// walkTable checks the rows that are served; if all are, no row may be left over.
func walkTable(t *testing.T, all bool) {
	var change []func(*registry.Config)
	if all {
		change = append(change, everything)
	}
	s := startServer(t, change...)
	table := etcd.GetEtcdStorageDataForNamespace(tableNamespace)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tableNamespace}}
	if _, err := s.Client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	served := make(map[schema.GroupVersionResource]bool)
	for _, group := range s.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				if e.View != nil {
					served[e.GVR] = true
				}
			}
		}
	}
	gvrs := slices.SortedFunc(maps.Keys(table), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, gvr := range gvrs {
		if !served[gvr] {
			if all && !elsewhere[gvr.Group] {
				t.Errorf("%s is in the table and not served", gvr)
			}
			continue
		}
		t.Run(strings.ReplaceAll(gvr.String(), "/", "_"), func(t *testing.T) { checkStored(t, s, gvr, table[gvr]) })
		delete(served, gvr)
	}
	for gvr := range served {
		t.Errorf("%s is served and not in the table", gvr)
	}
}

// startServer runs a server with the objects that a cluster starts with.
func startServer(t *testing.T, change ...func(*registry.Config)) *registrytest.Server {
	t.Helper()
	s := registrytest.New(t, nil, change...)
	b, err := bootstrap.New(bootstrap.Config{
		Registry: s.Registry, Client: s.Client, Informers: s.Informers,
		PublicAddress: net.IPv4(192, 0, 2, 7), PublicPort: 6443,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	kvtest.RunUntilEnd(t, b.Run)
	if err := b.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func checkStored(t *testing.T, s *registrytest.Server, gvr schema.GroupVersionResource, row etcd.StorageData) {
	for _, p := range row.Prerequisites {
		create(t, s, p.GvrData, p.Stub)
	}
	created := create(t, s, gvr, row.Stub)
	item, found, _, err := s.Store.Get(t.Context(), row.ExpectedEtcdPath)
	if err != nil || !found {
		t.Fatalf("nothing stored at %s: %v", row.ExpectedEtcdPath, err)
	}
	endpoint := s.Registry.Endpoint(gvr, "")
	want := endpoint.GVK
	if row.ExpectedGVK != nil {
		want = *row.ExpectedGVK
	}
	switch gvr.Group {
	case apiextensions.GroupName:
		checkJSON(t, apiextensionsserver.Codecs, item.Value, want)
	case apiregistration.GroupName:
		checkJSON(t, aggregatorscheme.Codecs, item.Value, want)
	default:
		checkValue(t, item.Value, want)
	}
	if err := endpoint.View.Resource.Cache.Wait(t.Context(), item.Revision); err != nil {
		t.Fatal(err)
	}
	for _, group := range s.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				if e.View != nil && e.View.Resource == endpoint.View.Resource {
					checkRead(t, s, e, created)
				}
			}
		}
	}
}

// create makes stub, an object of gvr without kind, in the namespace of the table.
func create(t *testing.T, s *registrytest.Server, gvr schema.GroupVersionResource, stub string) *unstructured.Unstructured {
	t.Helper()
	obj := new(unstructured.Unstructured)
	if err := utiljson.Unmarshal([]byte(stub), &obj.Object); err != nil {
		t.Fatal(err)
	}
	endpoint := s.Registry.Endpoint(gvr, "")
	if endpoint == nil {
		t.Fatalf("%s is not served", gvr)
	}
	obj.SetGroupVersionKind(endpoint.GVK)
	client, err := dynamic.NewForConfig(s.ClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	var resource dynamic.ResourceInterface = client.Resource(gvr)
	if endpoint.Namespaced {
		resource = client.Resource(gvr).Namespace(tableNamespace)
	}
	created, err := resource.Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %s: %v", gvr, err)
	}
	return created
}

// checkJSON wants an object of kind gvk that has no resourceVersion, byte for byte as
// upstream's encoder writes it.
func checkJSON(t *testing.T, codecs serializer.CodecFactory, value []byte, gvk schema.GroupVersionKind) {
	t.Helper()
	obj, got, err := codecs.UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if *got != gvk {
		t.Errorf("stored as %s, want %s", got, gvk)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	if rv := accessor.GetResourceVersion(); rv != "" {
		t.Errorf("stored with resourceVersion %s", rv)
	}
	again, err := runtime.Encode(codecs.LegacyCodec(gvk.GroupVersion()), obj)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, value) {
		t.Errorf("-upstream +stored\n%s", cmp.Diff(string(again), string(value)))
	}
}

// checkValue wants a protobuf envelope around an object of kind gvk that has no
// resourceVersion, byte for byte as upstream's encoder writes it.
func checkValue(t *testing.T, value []byte, gvk schema.GroupVersionKind) {
	t.Helper()
	if !bytes.HasPrefix(value, []byte("k8s\x00")) {
		t.Fatalf("stored value starts with %q", value[:min(4, len(value))])
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(value[4:]); err != nil {
		t.Fatal(err)
	}
	if envelope.APIVersion != gvk.GroupVersion().String() || envelope.Kind != gvk.Kind {
		t.Errorf("stored as %s %s, want %s", envelope.APIVersion, envelope.Kind, gvk)
	}
	obj, err := legacyscheme.Scheme.New(gvk)
	if err != nil {
		t.Fatal(err)
	}
	message := obj.(interface {
		Unmarshal([]byte) error
		Marshal() ([]byte, error)
	})
	if err := message.Unmarshal(envelope.Raw); err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	if rv := accessor.GetResourceVersion(); rv != "" {
		t.Errorf("stored with resourceVersion %s", rv)
	}
	again, err := message.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, envelope.Raw) {
		t.Error("upstream encodes the stored object differently")
	}
}

// checkRead compares the object that the View of e serves with that of upstream's handler.
func checkRead(t *testing.T, s *registrytest.Server, e *registry.Endpoint, created *unstructured.Unstructured) {
	t.Helper()
	key := created.GetName()
	segments := []string{"/apis", e.GVR.Group, e.GVR.Version}
	if e.GVR.Group == "" {
		segments = []string{"/api", e.GVR.Version}
	}
	if ns := created.GetNamespace(); ns != "" {
		key = ns + "/" + key
		segments = append(segments, "namespaces", ns)
	}
	path := strings.Join(append(segments, e.GVR.Resource, created.GetName()), "/")
	cached := e.View.Resource.Cache.Snapshot().Get(key)
	if cached == nil {
		t.Fatalf("%s has no %s in its cache", e.GVR, key)
	}
	for media, accept := range map[encoding.MediaType]string{
		encoding.JSON: runtime.ContentTypeJSON, encoding.Protobuf: runtime.ContentTypeProtobuf,
	} {
		want, err := rawClient(t, s).Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		checkEncoding(t, e, media, cached, want)
	}
}

// checkEncoding compares cached as the View of e serves it with want, upstream's encoding.
func checkEncoding(t *testing.T, e *registry.Endpoint, media encoding.MediaType, cached *cache.Object, want []byte) {
	t.Helper()
	encoder := e.View.Encoder(media, encoding.Full)
	item, err := encoder.Item(t.Context(), cached)
	if err != nil {
		t.Fatal(err)
	}
	if got := encoder.AppendObject(nil, item); !bytes.Equal(got, want) {
		t.Errorf("%s as %v: -upstream +ours\n%s", e.GVR, media, cmp.Diff(string(want), string(got)))
	}
}

func rawClient(t *testing.T, s *registrytest.Server) restclient.Interface {
	t.Helper()
	config := restclient.CopyConfig(s.ClientConfig)
	config.NegotiatedSerializer = legacyscheme.Codecs
	client, err := restclient.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestMigrationRewritesOldEncodingsOnly checks that storage migration, which writes objects as they were read,
// rewrites only objects stored in an older encoding.
func TestMigrationRewritesOldEncodingsOnly(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	const key = "/registry/horizontalpodautoscalers/default/h"
	revision := s.Store.PutAll(map[string][]byte{key: []byte(`{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v1","metadata":{"name":"h","namespace":"default","uid":"u"},` +
		`"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"minReplicas":1,"maxReplicas":3,"targetCPUUtilizationPercentage":70}}`)})
	client := s.Client.AutoscalingV2().HorizontalPodAutoscalers("default")
	put := func() string {
		t.Helper()
		h, err := client.Get(t.Context(), "h", metav1.GetOptions{})
		if err == nil {
			h, err = client.Update(t.Context(), h, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		return h.ResourceVersion
	}
	migrated := put()
	if migrated == fmt.Sprint(revision) {
		t.Error("the old encoding is still stored")
	}
	item, _, _, err := s.Store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	checkValue(t, item.Value, schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"})
	if again := put(); again != migrated {
		t.Errorf("written at %s although nothing changed since %s", again, migrated)
	}
}
