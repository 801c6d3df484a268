package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/openapi"
)

const (
	defaultNS   = "/api/v1/namespaces/default/"
	deployments = "/apis/apps/v1/namespaces/default/deployments"
)

func patch(kind, path, body string) call {
	return call{method: "PATCH", path: path, body: body, header: map[string]string{"Content-Type": "application/" + kind}}
}

func post(path, body string) call { return call{method: "POST", path: path, body: body} }
func put(path, body string) call  { return call{method: "PUT", path: path, body: body} }
func get(path string) call        { return call{method: "GET", path: path} }
func del(path string) call        { return call{method: "DELETE", path: path} }

const deployment = `{"metadata":{"name":"d","labels":{"app":"d"}},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"d"}},"template":{"metadata":{"labels":{"app":"d"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`

// scripts are sent to Larder and to upstream's handlers, each with its own store. All responses must be equal.
var scripts = map[string][]call{
	"a life": {
		post("/api/v1/namespaces", `{"metadata":{"name":"n"}}`),
		post("/api/v1/namespaces/n/configmaps", `{"metadata":{"name":"a"},"data":{"k":"v"}}`),
		post("/api/v1/namespaces/n/configmaps", `{"metadata":{"name":"a"}}`),
		get("/api/v1/namespaces/n/configmaps/a"),
		put("/api/v1/namespaces/n/configmaps/a", `{"metadata":{"name":"a"},"data":{"k":"w"}}`),
		put("/api/v1/namespaces/n/configmaps/b", `{"metadata":{"name":"b"}}`),
		patch("merge-patch+json", "/api/v1/namespaces/n/configmaps/a", `{"data":{"l":"x"}}`),
		patch("json-patch+json", "/api/v1/namespaces/n/configmaps/a", `[{"op":"replace","path":"/data/l","value":"y"}]`),
		patch("strategic-merge-patch+json", "/api/v1/namespaces/n/configmaps/a", `{"data":{"k":null}}`),
		patch("apply-patch+yaml", "/api/v1/namespaces/n/configmaps/a?fieldManager=m&force=true", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {l: z}\n"),
		del("/api/v1/namespaces/n/configmaps/a"),
		get("/api/v1/namespaces/n/configmaps/a"),
		del("/api/v1/namespaces/n/configmaps"),
		del("/api/v1/namespaces/n"),
		get("/api/v1/namespaces/n"),
		put("/api/v1/namespaces/n/finalize", `{"metadata":{"name":"n"},"spec":{"finalizers":[]}}`),
	},
	"server-side apply": {
		patch("apply-patch+yaml", deployments+"/d?fieldManager=one", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n"),
		patch("apply-patch+yaml", deployments+"/d?fieldManager=one", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 1, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n"),
		patch("apply-patch+yaml", deployments+"/d?fieldManager=two", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 3}\n"),
		patch("apply-patch+yaml", deployments+"/d?fieldManager=two&force=true", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 3, template: {spec: {containers: [{name: x, image: i}]}}}\n"),
		patch("apply-patch+yaml", deployments+"/d?fieldManager=one", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}\n"),
		patch("apply-patch+yaml", deployments+"/d", "apiVersion: apps/v1\nkind: Deployment\n"),
		patch("apply-patch+yaml", deployments+"/d?fieldManager=one", "apiVersion: apps/v1\nkind: StatefulSet\n"),
		patch("apply-patch+yaml", deployments+"/d/status?fieldManager=controller", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nstatus: {observedGeneration: 1}\n"),
		patch("apply-patch+yaml", deployments+"/d/scale?fieldManager=scaler&force=true", "apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {name: d, namespace: default}\nspec: {replicas: 7}\n"),
		get(deployments + "/d"),
	},
	"subresources": {
		post(deployments, deployment),
		get(deployments + "/d/scale"),
		put(deployments+"/d/scale", `{"metadata":{"name":"d","namespace":"default"},"spec":{"replicas":5}}`),
		patch("merge-patch+json", deployments+"/d/scale", `{"spec":{"replicas":6}}`),
		patch("merge-patch+json", deployments+"/d/status", `{"spec":{"replicas":1},"status":{"replicas":6}}`),
		put(deployments+"/d/status", deployment),
		get(deployments + "/d/status"),
		post(defaultNS+"pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`),
		post(defaultNS+"pods/p/binding", `{"target":{"kind":"Node","name":"n"}}`),
		post(defaultNS+"pods/p/binding", `{"target":{"kind":"Node","name":"m"}}`),
		post(defaultNS+"bindings", `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"m"}}`),
		patch("strategic-merge-patch+json", defaultNS+"pods/p/status", `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`),
		patch("strategic-merge-patch+json", defaultNS+"pods/p/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"e","image":"i"}]}}`),
		patch("strategic-merge-patch+json", defaultNS+"pods/p/resize", `{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]}}`),
		post(defaultNS+"pods/p/eviction", `{"metadata":{"name":"p"}}`),
		post(defaultNS+"serviceaccounts", `{"metadata":{"name":"s"}}`),
	},
	"names and namespaces": {
		post(defaultNS+"configmaps", `{"metadata":{"generateName":"g-","name":"given"}}`),
		post(defaultNS+"configmaps", `{"metadata":{"name":"a","namespace":"other"}}`),
		post("/api/v1/namespaces/missing/configmaps", `{"metadata":{"name":"a"}}`),
		post(defaultNS+"configmaps", `{"metadata":{"name":"Not_A_Name"}}`),
		post(defaultNS+"configmaps", `{"metadata":{}}`),
		put(defaultNS+"configmaps/x", `{"metadata":{"name":"y"}}`),
		put(defaultNS+"configmaps/x", `{"metadata":{"name":"x","namespace":"other"}}`),
		put("/apis/coordination.k8s.io/v1/namespaces/default/leases/l", `{"metadata":{"name":"l"},"spec":{"holderIdentity":"me"}}`),
	},
	"dry run": {
		post(defaultNS+"configmaps?dryRun=All", `{"metadata":{"name":"a"}}`),
		get(defaultNS + "configmaps/a"),
		post(defaultNS+"configmaps", `{"metadata":{"name":"a"}}`),
		patch("merge-patch+json", defaultNS+"configmaps/a?dryRun=All", `{"data":{"k":"v"}}`),
		del(defaultNS + "configmaps/a?dryRun=All"),
		get(defaultNS + "configmaps/a"),
		{method: "DELETE", path: defaultNS + "configmaps/a", body: `{"dryRun":["All"]}`},
		post(defaultNS+"configmaps?dryRun=None", `{"metadata":{"name":"b"}}`),
		{method: "DELETE", path: defaultNS + "configmaps/a?dryRun=All", body: `{"kind":"DeleteOptions","apiVersion":"v1","dryRun":["None"]}`},
	},
	"deletion": {
		post(defaultNS+"configmaps", `{"metadata":{"name":"a","labels":{"x":"1"}}}`),
		post(defaultNS+"configmaps", `{"metadata":{"name":"b","labels":{"x":"2"}}}`),
		post(defaultNS+"configmaps", `{"metadata":{"name":"c","finalizers":["example.com/keep"]}}`),
		{method: "DELETE", path: defaultNS + "configmaps/a", body: `{"preconditions":{"uid":"other"}}`},
		{method: "DELETE", path: defaultNS + "configmaps/a", body: `{"preconditions":{"resourceVersion":"1"}}`},
		{method: "DELETE", path: defaultNS + "configmaps/c", body: `{"propagationPolicy":"Foreground"}`},
		del(defaultNS + "configmaps/c"),
		{method: "DELETE", path: defaultNS + "configmaps?labelSelector=x%3D1"},
		get(defaultNS + "configmaps/a"),
		get(defaultNS + "configmaps/b"),
		{method: "DELETE", path: defaultNS + "configmaps?fieldSelector=metadata.name%3Db"},
		{method: "DELETE", path: defaultNS + "configmaps?labelSelector=!!"},
		patch("json-patch+json", defaultNS+"configmaps/c", `[{"op":"remove","path":"/metadata/finalizers"}]`),
		get(defaultNS + "configmaps/c"),
		post(defaultNS+"pods", `{"metadata":{"name":"p"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`),
		{method: "DELETE", path: defaultNS + "pods/p?gracePeriodSeconds=5"},
		{method: "DELETE", path: defaultNS + "pods/p", body: `{"gracePeriodSeconds":0}`},
	},
	"versions and warnings": {
		post(defaultNS+"endpoints", `{"metadata":{"name":"e"}}`),
		post("/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", `{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}`),
		patch("merge-patch+json", "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h", `{"spec":{"maxReplicas":4}}`),
		post("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"h"}}`),
		post("/apis/events.k8s.io/v1/namespaces/default/events", `{"metadata":{"name":"e"},"eventTime":"2026-01-02T03:04:05.000006Z","reportingController":"c","reportingInstance":"i","action":"a","reason":"r","type":"Normal","regarding":{"kind":"Pod","namespace":"default","name":"p"}}`),
		post(defaultNS+"events", `{"metadata":{"name":"f"},"reason":"r","involvedObject":{"kind":"Pod","namespace":"default","name":"p"}}`),
		post(defaultNS+"pods", `{"metadata":{"name":"w","annotations":{"container.apparmor.security.beta.kubernetes.io/c":"runtime/default"}},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":1},{"containerPort":1}]}]}}`),
	},
	"reviews": {
		post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`),
		post("/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews", `{"metadata":{"namespace":"default"},"spec":{"user":"u","resourceAttributes":{"namespace":"default","verb":"get","resource":"pods"}}}`),
		post("/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`),
	},
	"connections": {
		post(defaultNS+"pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`),
		get(defaultNS + "pods/p/log"),
		get(defaultNS + "pods/p/log?container=x"),
		get(defaultNS + "pods/p/log?tailLines=-1"),
		get(defaultNS + "pods/missing/log"),
		post(defaultNS+"pods/p/exec?command=ls", ""),
		post(defaultNS+"pods/p/exec?container=x&command=ls", ""),
		post(defaultNS+"pods/p/attach?stdin=true", ""),
		post(defaultNS+"pods/p/portforward?ports=80", ""),
		del(defaultNS + "pods/p/exec"),
		get(defaultNS + "pods/p/proxy"),
		get(defaultNS + "pods/p/proxy/metrics/x?y=z"),
		patch("merge-patch+json", defaultNS+"pods/p/status", `{"status":{"podIP":"127.0.0.1","podIPs":[{"ip":"127.0.0.1"}]}}`),
		get(defaultNS + "pods/p/proxy/metrics"),
		get(defaultNS + "pods/http:p:1:2/proxy/"),
		post(defaultNS+"services", `{"metadata":{"name":"s"},"spec":{"clusterIP":"None","ports":[{"port":80}]}}`),
		get(defaultNS + "services/s:80/proxy/"),
		post("/api/v1/nodes", `{"metadata":{"name":"n"}}`),
		get("/api/v1/nodes/n/proxy/stats"),
		{method: "BREW", path: "/api/v1/nodes/n/proxy/stats"},
	},
	"services": {
		post(defaultNS+"services", `{"metadata":{"name":"none"},"spec":{"clusterIP":"None","ports":[{"port":80}]}}`),
		post(defaultNS+"services", `{"metadata":{"name":"ext"},"spec":{"type":"ExternalName","externalName":"example.com"}}`),
		patch("strategic-merge-patch+json", defaultNS+"services/none", `{"spec":{"ports":[{"port":81,"name":"b"},{"port":80,"name":"a"}]}}`),
		del(defaultNS + "services/none"),
	},
}

// TestScriptedWritesMatchUpstream sends fixed sequences of writes to Larder and to upstream's handlers.
func TestScriptedWritesMatchUpstream(t *testing.T) {
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			ours, _ := newLarder(t)
			theirs := newUpstream(t)
			for _, s := range []*side{ours, theirs} {
				s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
			}
			for i, c := range script {
				t.Run(fmt.Sprintf("%d %s %s", i, c.method, c.path), func(t *testing.T) {
					compare(t, ours.call(t, c), theirs.call(t, c))
				})
			}
		})
	}
}

// TestWritesInEveryMediaType sends and receives one object in each pair of types.
func TestWritesInEveryMediaType(t *testing.T) {
	s, _ := newLarder(t)
	s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	types := legacyscheme.Codecs.SupportedMediaTypes()
	for _, in := range types {
		for _, out := range types {
			name := strings.ReplaceAll(in.MediaTypeSubType+"-"+out.MediaTypeSubType, ".", "-")
			t.Run(name, func(t *testing.T) {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": name}}
				body, err := runtime.Encode(legacyscheme.Codecs.EncoderForVersion(in.Serializer, corev1.SchemeGroupVersion), object)
				if err != nil {
					t.Fatal(err)
				}
				a := s.must(t, call{method: "POST", path: defaultNS + "configmaps", body: string(body), header: map[string]string{
					"Content-Type": in.MediaType, "Accept": out.MediaType,
				}})
				if got := a.header.Get("Content-Type"); got != out.MediaType {
					t.Errorf("got Content-Type %q, want %q", got, out.MediaType)
				}
				back, err := runtime.Decode(legacyscheme.Codecs.UniversalDeserializer(), a.body)
				if err != nil {
					t.Fatal(err)
				}
				if m, ok := back.(*corev1.ConfigMap); !ok || m.Data["k"] != name || m.ResourceVersion == "" {
					t.Errorf("got %+v, want the written ConfigMap", back)
				}
			})
		}
	}
}

// TestConvertersOfAllGroups checks that the converter of each group has the schema of its first kind.
func TestConvertersOfAllGroups(t *testing.T) {
	m := openapi.NewModels()
	_, s := newLarder(t)
	for _, g := range s.config.Registry.Groups() {
		converter := m.Converter(g)
		object, err := g.Info.Scheme.New(g.Versions[0].Endpoints[0].GVK)
		if err != nil {
			t.Fatal(err)
		}
		object.GetObjectKind().SetGroupVersionKind(g.Versions[0].Endpoints[0].GVK)
		if _, err := converter.ObjectToTyped(object); err != nil {
			t.Errorf("%q: %v", g.Name, err)
		}
	}
}

// TestApplyRecordsManagers follows the owners of a field through updates by others.
func TestApplyRecordsManagers(t *testing.T) {
	s, _ := newLarder(t)
	s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	s.must(t, patch("apply-patch+yaml", defaultNS+"configmaps/a?fieldManager=one", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n"))
	conflict := s.call(t, patch("apply-patch+yaml", defaultNS+"configmaps/a?fieldManager=two", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: w}\n"))
	var status metav1.Status
	decode(t, conflict.body, &status)
	if conflict.code != http.StatusConflict || status.Reason != metav1.StatusReasonConflict ||
		status.Message != `Apply failed with 1 conflict: conflict with "one": .data.k` ||
		status.Details.Causes[0] != (metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: `conflict with "one"`, Field: ".data.k"}) {
		t.Errorf("got status %d and %s, want the conflict", conflict.code, conflict.body)
	}
	a := s.must(t, patch("merge-patch+json", defaultNS+"configmaps/a?fieldManager=three", `{"data":{"k":"x"}}`))
	var object metav1.PartialObjectMetadata
	decode(t, a.body, &object)
	owners := make(map[string]string)
	for _, f := range object.ManagedFields {
		owners[f.Manager] = string(f.Operation) + string(f.FieldsV1.GetRawBytes())
	}
	want := map[string]string{"three": `Update{"f:data":{"f:k":{}}}`}
	if got, _ := json.Marshal(owners); string(got) != mustJSON(t, want) {
		t.Errorf("owners: %s", got)
	}
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
