package writecosts

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/larder-io/larder/bench"
)

// lifecycle has the writes of one kind of object, one after the other.
type lifecycle struct {
	name, collection, media string
	// object makes the object of that name in a batch.
	object func(name string, batch int) metav1.Object
	writes []write
	before []request
}

// write is one kind of write.
type write struct {
	name string
	// reads has the client read the object before, as one does before an update.
	reads bool
	// quiet marks a write whose costs belong to another.
	quiet bool
	// again is how often the server may do a part of it once more: the second of two writes of an
	// object conflicts if the cache is just taking the first.
	again      int64
	request    func(path string, obj metav1.Object) request
	collection func(batch int) request // in the place of request, for all objects of a batch
}

func (l *lifecycle) objectName(b, i int) string {
	return fmt.Sprintf("%s-%d-%02d", path.Base(l.collection), b, i) + map[string]string{bench.JSON: "-json", bench.Protobuf: "-protobuf"}[l.media]
}

func (l *lifecycle) path(b, i int) string { return l.collection + "/" + l.objectName(b, i) }

// meta is the metadata of an object of a batch. Only where decodes and encodes are counted it has
// so many labels.
func meta(name string, batch int) metav1.ObjectMeta {
	labels := map[string]string{"batch": fmt.Sprint(batch)}
	for i := 1; batch <= profiled && i < labelsCounted; i++ {
		labels[fmt.Sprintf("example.com/label-%02d", i)] = "value"
	}
	return metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, Labels: labels}
}

func lifecycles() []lifecycle {
	var all []lifecycle
	for _, media := range []string{bench.JSON, bench.Protobuf} {
		all = append(all, configMaps(media), pods(media), leases(media), deployments(media))
	}
	return append(all, workers(), manyConfigMaps())
}

// Writes of any object.

func (l *lifecycle) create() write {
	return write{name: "create", request: func(path_ string, obj metav1.Object) request {
		return request{method: http.MethodPost, path: path.Dir(path_), content: l.media, body: l.encode(obj)}
	}}
}

func (l *lifecycle) update(sub string, change func(obj metav1.Object)) write {
	return write{name: "update" + sub, reads: true, request: func(path string, obj metav1.Object) request {
		change(obj)
		return request{method: http.MethodPut, path: path + sub, content: l.media, body: l.encode(obj)}
	}}
}

func patch(name, sub, kind, body string) write {
	return write{name: name + sub, request: func(path string, _ metav1.Object) request {
		return request{method: http.MethodPatch, path: path + sub, content: "application/" + kind, body: []byte(body)}
	}}
}

const annotate = `{"metadata":{"annotations":{"example.com/%s":"x"}}}`

func mergePatch() write {
	return patch("merge patch", "", "merge-patch+json", fmt.Sprintf(annotate, "merged"))
}

func strategicPatch(sub, body string) write {
	return patch("strategic merge patch", sub, "strategic-merge-patch+json", body)
}

func jsonPatch() write {
	return patch("JSON patch", "", "json-patch+json", `[{"op":"add","path":"/metadata/annotations/example.com~1added","value":"x"}]`)
}

func apply(version, kind, rest string) write {
	return write{name: "apply", request: func(path_ string, obj metav1.Object) request {
		labels, err := json.Marshal(obj.GetLabels())
		if err != nil {
			panic(err) // they are strings
		}
		body := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":%s}%s}`, version, kind, obj.GetName(), labels, rest)
		return request{method: http.MethodPatch, path: path_ + "?fieldManager=applier&force=true", content: "application/apply-patch+yaml", body: body}
	}}
}

func remove(query string) write {
	return write{name: "delete", request: func(path string, _ metav1.Object) request {
		return request{method: http.MethodDelete, path: path + query}
	}}
}

func annotated(obj metav1.Object) {
	obj.SetAnnotations(map[string]string{"example.com/updated": "x"})
}

// The kinds.

func configMap(name string, batch int) metav1.Object {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta(name, batch), Data: map[string]string{"key": "value"},
	}
}

func configMaps(media string) lifecycle {
	l := lifecycle{name: "ConfigMap " + short(media), collection: "/api/v1/namespaces/default/configmaps", media: media, object: configMap}
	l.writes = []write{
		l.create(), l.update("", annotated), jsonPatch(), mergePatch(), strategicPatch("", fmt.Sprintf(annotate, "strategic")),
		apply("v1", "ConfigMap", `,"data":{"applied":"x"}`), remove(""),
	}
	return l
}

func manyConfigMaps() lifecycle {
	l := configMaps(bench.JSON)
	created := l.create()
	created.quiet = true
	l.writes = []write{created, {name: "deletecollection", collection: func(batch int) request {
		return request{method: http.MethodDelete, path: l.collection + "?labelSelector=batch%3D" + fmt.Sprint(batch)}
	}}}
	return l
}

func pods(media string) lifecycle {
	l := lifecycle{name: "Pod " + short(media), collection: "/api/v1/namespaces/default/pods", media: media}
	l.object = func(name string, batch int) metav1.Object {
		pod := bench.WebPod(0)
		pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		pod.ObjectMeta, pod.Spec.NodeName = meta(name, batch), ""
		return pod
	}
	status, err := json.Marshal(map[string]any{"status": bench.RunningStatus(bench.WebPod(0))})
	if err != nil {
		panic(err) // it is a status
	}
	binding := write{name: "binding", request: func(path string, obj metav1.Object) request {
		return request{method: http.MethodPost, path: path + "/binding", content: l.media, body: l.encode(&corev1.Binding{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"},
			ObjectMeta: metav1.ObjectMeta{Name: obj.GetName(), Namespace: obj.GetNamespace()}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"},
		})}
	}}
	if media == bench.JSON {
		l.before = []request{{method: http.MethodPost, path: "/api/v1/namespaces/default/serviceaccounts", body: []byte(`{"metadata":{"name":"default"}}`)}}
	}
	removal := remove("?gracePeriodSeconds=0") // which updates the pod before
	removal.again = 1
	l.writes = []write{
		l.create(), binding, strategicPatch("/status", string(status)),
		l.update("/status", func(obj metav1.Object) { obj.(*corev1.Pod).Status.Message = "x" }),
		l.update("", annotated), mergePatch(), apply("v1", "Pod", `,"spec":{"containers":[{"name":"web","image":"example.com/applied"}]}`), removal,
	}
	return l
}

func leases(media string) lifecycle {
	l := lifecycle{name: "Lease " + short(media), collection: "/apis/coordination.k8s.io/v1/namespaces/default/leases", media: media}
	l.object = func(name string, batch int) metav1.Object {
		return &coordinationv1.Lease{
			TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, ObjectMeta: meta(name, batch),
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &name},
		}
	}
	renewed := l.update("", func(obj metav1.Object) {
		now := metav1.NowMicro()
		obj.(*coordinationv1.Lease).Spec.RenewTime = &now
	})
	l.writes = []write{l.create(), renewed, remove("")}
	return l
}

func deployments(media string) lifecycle {
	l := lifecycle{name: "Deployment " + short(media), collection: "/apis/apps/v1/namespaces/default/deployments", media: media}
	l.object = func(name string, batch int) metav1.Object {
		labels := map[string]string{"app": name}
		return &appsv1.Deployment{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta(name, batch),
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: bench.WebPod(0).Spec},
			},
		}
	}
	l.writes = []write{
		l.create(), l.update("", annotated), l.update("/status", func(obj metav1.Object) { obj.(*appsv1.Deployment).Status.ObservedGeneration = 1 }),
		mergePatch(), strategicPatch("", fmt.Sprintf(annotate, "strategic")), apply("apps/v1", "Deployment", `,"spec":{"replicas":2}`), remove(""),
	}
	return l
}

func workers() lifecycle {
	l := lifecycle{name: "custom resource", collection: "/apis/example.com/v1/namespaces/default/workers", media: bench.JSON}
	l.object = func(name string, batch int) metav1.Object {
		m := meta(name, batch)
		worker := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Worker", "spec": map[string]any{"replicas": int64(1), "image": "x"},
		}}
		worker.SetName(name)
		worker.SetNamespace(m.Namespace)
		worker.SetLabels(m.Labels)
		return worker
	}
	l.before = []request{{method: http.MethodPost, path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: []byte(
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"workers.example.com"},"spec":{
			"group":"example.com","scope":"Namespaced","names":{"plural":"workers","kind":"Worker"},
			"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
				"spec":{"type":"object","properties":{"replicas":{"type":"integer","minimum":0},"image":{"type":"string"}}},
				"status":{"type":"object","properties":{"phase":{"type":"string"}}}}}}}]}}`)}}
	set := func(field, key, value string) func(metav1.Object) {
		return func(obj metav1.Object) {
			obj.(*unstructured.Unstructured).Object[field] = map[string]any{key: value}
		}
	}
	l.writes = []write{
		l.create(), l.update("", annotated), l.update("/status", set("status", "phase", "Running")), mergePatch(), jsonPatch(),
		apply("example.com/v1", "Worker", `,"spec":{"replicas":2}`), remove(""),
	}
	return l
}

// short names a media type.
func short(media string) string {
	return map[string]string{bench.JSON: "JSON", bench.Protobuf: "protobuf"}[media]
}
