package encoding_test

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/storage"
)

// gvr names a resource of the built-in groups.
func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

// planted writes a value to the store as another program would, and returns the cached object.
func planted(t *testing.T, s *registrytest.Server, v *registry.View, key, value string) *cache.Object {
	t.Helper()
	revision := s.Store.PutAll(map[string][]byte{key: []byte(value)})
	if err := v.Resource.Cache.Wait(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	rest := key[strings.Index(key, "default/"):]
	o := v.Resource.Cache.Snapshot().Get(rest)
	if o == nil || o.Err() != nil || o.Revision() != revision {
		t.Fatalf("%s at %d: cached %+v", key, revision, o)
	}
	return o
}

// jsonItem returns o as an item of a JSON list.
func jsonItem(t *testing.T, v *registry.View, o *cache.Object) string {
	t.Helper()
	item, err := v.Encoder(encoding.JSON, encoding.Full).Item(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return string(item)
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s is not in %s", part, text)
		}
	}
}

func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("%s is in %s", part, text)
		}
	}
}

const oldPod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"old","namespace":"default"},"spec":{"containers":[{"name":"c","image":"i"}]}}`

// TestReadsHaveNewDefaults checks that an object stored before a field had a default has the default in every read.
func TestReadsHaveNewDefaults(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	v := s.Registry.Endpoint(gvr("", "v1", "pods"), "").View
	events, err := s.Client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	o := planted(t, s, v, "/registry/pods/default/old", oldPod)
	contains(t, jsonItem(t, v, o), `"restartPolicy":"Always"`, `"dnsPolicy":"ClusterFirst"`, `"terminationGracePeriodSeconds":30`, `"imagePullPolicy":"Always"`)
	got, err := s.Client.CoreV1().Pods("default").Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	event, _ := (<-events.ResultChan()).Object.(*corev1.Pod)
	for how, pod := range map[string]*corev1.Pod{"get": got, "list": &list.Items[0], "watch": event} {
		if pod == nil || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.Spec.SchedulerName != "default-scheduler" {
			t.Errorf("%s: got %+v, want a pod with defaults", how, pod)
		}
	}
}

// TestReadsHaveChangesOfConversion checks that served objects have the changes that upstream's conversion makes besides
// defaults: fields that set each other, corrected values, unknown fields of newer servers dropped.
func TestReadsHaveChangesOfConversion(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	v := s.Registry.Endpoint(gvr("", "v1", "pods"), "").View
	o := planted(t, s, v, "/registry/pods/default/old", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"old","namespace":"default",`+
		`"annotations":{"pod.beta.kubernetes.io/init-containers":"[]","kept":"x"}},"spec":{"terminationGracePeriodSeconds":-5,"containers":[]},"status":{"podIP":"10.0.0.1"}}`)
	item := jsonItem(t, v, o)
	contains(t, item, `"podIPs":[{"ip":"10.0.0.1"}]`, `"terminationGracePeriodSeconds":1,`, `"annotations":{"kept":"x"}`)

	value, err := v.Resource.Codec().EncodeStored(podOf(t, v, oldPod))
	if err != nil {
		t.Fatal(err)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(value[4:]); err != nil {
		t.Fatal(err)
	}
	envelope.Raw = append(envelope.Raw, 0xc2, 0x3e, 6, 's', 'e', 'c', 'r', 'e', 't') // field 1000
	newer, err := envelope.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	clean := registrytest.Object(v.Resource, "default/old", value, 9)
	dirty := registrytest.Object(v.Resource, "default/old", append([]byte("k8s\x00"), newer...), 9)
	if clean.Err() != nil || dirty.Err() != nil || !bytes.Equal(clean.Body(), dirty.Body()) {
		t.Errorf("an unknown field is served: %q, %v", dirty.Body(), dirty.Err())
	}
}

// TestEncodingErrorsMatchUpstream checks that clients get encoding/json's error for an object without JSON.
func TestEncodingErrorsMatchUpstream(t *testing.T) {
	v := registrytest.New(t, nil).Registry.Endpoint(gvr("", "v1", "pods"), "").View
	pod := podOf(t, v, oldPod)
	fields := []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec`)}}
	pod.(metav1.Object).SetManagedFields(fields)
	value, err := v.Resource.Codec().EncodeStored(pod)
	if err != nil {
		t.Fatal(err)
	}
	_, want := json.Marshal(fields[0])
	o := registrytest.Object(v.Resource, "default/old", value, 9)
	for _, projection := range []encoding.Projection{encoding.Full, encoding.Partial} {
		if _, err := v.Encoder(encoding.JSON, projection).Item(t.Context(), o); err == nil || err.Error() != want.Error() {
			t.Errorf("projection %d: error %v, want upstream's %v", projection, err, want)
		}
	}
}

func podOf(t *testing.T, v *registry.View, value string) runtime.Object {
	t.Helper()
	obj, err := v.Resource.Codec().Read([]byte(value), 0)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestReadsAndEventsAreDecorated checks that served objects, also those in live events, have the changes that a
// storage's decorator makes.
func TestReadsAndEventsAreDecorated(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	services := s.Registry.Endpoint(gvr("", "v1", "services"), "").View
	events, err := s.Client.CoreV1().Services("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=old"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	o := planted(t, s, services, "/registry/services/specs/default/old", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"old","namespace":"default"},`+
		`"spec":{"clusterIP":"10.0.0.77","type":"ClusterIP","ports":[{"port":80}]}}`)
	contains(t, jsonItem(t, services, o), `"clusterIPs":["10.0.0.77"]`, `"ipFamilies":["IPv4"]`, `"ipFamilyPolicy":"SingleStack"`)
	event, _ := (<-events.ResultChan()).Object.(*corev1.Service)
	if event == nil || len(event.Spec.ClusterIPs) != 1 {
		t.Errorf("live event %+v lacks the decoration", event)
	}
	o = planted(t, s, services, "/registry/services/specs/default/out", `{"kind":"Service","apiVersion":"v1","metadata":{"name":"out","namespace":"default"},`+
		`"spec":{"type":"ExternalName","externalName":"x.example","internalTrafficPolicy":"Cluster"}}`)
	lacks(t, jsonItem(t, services, o), "internalTrafficPolicy")
	claims := s.Registry.Endpoint(gvr("", "v1", "persistentvolumeclaims"), "").View
	o = planted(t, s, claims, "/registry/persistentvolumeclaims/default/old", `{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"old","namespace":"default"},`+
		`"spec":{"dataSource":{"kind":"PersistentVolumeClaim","name":"from"}}}`)
	contains(t, jsonItem(t, claims, o), `"dataSourceRef":{"apiGroup":null,"kind":"PersistentVolumeClaim","name":"from"}`)
}

// TestServedVersionsAreConvertedFromTheSameBytes checks that all versions of a stored object are converted from the
// same bytes.
func TestServedVersionsAreConvertedFromTheSameBytes(t *testing.T) {
	s := registrytest.New(t, nil)
	for _, pair := range [][2]schema.GroupVersionResource{
		{gvr("autoscaling", "v1", "horizontalpodautoscalers"), gvr("autoscaling", "v2", "horizontalpodautoscalers")},
		{gvr("", "v1", "events"), gvr("events.k8s.io", "v1", "events")},
	} {
		one, two := s.Registry.Endpoint(pair[0], "").View, s.Registry.Endpoint(pair[1], "").View
		if one.Resource != two.Resource {
			t.Errorf("%s and %s have separate caches", pair[0], pair[1])
		}
		sameAsUpstream(t, one, 12)
		sameAsUpstream(t, two, 12)
	}
	s.Start(t)
	v1 := s.Registry.Endpoint(gvr("autoscaling", "v1", "horizontalpodautoscalers"), "").View
	v2 := s.Registry.Endpoint(gvr("autoscaling", "v2", "horizontalpodautoscalers"), "").View
	o := planted(t, s, v1, "/registry/horizontalpodautoscalers/default/h", `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v1",`+
		`"metadata":{"name":"h","namespace":"default"},"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d"},"maxReplicas":3,"targetCPUUtilizationPercentage":70}}`)
	contains(t, jsonItem(t, v1, o), `"targetCPUUtilizationPercentage":70`)
	contains(t, jsonItem(t, v2, o), `"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":70}}}]`)
	lacks(t, jsonItem(t, v2, o), "targetCPUUtilizationPercentage")
}

// sameAsUpstream compares random objects of a view with those of upstream's encoders, in all media types and
// projections.
func sameAsUpstream(t *testing.T, v *registry.View, seeds int64, projections ...encoding.Projection) {
	t.Helper()
	if projections == nil {
		projections = []encoding.Projection{encoding.Full}
	}
	for seed := range seeds {
		s := registrytest.NewSample(t, v.Resource, 100+seed)
		for _, media := range []encoding.MediaType{encoding.JSON, encoding.Protobuf} {
			for _, projection := range projections {
				testObject(t, v, v.Encoder(media, projection), newUpstream(v, media, projection), s)
			}
		}
	}
}

// TestDeletedObjectHasTheRevisionOfItsDeletion checks that a deleted object is sent with the revision of its
// deletion, and that templates within it, which have metadata too, are not changed.
func TestDeletedObjectHasTheRevisionOfItsDeletion(t *testing.T) {
	s := registrytest.New(t, nil)
	for _, r := range []schema.GroupVersionResource{
		gvr("apps", "v1", "statefulsets"), gvr("apps", "v1", "deployments"), gvr("batch", "v1", "cronjobs"),
		gvr("", "v1", "podtemplates"), gvr("", "v1", "pods"), gvr("", "v1", "replicationcontrollers"),
	} {
		sameAsUpstream(t, s.Registry.Endpoint(r, "").View, 12)
	}
	v := s.Registry.Endpoint(gvr("", "v1", "podtemplates"), "").View
	o := registrytest.Object(v.Resource, "default/x", []byte(`{"kind":"PodTemplate","apiVersion":"v1","metadata":{"name":"x","namespace":"default","uid":"u","generation":4},`+
		`"template":{"metadata":{"uid":"v","resourceVersion":"41"}}}`), 42)
	for _, media := range []encoding.MediaType{encoding.JSON, encoding.Protobuf} {
		item, err := v.Encoder(media, encoding.Full).ItemAt(o, 43)
		if err != nil {
			t.Fatal(err)
		}
		for revision, want := range map[string]int{"41": 1, "42": 0, "43": 1} {
			if n := bytes.Count(item, []byte(revision)); n != want {
				t.Errorf("media type %d: %q occurs %d times, want %d: %q", media, revision, n, want, item)
			}
		}
	}
}

// TestItemsHaveNoKindAndObjectsDo checks that single objects have a kind and apiVersion, and list items do not.
func TestItemsHaveNoKindAndObjectsDo(t *testing.T) {
	s := registrytest.New(t, nil)
	v := s.Registry.Endpoint(gvr("", "v1", "configmaps"), "").View
	o := registrytest.Object(v.Resource, "default/x", []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","namespace":"default"}}`), 7)
	f := v.Encoder(encoding.JSON, encoding.Full)
	lacks(t, jsonItem(t, v, o), "kind", "apiVersion")
	contains(t, string(f.AppendObject(nil, []byte(jsonItem(t, v, o)))), `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"`)
	contains(t, string(f.AppendFrame(nil, "ADDED", []byte(jsonItem(t, v, o)))), `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"`)
	f = v.Encoder(encoding.Protobuf, encoding.Full)
	item, err := f.Item(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(f.AppendObject(nil, item)[4:]); err != nil {
		t.Fatal(err)
	}
	if envelope.Kind != "ConfigMap" || envelope.APIVersion != "v1" || !bytes.Equal(envelope.Raw, item) {
		t.Errorf("envelope %+v around %q", envelope, item)
	}
	sameAsUpstream(t, v, 12)
}

// TestAwkwardKindsMatchEncodingJSON checks kinds whose JSON a transcoder of protobuf could get wrong.
func TestAwkwardKindsMatchEncodingJSON(t *testing.T) {
	s := registrytest.New(t, nil)
	for _, r := range []schema.GroupVersionResource{
		gvr("", "v1", "pods"), gvr("", "v1", "secrets"), gvr("", "v1", "events"), gvr("coordination.k8s.io", "v1", "leases"),
		gvr("policy", "v1", "poddisruptionbudgets"), gvr("", "v1", "resourcequotas"), gvr("apps", "v1", "controllerrevisions"),
	} {
		sameAsUpstream(t, s.Registry.Endpoint(r, "").View, 12)
	}
	v := s.Registry.Endpoint(gvr("", "v1", "pods"), "").View
	o := registrytest.Object(v.Resource, "default/x", []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x","namespace":"default","annotations":{"z":"<a&b>","a":"\u2028"}},`+
		`"spec":{"containers":null,"overhead":{"memory":"0.5Gi","cpu":"1500m"}}}`), 7)
	contains(t, jsonItem(t, v, o), `"annotations":{"a":"\u2028","z":"\u003ca\u0026b\u003e"}`, `"containers":null`, `"overhead":{"cpu":"1500m","memory":"512Mi"}`)

}

// TestPartialMetadataMatchUpstream checks that a PartialObjectMetadata has the metadata of upstream's internal object,
// which for some kinds differ from those of the stored version.
func TestPartialMetadataMatchUpstream(t *testing.T) {
	s := registrytest.New(t, nil)
	for _, resource := range []string{"deployments", "daemonsets", "statefulsets", "replicasets"} {
		sameAsUpstream(t, s.Registry.Endpoint(gvr("apps", "v1", resource), "").View, 12, encoding.Partial, encoding.PartialV1beta1)
	}
}

// TestManagedFieldsAreInEveryRead checks that every read has managedFields.
func TestManagedFieldsAreInEveryRead(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "default"}, Data: map[string]string{"k": "v"}}
	if _, err := s.Client.CoreV1().ConfigMaps("default").Create(t.Context(), config, metav1.CreateOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	v := s.Registry.Endpoint(gvr("", "v1", "configmaps"), "").View
	o, err := v.Resource.Get(t.Context(), storage.Scope{Namespace: "default", Name: "m"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, media := range []encoding.MediaType{encoding.JSON, encoding.Protobuf} {
		for _, projection := range []encoding.Projection{encoding.Full, encoding.Partial, encoding.PartialV1beta1} {
			item, err := v.Encoder(media, projection).Item(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			contains(t, string(item), "somebody", `"f:data":{".":{},"f:k":{}}`)
		}
	}
}

// TestClientsMayMutateReturnedObjects checks that changes of a returned object are not visible to other callers.
func TestClientsMayMutateReturnedObjects(t *testing.T) {
	s := registrytest.New(t, nil)
	s.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := s.Registry.Endpoint(gvr("apps", "v1", "deployments"), "")
	value := registrytest.NewSample(t, e.View.Resource, 5).Value
	revision := s.Store.PutAll(map[string][]byte{"/registry/deployments/default/d": value})
	if err := e.View.Resource.Cache.Wait(ctx, revision); err != nil {
		t.Fatal(err)
	}
	o := e.View.Resource.Cache.Snapshot().Get("default/d")
	before := bytes.Clone(o.Body())
	want := jsonItem(t, e.View, o)
	store := e.View.Resource.Storage()
	for range 3 {
		list := e.View.Resource.Codec().NewList()
		if err := store.GetList(ctx, "/deployments/", apistorage.ListOptions{Predicate: apistorage.Everything, Recursive: true}, list); err != nil {
			t.Fatal(err)
		}
		scribble(reflect.ValueOf(list))
		obj := e.View.Resource.Codec().New()
		if err := store.Get(ctx, "/deployments/default/d", apistorage.GetOptions{}, obj); err != nil {
			t.Fatal(err)
		}
		scribble(reflect.ValueOf(obj))
		served, err := s.Client.AppsV1().Deployments("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		served.Items[0].Spec = appsv1.DeploymentSpec{}
		if !bytes.Equal(o.Body(), before) || jsonItem(t, e.View, o) != want {
			t.Fatal("a change of a returned object changed the cache")
		}
	}
	again := registrytest.Object(e.View.Resource, "default/d", value, revision)
	if !bytes.Equal(again.Body(), before) {
		t.Error("the cache differs from the store")
	}
}

// scribble changes every byte slice, map, pointer and string that v reaches.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			scribble(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				scribble(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString("scribbled")
		}
	case reflect.Uint8:
		if v.CanSet() {
			v.SetUint(v.Uint() ^ 0xff)
		}
	}
}
