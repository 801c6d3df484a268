package consistency

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// resource is a kind of object.
type resource struct {
	group      schema.GroupVersionResource
	collection string // path for clients
	prefix     string // of its keys in etcd
	kind       string
	names      int                    // of objects, at most
	rest       func(p payload) string // the members of an object after its metadata
}

func (r *resource) String() string { return r.group.Resource }

// json returns an object with the payload. An empty revision sets no precondition.
func (r *resource) json(p payload, name, revision string) string {
	if r == configMaps {
		return p.json(name, revision)
	}
	return fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{"name":%q,"resourceVersion":%q,"labels":{"g":%q},"annotations":{"p":%q}}%s}`,
		r.kind, r.group.GroupVersion(), name, revision, p.group, p, r.rest(p))
}

// patch returns a merge patch that gives an object the payload.
func (r *resource) patch(p payload) string {
	if r == configMaps {
		return fmt.Sprintf(`{"metadata":{"labels":{"g":%q}},"data":{"p":%q}}`, p.group, p)
	}
	return fmt.Sprintf(`{"metadata":{"labels":{"g":%q},"annotations":{"p":%q}}}`, p.group, p)
}

// configMaps are also changed by transactions of several objects. Informers handle events one by one, and may miss some
// if a connection breaks within a revision, so informers follow only the other resources.
var configMaps = &resource{
	group: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, kind: "ConfigMap",
	collection: collection, prefix: prefix, names: 40,
}

// padding makes objects large.
var padding = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("larder", 6<<10)))

// resources are those of TestHistory: small and large, namespaced and cluster-scoped, with defaults, with a time to
// live (which kube-apiserver does not cache), and custom resources.
var resources = []*resource{
	configMaps,
	{
		group: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, kind: "Secret",
		collection: "/api/v1/namespaces/default/secrets", prefix: "/registry/secrets/default/", names: 5,
		rest: func(payload) string { return fmt.Sprintf(`,"data":{"large":%q}`, padding) },
	},
	{
		group: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, kind: "Deployment",
		collection: "/apis/apps/v1/namespaces/default/deployments", prefix: "/registry/deployments/default/", names: 20,
		rest: func(p payload) string {
			return fmt.Sprintf(`,"spec":{"replicas":%d,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}`, p.id%5)
		},
	},
	{
		group: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, kind: "Node",
		collection: "/api/v1/nodes", prefix: "/registry/minions/", names: 10,
		rest: func(payload) string { return "" },
	},
	{
		group: schema.GroupVersionResource{Version: "v1", Resource: "events"}, kind: "Event",
		collection: "/api/v1/namespaces/default/events", prefix: "/registry/events/default/", names: 20,
		rest: func(payload) string {
			return `,"involvedObject":{"kind":"Node","namespace":"default","name":"o00"},"reason":"x"`
		},
	},
	{
		group: schema.GroupVersionResource{Group: "larder.example.com", Version: "v1", Resource: "widgets"}, kind: "Widget",
		collection: "/apis/larder.example.com/v1/namespaces/default/widgets", prefix: "/registry/larder.example.com/widgets/default/", names: 20,
		rest: func(p payload) string { return fmt.Sprintf(`,"spec":{"size":%d}`, p.id%5) },
	},
}

// resourceOf returns the resource of a key, nil if the tests do not use it.
func resourceOf(key string) *resource {
	for _, r := range resources {
		if strings.HasPrefix(key, r.prefix) {
			return r
		}
	}
	return nil
}

// widgets is the CRD of the custom resource.
const widgets = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"widgets.larder.example.com"},
	"spec":{"group":"larder.example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
	"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":
	{"spec":{"type":"object","properties":{"size":{"type":"integer"},"color":{"type":"string","default":"red"}}}}}}}]}}`

// define creates the CRD and waits until every replica serves it.
func (c *cluster) define(t *testing.T) {
	t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if a := c.replicas[0].send(request{method: http.MethodPost, path: definitions, body: widgets}); a.code != http.StatusCreated {
		t.Fatalf("define widgets: %d %v %s", a.code, a.err, a.body)
	}
	custom := resources[len(resources)-1]
	for i, r := range c.replicas {
		r.Eventually(t, "serves widgets", func() error {
			p := payload{0, "a"}
			create := request{method: http.MethodPost, path: custom.collection + "?dryRun=All", body: custom.json(p, fmt.Sprintf("try%d", i), "")}
			if a := r.send(create); a.code != http.StatusCreated {
				return fmt.Errorf("%d %v %s", a.code, a.err, a.body)
			}
			return nil
		})
	}
	served, err := decode[list](c.replicas[0].send(request{method: http.MethodGet, path: custom.collection}).body)
	if err != nil {
		t.Fatal(err)
	}
	c.defined = served.Metadata.revision()
}
