package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"pgregory.net/rapid"
)

// writtenKind is a kind whose objects a comparison of writes writes.
type writtenKind struct {
	group, version, kind, resource string
	global                         bool
	keys                           string // below which objects are stored

	object       string   // a valid object without its identity
	fields       []field  // its optional fields
	subresources []string // that are updated
	creates      map[string]string
}

// GoString is the kind in rapid's words.
func (k *writtenKind) GoString() string { return k.apiVersion() + " " + k.kind }

// GoString is the field in rapid's words.
func (f field) GoString() string { return f.path }

// field is a field and values for it, as JSON, good and bad ones.
type field struct {
	path      string
	good, bad []string
}

const (
	containerValues = `[{"name":"c","image":"i"}]|[{"name":"c","image":"j"},{"name":"d","image":"i"}]|[{"name":"c","env":[{"name":"E","value":"1"},{"name":"F"}]}]|[{"name":"d","image":"k","ports":[{"containerPort":80},{"containerPort":80,"protocol":"UDP"}]}]||[{"$patch":"delete","name":"c"}]|[{"$patch":"replace"},{"name":"e","image":"i"}]|[{"image":"nameless"}]|[{"name":"c","image":"i"},{"name":"c","image":"j"}]|[{"name":"c","imag":"i","env":[{"name":"E","valu":"x"}]}]|"c"|null|[]`
	conditionValues = `[{"type":"Ready","status":"True"}]|[{"type":"Ready","status":"False","reason":"R","lastTransitionTime":"2020-01-01T00:00:00Z"}]|[{"type":"Other","status":"True"}]||[{"$patch":"delete","type":"Ready"}]|[{"status":"True"}]|null|{}`
)

// values makes a field of a list of values; the bad ones come after two bars.
func values(path, list string) field {
	good, bad, _ := strings.Cut(list, "||")
	f := field{path: path}
	if good != "" {
		f.good = strings.Split(good, "|")
	}
	if bad != "" {
		f.bad = strings.Split(bad, "|")
	}
	return f
}

// drawFrom draws one of fields and a value of it.
func (t requests) drawFrom(fields []field) (path string, value any) {
	bad := t.one(8, "bad")
	var possible []field
	for _, f := range fields {
		if bad && f.bad != nil || !bad && f.good != nil {
			possible = append(possible, f)
		}
	}
	f := rapid.SampledFrom(possible).Draw(t.T, "field")
	from := f.good
	if bad {
		from = f.bad
	}
	return f.path, parsed(rapid.SampledFrom(from).Draw(t.T, "value"))
}

// writtenKinds returns kinds of all sorts that the handlers of writes distinguish: of one and of several versions,
// whose updates create, with and without a status, with subresources of other kinds.
func writtenKinds() []*writtenKind {
	return []*writtenKind{
		{version: "v1", kind: "ConfigMap", resource: "configmaps", keys: "configmaps", object: `{"data":{"k":"v"}}`, fields: []field{
			values("data.k", `"v"|"w"|"x"||null|1`), values("data.l", `"v"|"w"|"<&>\u2028"|null||{"no":"text"}`), values("data", `{"z":"1"}|null||"none"|{"$patch":"replace","y":"2"}|{"$retainKeys":["k"],"k":"r"}`),
			values("binaryData.b", `"AAEC"|"AAED"||"!!"|null`), values("immutable", `false||true|"yes"`), values("dat.k", `||"unknown"`), values("Data.k", `||"case"`),
		}},
		{version: "v1", kind: "Secret", resource: "secrets", keys: "secrets", object: `{"type":"Opaque","data":{"k":"djE="}}`, fields: []field{
			values("stringData.s", `"v"|"w"|null`), values("data.k", `"djI="|null||"?"`), values("type", `"Opaque"||"kubernetes.io/tls"|""`), values("immutable", `false||true`),
		}},
		{version: "v1", kind: "Pod", resource: "pods", keys: "pods", object: `{"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"0.1"}}}]}}`, fields: []field{
			values("spec.containers", containerValues), values("spec.nodeName", `"n1"|""`), values("spec.activeDeadlineSeconds", `5||-1|"5"`),
			values("spec.tolerations", `[{"key":"k","operator":"Exists"}]|[{"operator":"Exists"}]||null`), values("spec.ephemeralContainers", `||[{"name":"e","image":"i"}]`),
			values("spec.unknown", `||1|{"a":[1]}`), values("status.phase", `"Running"|"Failed"||1`), values("status.podIP", `"10.0.0.1"|"10.0.0.2"`), values("status.conditions", conditionValues),
			values("spec.$setElementOrder/containers", `||[{"name":"d"},{"name":"c"}]|[{"name":"c"}]|[1]`), values("status.$setElementOrder/conditions", `||[{"type":"Ready"}]|[{"type":"Other"},{"type":"Ready"}]`),
			values("spec.terminationGracePeriodSeconds", `30||0`), values("spec.restartPolicy", `"Always"||"Never"|"Sometimes"`),
		}, subresources: []string{"status", "status", "ephemeralcontainers", "resize"}, creates: map[string]string{
			"binding":  `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"a"},"target":{"kind":"Node","name":"n1"}}`,
			"eviction": `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"a"},"deleteOptions":{"gracePeriodSeconds":0}}`,
		}},
		{group: "apps", version: "v1", kind: "Deployment", resource: "deployments", keys: "deployments", object: deployment, fields: []field{
			values("spec.replicas", `1|2|3||-1|"x"|null`), values("spec.paused", `true|false||null`), values("spec.minReadySeconds", `0|7`),
			values("spec.template.spec.containers", containerValues), values("spec.template.metadata.labels", `{"app":"d"}|{"app":"d","x":"y"}||{"app":"e"}|null`),
			values("spec.strategy", `{"type":"Recreate"}|{"type":"RollingUpdate","rollingUpdate":{"maxSurge":1}}||{"$retainKeys":["type"],"type":"Recreate"}|{"$patch":"replace","type":"Recreate"}|{"$retainKeys":"type"}`),
			values("spec.template.spec.volumes", `[{"name":"v","emptyDir":{}}]||[{"name":"v","$retainKeys":["name","hostPath"],"hostPath":{"path":"/"}}]`),
			values("spec.template.spec.$setElementOrder/containers", `||[{"name":"d"},{"name":"c"}]|[{"name":"e"}]`), values("spec.selector.matchLabels.app", `"d"||"e"`),
			values("status.replicas", `1|2||-1`), values("status.conditions", conditionValues), values("status.observedGeneration", `1|2`), values("spec.strateg", `||{}`),
		}, subresources: []string{"status", "scale"}},
		{group: "coordination.k8s.io", version: "v1", kind: "Lease", resource: "leases", keys: "leases", object: `{"spec":{"holderIdentity":"h","leaseDurationSeconds":40}}`, fields: []field{
			values("spec.holderIdentity", `"h"|"i"||null|1`), values("spec.renewTime", `"2020-01-01T00:00:00.000001Z"|"2020-01-01T00:00:00.000002Z"||"now"`), values("spec.leaseDurationSeconds", `1||0|"1"`), values("spec.leaseTransitions", `1|2`),
		}},
		{version: "v1", kind: "Service", resource: "services", keys: "services/specs", object: `{"spec":{"clusterIP":"None","ports":[{"port":80,"name":"http"}]}}`, fields: []field{
			values("spec.ports", `[{"port":80,"name":"http"}]|[{"port":81,"name":"b"},{"port":80,"name":"a"}]|[{"port":80,"protocol":"UDP","name":"udp"}]||[{"$patch":"delete","port":80}]|[]|[{"port":0}]`), values("spec.selector", `{"a":"b"}|{"c":"d"}|null`),
			values("spec.type", `"ClusterIP"||"ExternalName"|"Odd"`), values("spec.externalName", `||"example.com"|""`), values("status.loadBalancer.ingress", `[{"ip":"1.2.3.4"}]|[]`), values("spec.clusterIP", `"None"||""|null`),
		}, subresources: []string{"status"}},
		{version: "v1", kind: "Node", resource: "nodes", keys: "minions", global: true, object: `{"spec":{"podCIDR":"10.0.0.0/24"}}`, fields: []field{
			values("spec.unschedulable", `true|false`), values("spec.taints", `[{"key":"k","effect":"NoSchedule"}]|[{"key":"k","effect":"NoExecute"},{"key":"k","effect":"NoSchedule"}]|null||[{"effect":"Odd"}]`),
			values("status.conditions", conditionValues), values("status.capacity", `{"cpu":"4","memory":"1Gi"}||{"cpu":"x"}|null`), values("status.images", `[{"names":["a","b"],"sizeBytes":1}]|[]`), values("status.addresses", `[{"type":"InternalIP","address":"10.0.0.1"}]||[{"$patch":"replace"},{"type":"Hostname","address":"h"}]`),
		}, subresources: []string{"status", "status"}},
		{version: "v1", kind: "Event", resource: "events", keys: "events", object: `{"involvedObject":{"kind":"Pod","namespace":"«ns»","name":"p"},"reason":"r","message":"m","type":"Normal"}`, fields: []field{
			values("count", `1|2||"3"`), values("message", `"m"|"n"`), values("series", `{"count":2,"lastObservedTime":"2020-01-01T00:00:00.000001Z"}`), values("lastTimestamp", `"2020-01-01T00:00:00Z"||"soon"`), values("type", `"Normal"|"Warning"||"Odd"`),
		}},
		{group: "events.k8s.io", version: "v1", kind: "Event", resource: "events", keys: "events", object: `{"eventTime":"2020-01-01T00:00:00.000001Z","reportingController":"c","reportingInstance":"i","action":"a","reason":"r","type":"Normal","regarding":{"kind":"Pod","namespace":"«ns»","name":"p"}}`, fields: []field{
			values("note", `"n"|"o"`), values("deprecatedCount", `||1|2`), values("series", `{"count":2,"lastObservedTime":"2020-01-01T00:00:00.000001Z"}|{"count":3,"lastObservedTime":"2020-01-01T00:00:00.000001Z"}`),
		}},
		{version: "v1", kind: "ServiceAccount", resource: "serviceaccounts", keys: "serviceaccounts", object: `{}`, fields: []field{
			values("secrets", `[{"name":"s"}]|[{"name":"s"},{"name":"t"}]||[{"$patch":"delete","name":"s"}]|null`), values("imagePullSecrets", `[{"name":"s"}]||[{"name":"s"},{"name":"s"}]`), values("automountServiceAccountToken", `true|false||1`),
		}, creates: map[string]string{"token": `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":600}}`}},
		{version: "v1", kind: "Namespace", resource: "namespaces", keys: "namespaces", global: true, object: `{}`, fields: []field{
			values("spec.finalizers", `["kubernetes"]||[]|["example.com/f"]`), values("status.phase", `"Active"|"Terminating"`), values("status.conditions", conditionValues),
		}, subresources: []string{"status", "finalize", "finalize"}},
		{group: "autoscaling", version: "v1", kind: "HorizontalPodAutoscaler", resource: "horizontalpodautoscalers", keys: "horizontalpodautoscalers", object: `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`, fields: []field{
			values("spec.maxReplicas", `3|4||0|"x"`), values("spec.minReplicas", `1|2||5|null`), values("spec.targetCPUUtilizationPercentage", `50|60||null`), values("status.currentReplicas", `1|2`),
		}, subresources: []string{"status"}},
		{group: "autoscaling", version: "v2", kind: "HorizontalPodAutoscaler", resource: "horizontalpodautoscalers", keys: "horizontalpodautoscalers", object: `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`, fields: []field{
			values("spec.maxReplicas", `3|4||0`), values("spec.metrics", `[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":60}}}]|[]||[{"type":"Odd"}]`), values("status.conditions", conditionValues), values("spec.behavior.scaleDown.stabilizationWindowSeconds", `1|2`),
		}, subresources: []string{"status"}},
		{group: "policy", version: "v1", kind: "PodDisruptionBudget", resource: "poddisruptionbudgets", keys: "poddisruptionbudgets", object: `{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`, fields: []field{
			values("spec.minAvailable", `1|"50%"||"x"|null`), values("spec.selector", `{"matchLabels":{"a":"b"}}||{"$patch":"replace","matchLabels":{"c":"d"}}|{}`), values("status.observedGeneration", `1|2`), values("status.conditions", conditionValues),
		}, subresources: []string{"status"}},
		{group: "apps", version: "v1", kind: "ControllerRevision", resource: "controllerrevisions", keys: "controllerrevisions", object: `{"revision":1,"data":{"b":[1,2.50],"a":{"z":1,"y":null}}}`, fields: []field{
			values("revision", `1|2||-1`), values("data.a", `||{"x":1}|null`), values("data", `||{"c":1.0}|null`),
		}},
		{group: "rbac.authorization.k8s.io", version: "v1", kind: "Role", resource: "roles", keys: "roles", object: `{"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}`, fields: []field{
			values("rules", `[{"verbs":["list"],"apiGroups":[""],"resources":["pods"]}]|[]||[{"verbs":[]}]|null`),
		}},
	}
}

func kindOf(resource schema.GroupResource) *writtenKind {
	for _, k := range writtenKinds() {
		if k.group == resource.Group && k.resource == resource.Resource {
			return k
		}
	}
	return nil
}

func (k *writtenKind) apiVersion() string {
	return schema.GroupVersion{Group: k.group, Version: k.version}.String()
}

// collection is the path of the objects of a namespace.
func (k *writtenKind) collection(namespace string) string {
	root := "/apis/" + k.apiVersion()
	if k.group == "" {
		root = "/api/" + k.version
	}
	if k.global {
		return root + "/" + k.resource
	}
	return root + "/namespaces/" + namespace + "/" + k.resource
}

func (k *writtenKind) key(namespace, name string) string {
	if k.global {
		return "/registry/" + k.keys + "/" + name
	}
	return "/registry/" + k.keys + "/" + namespace + "/" + name
}

// base is a valid object of the kind.
func (k *writtenKind) base(name string) map[string]any {
	object := parsed(k.object).(map[string]any)
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		metadata = make(map[string]any)
		object["metadata"] = metadata
	}
	metadata["name"] = name
	object["apiVersion"], object["kind"] = k.apiVersion(), k.kind
	return object
}

// decoded is the versioned object that JSON values make, nil if they make none.
func (k *writtenKind) decoded(tree any) runtime.Object {
	text, err := json.Marshal(tree)
	if err != nil {
		return nil
	}
	object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(text, &schema.GroupVersionKind{Group: k.group, Version: k.version, Kind: k.kind}, nil)
	if err != nil {
		return nil
	}
	return object
}

// parsed is a JSON text as values.
func parsed(text string) any {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return v
}

// set sets a field of a tree, and replaces values on its path that are not maps.
func set(tree map[string]any, path string, value any) {
	name, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		tree[name] = value
		return
	}
	below, ok := tree[name].(map[string]any)
	if !ok {
		below = make(map[string]any)
		tree[name] = below
	}
	set(below, rest, value)
}

// drawFields sets some fields of a tree.
func (t requests) drawFields(fields []field, tree map[string]any, prefix string, most int) {
	for range rapid.IntRange(0, most).Draw(t.T, "fields") {
		path, value := t.drawFrom(fields)
		set(tree, prefix+path, value)
	}
}
