package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ReportsConfig says how many reports there are, how large, and what is done to them.
type ReportsConfig struct {
	Objects, Namespaces int
	// Bytes is about how large each is.
	Bytes int
	// Loose says that their definition does not describe them: it keeps what it does not
	// know, and sets no defaults.
	Loose bool
	// Changes is how many writes are made of each kind, at most as many as there are objects.
	Changes int
	// Clients is how many requests are under way at a time.
	Clients int
	// Round makes the changes of each call differ.
	Round int
}

// reportSchema describes reports as a scanner of images writes them: long arrays of objects
// with strings of many lengths, nested maps, defaults, and a part that is not described.
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

const looseSchema = `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`

const reportsManager = "scanner"

func (c *ReportsConfig) kind() (plural, kind, schema string) {
	if c.Loose {
		return "documents", "Document", looseSchema
	}
	return "reports", "Report", reportSchema
}

// ReportsPath is the path of the collection that Reports fills.
func (c *ReportsConfig) ReportsPath() string {
	plural, _, _ := c.kind()
	return "/apis/bench.example.com/v1/" + plural
}

// Names of the Results of Reports, in their order.
const (
	ReportsCreate     = "create reports"
	ReportsUpdate     = "update reports"
	ReportsPatch      = "merge-patch reports"
	ReportsApply      = "apply a part of reports"
	ReportsApplyWhole = "apply whole reports"
)

// ReportsKinds are the names of the Results of Reports.
func ReportsKinds() []string {
	return []string{ReportsCreate, ReportsUpdate, ReportsPatch, ReportsApply, ReportsApplyWhole}
}

// Reports defines a resource, creates objects of it, and changes some of them by update, by
// merge patch and by server-side apply. It leaves objects that exist already. It ends at the
// first write that fails.
func Reports(ctx context.Context, t *Target, c ReportsConfig) ([]*Result, error) {
	if c.Objects < 1 || c.Namespaces < 1 || c.Changes > c.Objects {
		return nil, fmt.Errorf("bench: want at least one object and one namespace, and no more changes than objects, got %d, %d and %d", c.Objects, c.Namespaces, c.Changes)
	}
	plural, kind, schema := c.kind()
	if err := define(ctx, t, crd{plural: plural, kind: kind, schema: schema, columns: []any{
		map[string]any{"name": "Tag", "type": "string", "jsonPath": ".report.artifact.tag"},
		map[string]any{"name": "Critical", "type": "integer", "jsonPath": ".report.summary.critical"},
		map[string]any{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
	}}); err != nil {
		return nil, err
	}
	if err := t.ensureNamespaces(ctx, c.Namespaces); err != nil {
		return nil, err
	}
	var results []*Result
	for _, name := range ReportsKinds() {
		if name != ReportsCreate && c.Changes == 0 {
			break
		}
		writes, err := c.writes(ctx, t, name)
		if err != nil {
			return results, err
		}
		r, err := repeatWrites(ctx, t, c.Clients, writes)
		if err != nil {
			return results, err
		}
		if results = append(results, r); r.Interrupted {
			break
		}
	}
	return results, nil
}

// writes are the writes of one kind.
func (c *ReportsConfig) writes(ctx context.Context, t *Target, name string) (customWrites, error) {
	w := customWrites{name: name, n: c.Changes}
	path := func(i int, query string) string { return c.path(i) + "/" + reportName(i) + "?" + query }
	change := func(i int) string { return fmt.Sprintf("%d-%d-%s", c.Round, i, name) }
	switch name {
	case ReportsCreate:
		w.n = c.Objects
		w.call = func(i int) call {
			return call{method: http.MethodPost, path: c.path(i) + "?fieldManager=" + reportsManager, accept: JSON, kind: JSON, body: encodeJSON(c.report(i))}
		}
	case ReportsUpdate:
		revisions, err := t.revisions(ctx, c.ReportsPath())
		if err != nil {
			return w, err
		}
		w.call = func(i int) call {
			report := c.report(i)
			report["metadata"].(map[string]any)["resourceVersion"] = revisions[reportName(i)]
			report["report"].(map[string]any)["artifact"].(map[string]any)["tag"] = change(i)
			return call{method: http.MethodPut, path: path(i, "fieldManager="+reportsManager), accept: JSON, kind: JSON, body: encodeJSON(report)}
		}
	case ReportsPatch:
		w.call = func(i int) call {
			body := fmt.Appendf(nil, `{"report":{"artifact":{"tag":%q}}}`, change(i))
			return call{method: http.MethodPatch, path: path(i, "fieldManager="+reportsManager), accept: JSON, kind: string(types.MergePatchType), body: body}
		}
	case ReportsApply:
		_, kind, _ := c.kind()
		w.call = func(i int) call {
			body := fmt.Appendf(nil, `{"apiVersion":"bench.example.com/v1","kind":%q,"metadata":{"name":%q,"labels":{"seen":"yes"}},"report":{"artifact":{"tag":%q}}}`, kind, reportName(i), change(i))
			return call{method: http.MethodPatch, path: path(i, "fieldManager=part&force=true"), accept: JSON, kind: string(types.ApplyYAMLPatchType), body: body}
		}
	case ReportsApplyWhole:
		w.call = func(i int) call {
			report := c.report(i)
			report["report"].(map[string]any)["artifact"].(map[string]any)["tag"] = change(i)
			return call{method: http.MethodPatch, path: path(i, "fieldManager=whole&force=true"), accept: JSON, kind: string(types.ApplyYAMLPatchType), body: encodeJSON(report)}
		}
	}
	return w, nil
}

// path is the path of the collection of the i-th report.
func (c *ReportsConfig) path(i int) string {
	plural, _, _ := c.kind()
	return "/apis/bench.example.com/v1/namespaces/" + fmt.Sprintf(namespaceFormat, i%c.Namespaces) + "/" + plural
}

func reportName(i int) string { return fmt.Sprintf("report-%d", i) }

// report makes the i-th report: always the same, and no two alike.
func (c *ReportsConfig) report(i int) map[string]any {
	_, kind, _ := c.kind()
	p := &textGenerator{rand.New(rand.NewPCG(uint64(i), uint64(c.Bytes))), strings.Fields(vocabulary)}
	findings, size := []any{}, 300
	for size < c.Bytes-400 {
		finding := p.finding(c.Bytes < 4000)
		findings, size = append(findings, finding), size+len(encodeJSON(finding))+1
	}
	summary := map[string]any{}
	for _, severity := range severities() {
		summary[strings.ToLower(severity)] = p.IntN(300)
	}
	return map[string]any{
		"apiVersion": "bench.example.com/v1", "kind": kind,
		"metadata": map[string]any{"name": reportName(i), "labels": map[string]any{"app.kubernetes.io/name": fmt.Sprintf("app-%d", i%100)}},
		"report": map[string]any{
			"artifact":        map[string]any{"repository": "example/" + p.words(1), "tag": "v1.2.3", "digest": "sha256:" + p.hex(64)},
			"updateTimestamp": time.Unix(1700000000+p.Int64N(1e7), 0).UTC().Format(time.RFC3339),
			"summary":         summary, "findings": findings,
		},
	}
}

// textGenerator draws words and texts.
type textGenerator struct {
	*rand.Rand
	vocabulary []string
}

// finding makes one of a report's findings.
func (p *textGenerator) finding(short bool) map[string]any {
	severities := severities()
	f := map[string]any{
		"id": fmt.Sprintf("CVE-20%02d-%05d", p.IntN(26), p.IntN(99999)), "resource": "lib" + p.words(1),
		"installedVersion": fmt.Sprintf("%d.%d.%d-r%d", p.IntN(9), p.IntN(30), p.IntN(90), p.IntN(9)),
		"severity":         severities[p.IntN(len(severities))], "score": float64(p.IntN(100)) / 10, "title": p.words(6),
	}
	if short {
		return f
	}
	f["description"] = p.words(20+p.IntN(60)) + []string{".", " <b>\"quoted\"</b> & more\n", " – größer als erwartet, 漏洞\t"}[p.IntN(3)]
	f["line"] = p.IntN(100000)
	links := make([]any, p.IntN(8))
	for i := range links {
		links[i] = "https://example.com/advisories/" + p.words(1) + "/" + p.hex(8) + "?a=1&b=2"
	}
	f["links"] = links
	f["cvss"] = map[string]any{"nvd": map[string]any{"score": float64(p.IntN(100)) / 10, "vector": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}}
	f["raw"] = map[string]any{"hash": p.hex(40), "nested": map[string]any{p.words(1): []any{p.IntN(10), p.words(3), true, nil}}}
	return f
}

const vocabulary = "a the of in an to and is was by for with that remote attacker crafted request allows overflow buffer heap stack memory " +
	"library server client parser validation improper input execution arbitrary code denial service crash version before after fixed package " +
	"kernel function pointer use free integer signed length header certificate chain verify bypass privilege escalation local user file path " +
	"traversal injection command shell sql template cross site scripting token session cookie leak disclosure sensitive information race " +
	"condition lock thread loop infinite regular expression compression archive symlink container image layer registry runtime node cluster"

func severities() []string { return []string{"CRITICAL", "HIGH", "MEDIUM", "LOW", "UNKNOWN"} }

func (p *textGenerator) words(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(p.vocabulary[p.IntN(len(p.vocabulary))])
	}
	return b.String()
}

func (p *textGenerator) hex(n int) string {
	const digits = "0123456789abcdef"
	b := make([]byte, n)
	for i := range b {
		b[i] = digits[p.IntN(16)]
	}
	return string(b)
}
