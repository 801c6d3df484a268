package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// CustomConfig says how many custom resources there are and what is done to them.
type CustomConfig struct {
	Objects, Namespaces int
	// Changes is how many patches are made of each kind.
	Changes int
	// Reads is how often one object is read; all of them are read a hundredth as often.
	Reads int
	// Clients is how many requests are under way at a time.
	Clients int
}

// CustomPath is the path of the collection that Custom fills.
const CustomPath = "/apis/bench.example.com/v1/workers"

// customSchema describes the spec of a worker. It validates, defaults and prunes parts of a pod
// spec.
const customSchema = `{"type":"object","properties":{
	"spec":{"type":"object","required":["containers"],"properties":{
		"replicas":{"type":"integer","minimum":0,"default":1},
		"containers":{"type":"array","maxItems":50,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],"items":{"type":"object","required":["name"],"properties":{
			"name":{"type":"string","maxLength":63},"image":{"type":"string"},"imagePullPolicy":{"type":"string","default":"IfNotPresent"},
			"env":{"type":"array","maxItems":100,"items":{"type":"object","properties":{"name":{"type":"string"},"value":{"type":"string"}}}},
			"ports":{"type":"array","maxItems":100,"items":{"type":"object","properties":{"containerPort":{"type":"integer","format":"int32"},"protocol":{"type":"string","default":"TCP"},"target":{"x-kubernetes-int-or-string":true}}}}}}},
		"template":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},
		"x-kubernetes-validations":[{"rule":"self.replicas < 1000"}]},
	"status":{"type":"object","properties":{"phase":{"type":"string"},"conditions":{"type":"array","items":{"type":"object","properties":{"type":{"type":"string"},"status":{"type":"string"},"lastTransitionTime":{"type":"string","format":"date-time"}}}}}}}}`

// Custom defines a resource, creates objects of about 5 KB of it, changes them by merge
// patch and by server-side apply, and reads them. It leaves objects that exist already. It
// ends at the first write that fails.
func Custom(ctx context.Context, t *Target, c CustomConfig) ([]*Result, error) {
	if c.Objects < 1 || c.Namespaces < 1 {
		return nil, fmt.Errorf("bench: want at least one object and one namespace, got %d and %d", c.Objects, c.Namespaces)
	}
	if err := defineWorkers(ctx, t, c.Namespaces); err != nil {
		return nil, err
	}
	var results []*Result
	for _, phase := range c.writes() {
		r, err := repeatWrites(ctx, t, c.Clients, phase)
		if err != nil {
			return results, err
		}
		results = append(results, r)
		if r.Interrupted {
			return results, nil
		}
	}
	return readWorkers(ctx, t, c, results)
}

// defineWorkers creates the CRD of workers, and namespaces for them.
func defineWorkers(ctx context.Context, t *Target, namespaces int) error {
	if err := define(ctx, t, crd{plural: "workers", kind: "Worker", schema: customSchema, columns: []any{
		map[string]any{"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
		map[string]any{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
	}}); err != nil {
		return err
	}
	return t.ensureNamespaces(ctx, namespaces)
}

// DefineWorkers creates the CRD and the first of the objects of [Custom], and leaves what
// exists.
func DefineWorkers(ctx context.Context, t *Target) error {
	if err := defineWorkers(ctx, t, 1); err != nil {
		return err
	}
	c := &CustomConfig{Objects: 1, Namespaces: 1}
	own := &lane{t: t}
	defer own.close()
	if o, err := own.do(ctx, c.writes()[0].call(0)); err != nil && o.status != http.StatusConflict {
		return err
	}
	return nil
}

// workersManager is the field manager of workers, except for applies.
const workersManager = "workers-controller"

// customWrites is one kind of write, n times.
type customWrites struct {
	name string
	n    int
	call func(i int) call
}

// writes are the kinds of writes, in their order.
func (c *CustomConfig) writes() []customWrites {
	collection := func(i int) string {
		return "/apis/bench.example.com/v1/namespaces/" + fmt.Sprintf(namespaceFormat, i%c.Namespaces) + "/workers"
	}
	name := func(i int) string { return fmt.Sprintf("worker-%d", i) }
	change := func(i int, kind, manager string, body []byte) call {
		path := collection(i%c.Objects) + "/" + name(i%c.Objects) + "?fieldManager=" + manager
		return call{method: http.MethodPatch, path: path, accept: JSON, kind: kind, body: body}
	}
	return []customWrites{
		{"create custom resources", c.Objects, func(i int) call {
			return call{method: http.MethodPost, path: collection(i) + "?fieldManager=" + workersManager, accept: JSON, kind: JSON, body: encodeJSON(worker(name(i)))}
		}},
		{"patch custom resources", c.Changes, func(i int) call {
			return change(i, string(types.MergePatchType), workersManager, fmt.Appendf(nil, `{"metadata":{"annotations":{"turn":"%d"}}}`, i))
		}},
		{"apply custom resources", c.Changes, func(i int) call {
			return change(i, string(types.ApplyYAMLPatchType), "applier", fmt.Appendf(nil, `{"apiVersion":"bench.example.com/v1","kind":"Worker","metadata":{"name":%q},"spec":{"containers":[{"name":"applied","image":"registry.example.com/applied:%d"}]}}`, name(i%c.Objects), i))
		}},
	}
}

// CustomKinds are the names of the Results of Custom.
func CustomKinds() []string {
	var names []string
	for _, w := range new(CustomConfig).writes() {
		names = append(names, w.name)
	}
	return append(names, customGet, customList, customTable)
}

// Names of the Results of reads.
const (
	customGet   = "GET custom resource"
	customList  = "LIST custom resources"
	customTable = "LIST custom resources as table"
)

// readWorkers adds reads to results.
func readWorkers(ctx context.Context, t *Target, c CustomConfig, results []*Result) ([]*Result, error) {
	for _, r := range []ReadConfig{
		{Name: customGet, Path: "/apis/bench.example.com/v1/namespaces/" + fmt.Sprintf(namespaceFormat, 0) + "/workers/worker-0", Accept: JSON, Load: Load{Operations: c.Reads, Clients: c.Clients}},
		{Name: customList, Path: CustomPath, Accept: JSON, Load: Load{Operations: max(1, c.Reads/100), Clients: c.Clients}},
		{Name: customTable, Path: CustomPath, Accept: Table, Load: Load{Operations: max(1, c.Reads/100), Clients: c.Clients}},
	} {
		result, err := Read(ctx, t, r)
		if err != nil {
			return results, err
		}
		results = append(results, result)
	}
	return results, nil
}

// repeatWrites makes one kind of write and measures it.
func repeatWrites(ctx context.Context, t *Target, clients int, w customWrites) (*Result, error) {
	l := loop{Load: Load{Operations: w.n, Clients: clients}, strict: true, through: t.retrying()}
	if err := l.check(); err != nil {
		return nil, err
	}
	r, err := l.measure(ctx, t, w.name, "object", nil, func(ctx context.Context, own *lane, i int, _ time.Time) (outcome, error) {
		request := w.call(i)
		o, err := own.do(ctx, request)
		if request.method == http.MethodPost && o.status == http.StatusConflict {
			err = nil // it is there already
		}
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", w.name, err)
	}
	return r, nil
}

// encodeJSON encodes a value that is made of maps, lists, strings and numbers.
func encodeJSON(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return body
}

// crd describes a CRD.
type crd struct {
	plural, kind string
	schema       string // JSON of the only version's schema
	columns      []any
}

// define creates a CRD and waits until its resource is served.
func define(ctx context.Context, t *Target, d crd) error {
	if err := t.ensure(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": d.plural + ".bench.example.com"},
		"spec": map[string]any{
			"group": "bench.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": d.plural, "singular": strings.ToLower(d.kind), "kind": d.kind, "listKind": d.kind + "List"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": json.RawMessage(d.schema)},
				"subresources":             map[string]any{"status": map[string]any{}},
				"additionalPrinterColumns": d.columns,
			}},
		},
	}); err != nil {
		return err
	}
	within, cut := t.graceful(ctx)
	defer cut()
	for {
		err := t.once(within, call{path: "/apis/bench.example.com/v1/" + d.plural + "?limit=1", accept: JSON})
		if err == nil || sleep(within, 100*time.Millisecond) != nil || t.stopped() {
			return err
		}
	}
}

// worker makes an object of about 5 KB, the size of a pod template.
func worker(name string) *unstructured.Unstructured {
	pod := seededPod(0, SeedConfig{Pods: 1, Namespaces: 1, Nodes: 1})
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		panic(err) // a pod is an object
	}
	delete(template, "metadata")
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "bench.example.com/v1", "kind": "Worker",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/name": "worker"}},
		"spec": map[string]any{
			"containers": []any{map[string]any{
				"name": "main", "image": "registry.example.com/worker:1.2.3", "unknown": "is pruned",
				"env":   []any{map[string]any{"name": "A", "value": "1"}, map[string]any{"name": "B", "value": "2"}},
				"ports": []any{map[string]any{"containerPort": int64(8080), "target": "http"}},
			}},
			"template": template,
		},
	}}
}
