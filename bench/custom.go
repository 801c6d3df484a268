package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// CustomConfig is a workload of writes of custom resources.
type CustomConfig struct {
	Resource            string
	Objects, Namespaces int
	// Changes is the number of writes of each kind after the creation, at most Objects.
	Changes int
	Clients int
	// Bytes is the approximate size of a report.
	Bytes int

	run int64 // part of each change, so that repeated runs change the objects again
}

type customResource struct {
	kind    string
	schema  string // JSON of the only version's schema
	columns string // JSON of the additional columns
	manager string // field manager of writes other than apply
	object  func(c *CustomConfig, i int) map[string]any
	path    []string                         // path of the text that writes change
	part    func(text string) map[string]any // the part of an object that customApply sends
	whole   bool                             // whether whole objects are applied too
}

// customResources returns all resources, in the order of CustomResources.
func customResources() []*customResource {
	return []*customResource{{
		kind: "Worker", schema: customSchema, manager: "workers-controller", object: (*CustomConfig).worker,
		columns: `[{"name":"Replicas","type":"integer","jsonPath":".spec.replicas"},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]`,
		path:    []string{"metadata", "annotations", "turn"},
		part: func(text string) map[string]any {
			return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "applied", "image": "registry.example.com/applied:" + text}}}}
		},
	}, {
		kind: "Report", schema: reportSchema, manager: "scanner", object: (*CustomConfig).report, whole: true,
		columns: `[{"name":"Tag","type":"string","jsonPath":".report.artifact.tag"},{"name":"Critical","type":"integer","jsonPath":".report.summary.critical"},
			{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]`,
		path: []string{"report", "artifact", "tag"},
		part: func(text string) map[string]any {
			return map[string]any{"metadata": map[string]any{"labels": map[string]any{"seen": "yes"}}, "report": map[string]any{"artifact": map[string]any{"tag": text}}}
		},
	}}
}

// CustomResources names the resources: workers of 2 KB, which are defaulted and pruned, and the reports of an
// image scanner.
var CustomResources = []string{"workers", "reports"}

// CustomPath returns the path of all objects of a resource.
func CustomPath(resource string) string { return "/apis/bench.example.com/v1/" + resource }

// Kinds of writes, in the order in which Custom sends them.
const (
	customCreate = "create"
	customUpdate = "update"
	customPatch  = "merge-patch"
	customApply  = "apply a part of"
	customWhole  = "apply whole"
)

// resource validates the configuration and returns its resource.
func (c *CustomConfig) resource() (*customResource, error) {
	if c.Objects < 1 || c.Namespaces < 1 || c.Changes < 0 || c.Changes > c.Objects {
		return nil, fmt.Errorf("bench: --objects and --namespaces must be at least 1 and --changes from 0 to --objects, are %d, %d and %d", c.Objects, c.Namespaces, c.Changes)
	}
	i := slices.Index(CustomResources, c.Resource)
	if i < 0 {
		return nil, fmt.Errorf("bench: --resource=%s: want one of %s", c.Resource, strings.Join(CustomResources, ", "))
	}
	return customResources()[i], nil
}

func (c *CustomConfig) kinds(r *customResource) []string {
	all := []string{customCreate, customUpdate, customPatch, customApply, customWhole}
	switch {
	case c.Changes == 0:
		return all[:1]
	case !r.whole:
		return all[:4]
	}
	return all
}

// Kinds returns the names of the results of Custom.
func (c *CustomConfig) Kinds() (names []string, err error) {
	r, err := c.resource()
	if err != nil {
		return nil, err
	}
	for _, kind := range c.kinds(r) {
		names = append(names, kind+" "+c.Resource)
	}
	return names, nil
}

// Custom creates a CRD and its objects, and then updates, patches and applies them. It keeps existing objects.
// It ends at the first write that fails.
func Custom(ctx context.Context, t *Target, c CustomConfig) (results []*Result, err error) {
	r, err := c.resource()
	if err != nil {
		return nil, err
	}
	c.run = time.Now().UnixNano()
	if err := c.define(ctx, t, r); err != nil {
		return nil, err
	}
	for _, kind := range c.kinds(r) {
		result, err := c.write(ctx, t, r, kind)
		if err != nil {
			return results, err
		}
		if results = append(results, result); result.Interrupted {
			break
		}
	}
	return results, nil
}

// DefineWorkers creates the CRD of the workers of [Custom], and the first worker, unless they exist.
func DefineWorkers(ctx context.Context, t *Target) error {
	_, err := Custom(ctx, t, CustomConfig{Resource: CustomResources[0], Objects: 1, Namespaces: 1, Clients: 1})
	return err
}

func (c *CustomConfig) collection(i int) string {
	return "/apis/bench.example.com/v1/namespaces/" + fmt.Sprintf(namespaceFormat, i%c.Namespaces) + "/" + c.Resource
}

func (c *CustomConfig) name(i int) string {
	return fmt.Sprintf("%s-%d", strings.TrimSuffix(c.Resource, "s"), i)
}

func (c *CustomConfig) write(ctx context.Context, t *Target, r *customResource, kind string) (*Result, error) {
	name := kind + " " + c.Resource
	var revisions map[string]string
	l := loop{Load: Load{Operations: c.Changes, Clients: c.Clients}, strict: true, through: t.retrying()}
	switch kind {
	case customCreate:
		l.Operations = c.Objects
	case customUpdate:
		var err error
		if revisions, err = t.revisions(ctx, CustomPath(c.Resource)); err != nil {
			return nil, err
		}
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	result, err := l.measure(ctx, t, name, "object", func(ctx context.Context, own *conn, i int, _ time.Time) (outcome, error) {
		o, err := own.do(c.request(r, kind, i, revisions))
		if kind == customCreate && o.status == http.StatusConflict {
			err = nil // the object exists
		}
		return o, err
	})
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", name, err)
	}
	return result, nil
}

func (c *CustomConfig) request(r *customResource, kind string, i int, revisions map[string]string) Request {
	text := fmt.Sprintf("%d-%d-%s", c.run, i, strings.ReplaceAll(kind, " ", "-"))
	write := Request{Method: http.MethodPatch, Path: c.collection(i) + "/" + c.name(i), Accept: JSON, ContentType: string(types.ApplyYAMLPatchType)}
	object := map[string]any{}
	manager := r.manager
	switch kind {
	case customCreate:
		write.Method, write.Path, write.ContentType, object = http.MethodPost, c.collection(i), JSON, r.object(c, i)
	case customUpdate:
		write.Method, write.ContentType, object = http.MethodPut, JSON, r.object(c, i)
		object["metadata"].(map[string]any)["resourceVersion"] = revisions[c.name(i)]
	case customPatch:
		write.ContentType = string(types.MergePatchType)
	case customApply:
		manager, object = "part&force=true", r.part(text)
	case customWhole:
		manager, object = "whole&force=true", r.object(c, i)
	}
	if kind == customApply {
		object["apiVersion"], object["kind"] = "bench.example.com/v1", r.kind
		_ = unstructured.SetNestedField(object, c.name(i), "metadata", "name")
	} else if kind != customCreate {
		_ = unstructured.SetNestedField(object, text, r.path...) // cannot fail: every element of the path is a map
	}
	write.Path, write.Body = write.Path+"?fieldManager="+manager, EncodeJSON(object)
	return write
}

// define creates the namespaces and the CRD, and waits until the server serves the resource.
func (c *CustomConfig) define(ctx context.Context, t *Target, r *customResource) error {
	if err := t.ensureNamespaces(ctx, c.Namespaces); err != nil {
		return err
	}
	crd := CRD("bench.example.com", c.Resource, r.kind, json.RawMessage(r.schema), json.RawMessage(r.columns))
	if err := t.ensure(ctx, CRDsPath, crd); err != nil {
		return err
	}
	within, cut := t.graceful(ctx)
	defer cut()
	for {
		err := t.fetch(within, Request{Path: CustomPath(c.Resource) + "?limit=1", Accept: JSON})
		if err == nil || Sleep(within, 100*time.Millisecond) != nil || t.stopped() {
			return err
		}
	}
}

// CRDsPath is the path of CRDs.
const CRDsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// CRD returns a namespaced CRD of one version, v1, with a schema and additional columns, which may be nil.
func CRD(group, plural, kind string, schema, columns any) map[string]any {
	return map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": schema}, "additionalPrinterColumns": columns,
			}},
		},
	}
}

// EncodeJSON encodes a Kubernetes object, or a value made of maps, lists, strings and numbers.
func EncodeJSON(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen for these types
	}
	return body
}

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

func (c *CustomConfig) worker(i int) map[string]any {
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(WebPod(0))
	if err != nil {
		panic(err) // cannot happen for a pod
	}
	delete(template, "metadata")
	return map[string]any{
		"apiVersion": "bench.example.com/v1", "kind": "Worker",
		"metadata": map[string]any{"name": c.name(i), "labels": map[string]any{"app.kubernetes.io/name": "worker"}},
		"spec": map[string]any{
			"containers": []any{map[string]any{
				"name": "main", "image": "registry.example.com/worker:1.2.3", "unknown": "is pruned",
				"env":   []any{map[string]any{"name": "A", "value": "1"}, map[string]any{"name": "B", "value": "2"}},
				"ports": []any{map[string]any{"containerPort": int64(8080), "target": "http"}},
			}},
			"template": template,
		},
	}
}

// reportSchema is the schema of reports like those of image scanners: long arrays of objects with strings of many
// lengths, nested maps, defaults, and a part without a schema.
const reportSchema = `{"type":"object","properties":{"report":{"type":"object","required":["artifact"],"properties":{
	"artifact":{"type":"object","properties":{"repository":{"type":"string"},"tag":{"type":"string"},"digest":{"type":"string"}}},
	"scanner":{"type":"object","default":{},"properties":{"name":{"type":"string","default":"Scanner"},"vendor":{"type":"string","default":"Example"}}},
	"summary":{"type":"object","additionalProperties":{"type":"integer","minimum":0}},
	"updateTimestamp":{"type":"string","format":"date-time"},
	"findings":{"type":"array","items":{"type":"object","required":["id","resource"],"properties":{
		"id":{"type":"string"},"resource":{"type":"string"},"title":{"type":"string"},"description":{"type":"string"},
		"installedVersion":{"type":"string"},"fixedVersion":{"type":"string"},"score":{"type":"number"},"line":{"type":"integer"},
		"severity":{"type":"string","enum":["CRITICAL","HIGH","MEDIUM","LOW","UNKNOWN"],"default":"UNKNOWN"},
		"links":{"type":"array","items":{"type":"string"}},
		"cvss":{"type":"object","additionalProperties":{"type":"object","properties":{"vector":{"type":"string"},"score":{"type":"number"}}}},
		"raw":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}}}}`

// report makes the i-th report, which is the same in every run. All reports differ.
func (c *CustomConfig) report(i int) map[string]any {
	p := &textGenerator{rand.New(rand.NewPCG(uint64(i), uint64(c.Bytes))), strings.Fields(vocabulary)}
	findings, size := []any{}, 300
	for size < c.Bytes-400 {
		finding := p.finding(c.Bytes < 4000)
		findings, size = append(findings, finding), size+len(EncodeJSON(finding))+1
	}
	summary := map[string]any{}
	for _, severity := range severities() {
		summary[strings.ToLower(severity)] = p.IntN(300)
	}
	return map[string]any{
		"apiVersion": "bench.example.com/v1", "kind": "Report",
		"metadata": map[string]any{"name": c.name(i), "labels": map[string]any{"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%100)}},
		"report": map[string]any{
			"artifact":        map[string]any{"repository": "example/" + p.words(1), "tag": "v1.2.3", "digest": "sha256:" + p.hex(64)},
			"updateTimestamp": time.Unix(1700000000+p.Int64N(1e7), 0).UTC().Format(time.RFC3339),
			"summary":         summary, "findings": findings,
		},
	}
}

type textGenerator struct {
	*rand.Rand
	vocabulary []string
}

func (t *textGenerator) finding(short bool) map[string]any {
	severities := severities()
	f := map[string]any{
		"id": fmt.Sprintf("CVE-20%02d-%05d", t.IntN(26), t.IntN(99999)), "resource": "lib" + t.words(1),
		"installedVersion": fmt.Sprintf("%d.%d.%d-r%d", t.IntN(9), t.IntN(30), t.IntN(90), t.IntN(9)),
		"severity":         severities[t.IntN(len(severities))], "score": float64(t.IntN(100)) / 10, "title": t.words(6),
	}
	if short {
		return f
	}
	f["description"] = t.words(20+t.IntN(60)) + []string{".", " <b>\"quoted\"</b> & more\n", " – größer als erwartet, 漏洞\t"}[t.IntN(3)]
	f["line"] = t.IntN(100000)
	links := make([]any, t.IntN(8))
	for i := range links {
		links[i] = "https://example.com/advisories/" + t.words(1) + "/" + t.hex(8) + "?a=1&b=2"
	}
	f["links"] = links
	f["cvss"] = map[string]any{"nvd": map[string]any{"score": float64(t.IntN(100)) / 10, "vector": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}}
	f["raw"] = map[string]any{"hash": t.hex(40), "nested": map[string]any{t.words(1): []any{t.IntN(10), t.words(3), true, nil}}}
	return f
}

const vocabulary = "a the of in an to and is was by for with that remote attacker crafted request allows overflow buffer heap stack memory " +
	"library server client parser validation improper input execution arbitrary code denial service crash version before after fixed package " +
	"kernel function pointer use free integer signed length header certificate chain verify bypass privilege escalation local user file path " +
	"traversal injection command shell sql template cross site scripting token session cookie leak disclosure sensitive information race " +
	"condition lock thread loop infinite regular expression compression archive symlink container image layer registry runtime node cluster"

func severities() []string { return []string{"CRITICAL", "HIGH", "MEDIUM", "LOW", "UNKNOWN"} }

func (t *textGenerator) words(n int) string {
	return strings.Join(sequence(n, func(int) string { return t.vocabulary[t.IntN(len(t.vocabulary))] }), " ")
}

func (t *textGenerator) hex(n int) string {
	return string(sequence(n, func(int) byte { return "0123456789abcdef"[t.IntN(16)] }))
}
