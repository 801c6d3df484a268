package httpapi

import (
	"bytes"
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestWriteResponsesEqualReads writes objects of several kinds in each way. The response must equal a later read's,
// byte by byte.
func TestWriteResponsesEqualReads(t *testing.T) {
	s, _ := newLarder(t)
	s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
	objects := map[string]struct{ collection, spec string }{
		"ConfigMap":  {defaultNS + "configmaps", `"data":{"k":"<é\u2028&"},"binaryData":{"b":"AAEC"}`},
		"Secret":     {defaultNS + "secrets", `"stringData":{"k":"v"}`},
		"Namespace":  {"/api/v1/namespaces", `"spec":{}`},
		"Service":    {defaultNS + "services", `"spec":{"clusterIP":"None","ports":[{"port":1}]}`},
		"Pod":        {defaultNS + "pods", `"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"0.1"}},"env":[{"name":"E"}]}]}`},
		"Deployment": {deployments, deployment[bytes.Index([]byte(deployment), []byte(`"spec"`)) : len(deployment)-1]},
		"Role":       {rbac, `"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]`},
		"Event":      {defaultNS + "events", `"involvedObject":{"namespace":"default"},"firstTimestamp":"2026-01-02T03:04:05Z"`},
		"Autoscaler": {"/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers", `"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}`},
	}
	for kind, o := range objects {
		for name, media := range map[string]string{"json": "application/json", "protobuf": runtime.ContentTypeProtobuf, "pretty": "application/json;pretty=1", "yaml": "application/yaml"} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				meta, one := `{"metadata":{"name":"`+name+`","labels":{"app":"d"},"annotations":{"a":"b"}},`, o.collection+"/"+name
				for _, c := range []call{
					post(o.collection, meta+o.spec+`}`),
					patch("merge-patch+json", one, `{"metadata":{"annotations":{"a":"c","d":"<&>"}}}`),
					patch("merge-patch+json", one, `{"metadata":{"annotations":{"a":"c"}}}`), // changes nothing
					patch("json-patch+json", one, `[{"op":"add","path":"/metadata/labels/x","value":"y"}]`),
					patch("strategic-merge-patch+json", one, `{"metadata":{"finalizers":["example.com/f"]}}`),
					patch("strategic-merge-patch+json", one, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/f"]}}`),
				} {
					a := s.call(t, with(c, "Accept", media))
					if a.code != http.StatusOK && a.code != http.StatusCreated {
						t.Fatalf("%s: got status %d: %s", c.method, a.code, a.body)
					}
					if read := s.call(t, with(get(one), "Accept", media)); !bytes.Equal(a.body, read.body) || a.header.Get("Content-Type") != read.header.Get("Content-Type") {
						t.Errorf("%s: got response\n%q, GET\n%q", c.method, a.body, read.body)
					}
				}
			})
		}
	}
}
