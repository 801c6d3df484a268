package difftest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

const js = "application/json"

// objects are created before the comparison: the collection and the body of each POST.
var objects = [][2]string{
	{"/api/v1/namespaces", `{"metadata":{"name":"diff"}}`},
	{"/api/v1/namespaces", `{"metadata":{"name":"many"}}`},
	{"/api/v1/namespaces", `{"metadata":{"name":"empty"}}`},
	{"/api/v1/namespaces/diff/serviceaccounts", `{"metadata":{"name":"default"}}`},
	{"/api/v1/namespaces/diff/configmaps", `{"metadata":{"name":"a","labels":{"x":"1"}},"data":{"k":"<v>&"}}`},
	{"/api/v1/namespaces/diff/configmaps", `{"metadata":{"name":"b"},"data":{"k":"v"},"binaryData":{"z":"AAH/"}}`},
	{"/api/v1/namespaces/diff/configmaps", `{"metadata":{"name":"b-c","labels":{"x":"2","y":"1"}}}`},
	{"/api/v1/namespaces/diff/configmaps", `{"metadata":{"name":"d","labels":{"x":"1","y":"2"}},"immutable":true}`},
	{"/api/v1/namespaces/diff/configmaps", `{"metadata":{"name":"e","labels":{"x":"2"}}}`},
	{"/api/v1/nodes", `{"metadata":{"name":"n1","labels":{"kubernetes.io/hostname":"n1"}},"spec":{"podCIDR":"10.1.0.0/24"}}`},
	{"/api/v1/nodes", `{"metadata":{"name":"n2"},"spec":{"unschedulable":true}}`},
	{"/api/v1/namespaces/diff/pods", `{"metadata":{"name":"p","labels":{"app":"x"}},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"nginx","resources":{"requests":{"cpu":"0.10","memory":"1024Ki"}}}]}}`},
	{"/api/v1/namespaces/diff/pods", `{"metadata":{"name":"q","labels":{"app":"y"}},"spec":{"nodeName":"n2","hostNetwork":true,"restartPolicy":"Never","containers":[{"name":"c","image":"nginx"},{"name":"d","image":"nginx:1"}]}}`},
	{"/api/v1/namespaces/diff/pods", `{"metadata":{"name":"r","labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}`},
	{"/api/v1/namespaces/diff/services", `{"metadata":{"name":"s"},"spec":{"clusterIP":"10.0.0.77","selector":{"app":"x"},"ports":[{"port":80}]}}`},
	{"/api/v1/namespaces/diff/services", `{"metadata":{"name":"out"},"spec":{"type":"ExternalName","externalName":"example.org"}}`},
	{"/api/v1/namespaces/diff/endpoints", `{"metadata":{"name":"s"},"subsets":[{"addresses":[{"ip":"10.2.0.1"}],"ports":[{"port":80}]}]}`},
	{"/api/v1/namespaces/diff/secrets", `{"metadata":{"name":"sec"},"stringData":{"k":"v"}}`},
	{"/api/v1/namespaces/empty/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Pod","max":{"cpu":"2"}}]}}`},
	{"/api/v1/namespaces/diff/resourcequotas", `{"metadata":{"name":"quota"},"spec":{"hard":{"count/jobs.batch":"100"}}}`},
	{"/api/v1/namespaces/diff/replicationcontrollers", `{"metadata":{"name":"rc"},"spec":{"replicas":0,"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`},
	{"/api/v1/namespaces/diff/podtemplates", `{"metadata":{"name":"pt"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`},
	{"/api/v1/namespaces/diff/persistentvolumeclaims", `{"metadata":{"name":"pvc"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`},
	{"/api/v1/persistentvolumes", `{"metadata":{"name":"pv"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`},
	{"/api/v1/namespaces/diff/events", `{"metadata":{"name":"e0"},"involvedObject":{"kind":"Pod","name":"p","namespace":"diff"},"reason":"Started","message":"it did","type":"Normal","source":{"component":"kubelet"},"count":2}`},
	{"/apis/events.k8s.io/v1/namespaces/diff/events", `{"metadata":{"name":"e1"},"eventTime":"2026-01-01T00:00:00.000000Z","reportingController":"c","reportingInstance":"i","action":"a","reason":"r","type":"Normal","regarding":{"kind":"Pod","name":"p","namespace":"diff"}}`},
	{"/apis/apps/v1/namespaces/diff/deployments", `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`},
	{"/apis/apps/v1/namespaces/diff/replicasets", `{"metadata":{"name":"rs"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`},
	{"/apis/apps/v1/namespaces/diff/statefulsets", `{"metadata":{"name":"ss"},"spec":{"serviceName":"s","selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`},
	{"/apis/apps/v1/namespaces/diff/daemonsets", `{"metadata":{"name":"ds"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}}`},
	{"/apis/autoscaling/v2/namespaces/diff/horizontalpodautoscalers", `{"metadata":{"name":"h"},"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":50}}}]}}`},
	{"/apis/batch/v1/namespaces/diff/jobs", `{"metadata":{"name":"j"},"spec":{"suspend":true,"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`},
	{"/apis/batch/v1/namespaces/diff/cronjobs", `{"metadata":{"name":"cj"},"spec":{"schedule":"@daily","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`},
	{"/apis/networking.k8s.io/v1/namespaces/diff/ingresses", `{"metadata":{"name":"i"},"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`},
	{"/apis/networking.k8s.io/v1/namespaces/diff/networkpolicies", `{"metadata":{"name":"np"},"spec":{"podSelector":{}}}`},
	{"/apis/networking.k8s.io/v1/ingressclasses", `{"metadata":{"name":"ic"},"spec":{"controller":"example.org/c"}}`},
	{"/apis/policy/v1/namespaces/diff/poddisruptionbudgets", `{"metadata":{"name":"pdb"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`},
	{"/apis/coordination.k8s.io/v1/namespaces/diff/leases", `{"metadata":{"name":"lease"},"spec":{"holderIdentity":"me","renewTime":"2026-01-01T00:00:00.000000Z"}}`},
	{"/apis/discovery.k8s.io/v1/namespaces/diff/endpointslices", `{"metadata":{"name":"slice"},"addressType":"IPv4","endpoints":[{"addresses":["10.2.0.1"]}],"ports":[{"port":80}]}`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/diff/roles", `{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get","list"]}]}`},
	{"/apis/rbac.authorization.k8s.io/v1/namespaces/diff/rolebindings", `{"metadata":{"name":"alice"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},"subjects":[{"kind":"User","name":"alice","apiGroup":"rbac.authorization.k8s.io"}]}`},
	{"/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"sc"},"provisioner":"example.org/p"}`},
	{"/apis/storage.k8s.io/v1/csidrivers", `{"metadata":{"name":"example.org"},"spec":{}}`},
	{"/apis/storage.k8s.io/v1/csinodes", `{"metadata":{"name":"n1"},"spec":{"drivers":[]}}`},
	{"/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"rtc"},"handler":"h"}`},
	{"/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"high"},"value":1000}`},
	{"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", `{"metadata":{"name":"vwc"},"webhooks":[]}`},
	{"/apis/resource.k8s.io/v1/deviceclasses", `{"metadata":{"name":"dc"},"spec":{}}`},
}

// seed creates the objects through Larder and waits until etcd has compacted all revisions before them.
func (f *fixture) seed(t *testing.T) {
	t.Helper()
	for _, o := range objects {
		f.must(t, f.larder, request{Method: http.MethodPost, Path: o[0], Type: js, Body: withKind(o[0], o[1])})
	}
	f.createGuards(t)
	f.createCRDs(t)
	f.aggregate(t, f.remote)
	for i := range 120 { // enough for a compressed list
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%03d","labels":{"third":"%d"}},"data":{"k":%q}}`, i, i%3, strings.Repeat("0123456789", 200))
		f.must(t, f.larder, request{Method: http.MethodPost, Path: "/api/v1/namespaces/many/configmaps", Type: js, Body: body})
	}
	proctest.Eventually(t, "the history is compacted", func() error {
		a := f.larder.send(request{Method: http.MethodGet, Path: "/apis/coordination.k8s.io/v1/namespaces/diff/leases?limit=1&resourceVersion=1&resourceVersionMatch=Exact"})
		if a.code != http.StatusGone {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
}

// withKind adds the apiVersion and kind that a body must have, according to the collection's path.
func withKind(path, body string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	version := parts[1]
	if parts[0] == "apis" {
		version += "/" + parts[2]
	}
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,%s`, version, kinds[parts[len(parts)-1]], body[1:])
}

var kinds = map[string]string{
	"namespaces": "Namespace", "serviceaccounts": "ServiceAccount", "configmaps": "ConfigMap", "nodes": "Node", "pods": "Pod",
	"services": "Service", "endpoints": "Endpoints", "secrets": "Secret", "limitranges": "LimitRange", "resourcequotas": "ResourceQuota",
	"replicationcontrollers": "ReplicationController", "podtemplates": "PodTemplate", "persistentvolumeclaims": "PersistentVolumeClaim",
	"persistentvolumes": "PersistentVolume", "events": "Event", "deployments": "Deployment", "replicasets": "ReplicaSet",
	"statefulsets": "StatefulSet", "daemonsets": "DaemonSet", "horizontalpodautoscalers": "HorizontalPodAutoscaler", "jobs": "Job",
	"cronjobs": "CronJob", "ingresses": "Ingress", "networkpolicies": "NetworkPolicy", "ingressclasses": "IngressClass",
	"poddisruptionbudgets": "PodDisruptionBudget", "leases": "Lease", "endpointslices": "EndpointSlice", "roles": "Role",
	"rolebindings": "RoleBinding", "storageclasses": "StorageClass", "csidrivers": "CSIDriver", "csinodes": "CSINode",
	"runtimeclasses": "RuntimeClass", "priorityclasses": "PriorityClass",
	"clusterroles":              "ClusterRole",
	"customresourcedefinitions": "CustomResourceDefinition", "widgets": "Widget", "gadgets": "Gadget", "apiservices": "APIService",
	"validatingwebhookconfigurations": "ValidatingWebhookConfiguration", "deviceclasses": "DeviceClass",
}

// changes are a short history of the objects that are watched. {then}, {mid} and {now} are the revisions before it,
// within it and at its end.
var changes = []struct{ mark, method, path, body string }{
	{"then", "PATCH", "/api/v1/namespaces/diff/configmaps/e", `{"data":{"n":"1"}}`},
	{"", "PATCH", "/api/v1/namespaces/diff/configmaps/b", `{"metadata":{"labels":{"x":"1"}}}`},
	{"", "PATCH", "/api/v1/namespaces/diff/pods/r", `{"metadata":{"labels":{"app":"y"}}}`},
	{"mid", "PATCH", "/api/v1/namespaces/diff/configmaps/b", `{"metadata":{"labels":{"x":"2"}}}`},
	{"", "POST", "/api/v1/namespaces/diff/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"gone","labels":{"x":"1"}}}`},
	{"", "DELETE", "/api/v1/namespaces/diff/configmaps/gone", ""},
	{"", "PATCH", "/api/v1/namespaces/diff/pods/r", `{"metadata":{"labels":{"app":"x"}}}`},
	{"now", "PATCH", "/api/v1/namespaces/diff/configmaps/e", `{"data":{"n":"2"}}`},
}

func (f *fixture) change(t *testing.T) {
	t.Helper()
	for _, c := range changes {
		kind := js
		if c.method == "PATCH" {
			kind = "application/merge-patch+json"
		}
		a := f.must(t, f.larder, request{Method: c.method, Path: c.path, Type: kind, Body: c.body})
		if c.mark != "" {
			f.revisions["{"+c.mark+"}"] = revision(t, a.body)
		}
	}
}

// revision returns the resourceVersion of the object or list in body.
func revision(t *testing.T, body []byte) string {
	t.Helper()
	var object struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(body, &object); err != nil || object.Metadata.ResourceVersion == "" {
		t.Fatalf("no resourceVersion in %s: %v", body, err)
	}
	return object.Metadata.ResourceVersion
}

// must sends a request to p, which must succeed.
func (f *fixture) must(t *testing.T, p *process, r request) response {
	t.Helper()
	a := p.send(r)
	if a.err != nil || a.code >= 300 {
		t.Fatalf("%s: %s: %d %v %s", p.name, r, a.code, a.err, a.body)
	}
	return a
}
