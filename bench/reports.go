package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

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
