package report

import (
	"fmt"
	"html"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/compare"
)

// escape makes a text fit for HTML and SVG.
func escape(s string) string { return html.EscapeString(s) }

// page is the HTML report. Colours are variables that follow the reader's scheme.
var page = template.Must(template.New("report").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; --fg: #1c2024; --bg: #ffffff; --faint: #5f6b76; --rule: #d8dee4; --good: #1a7f37; --bad: #b3261e;
  --c0: #b3541e; --c1: #7a7f87; --c2: #1f6feb; --c3: #2e8540; --c4: #8250df; --c5: #0f7b8a; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e9ed; --bg: #14171a; --faint: #9aa4ae; --rule: #333a41; --good: #57c26f; --bad: #ff8a80;
  --c0: #f0965a; --c1: #a5abb3; --c2: #6ea8fe; --c3: #6fce85; --c4: #b794f6; --c5: #5cc9d6; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin-bottom: .2rem; }
p.faint, .faint { color: var(--faint); } code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
th { color: var(--faint); font-weight: 600; } td.l, th.l { text-align: left; } .yes { color: var(--good); } .no { color: var(--bad); font-weight: 600; }
svg { width: 100%; max-width: 56rem; height: auto; display: block; font: 11px system-ui, sans-serif; }
text { fill: var(--fg); } .tick { fill: var(--faint); } .label { fill: var(--faint); } .grid { stroke: var(--rule); } .goal { stroke: var(--fg); stroke-width: 2; }
.line { fill: none; stroke-width: 2; } .line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); } .line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.bar.c0, .dot.c0, .key.c0 { fill: var(--c0); background: var(--c0); } .bar.c1, .dot.c1, .key.c1 { fill: var(--c1); background: var(--c1); } .bar.c2, .dot.c2, .key.c2 { fill: var(--c2); background: var(--c2); }
.dot.c3, .key.c3 { fill: var(--c3); background: var(--c3); } .dot.c4, .key.c4 { fill: var(--c4); background: var(--c4); } .dot.c5, .key.c5 { fill: var(--c5); background: var(--c5); }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; border-radius: 2px; }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<p class="faint">{{.Date}}, {{.Machine}}<br/><code>{{.Command}}</code></p>
{{with .Table}}
<p>{{.Servers}} {{.Legend}}</p>
<div class="wide"><table>
<tr>{{range $i, $h := .Heads}}<th{{if lt $i 2}} class="l"{{end}}>{{$h}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range $i, $c := .Cells}}<td{{if lt $i 2}} class="l"{{end}}>{{$c}}</td>{{end}}<td class="{{.Class}}">{{.Verdict}}</td></tr>
{{end}}</table></div>
<h2>Beside each other</h2>
<p class="faint">{{template "keys" .Keys}}<br/>Logarithmic; the stroke is the goal.</p>
{{.Bars}}
{{end}}
{{range .Charts}}
<h2>{{.Title}}</h2>
<p class="faint">{{.Y}}{{template "keys" .Keys}}</p>
{{.SVG}}
{{end}}
{{if .Results}}
<h2>Workloads</h2>
<div class="wide"><table>
<tr><th class="l">workload</th><th>ops</th><th>failed</th><th>bytes/op</th><th>ops/s</th><th>server CPU/op</th><th>write calls/op</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>max</th><th>RSS</th><th>anonymous</th><th>peak RSS</th><th>client CPU</th><th class="l">more</th></tr>
{{range .Results}}<tr><td class="l">{{.Name}}</td>{{range .Cells}}<td>{{.}}</td>{{end}}<td class="l">{{.More}}</td></tr>
{{end}}</table></div>
{{end}}
</body>
</html>
{{define "keys"}}{{range $i, $k := .}}<span class="key c{{$k.Color}}"></span>{{$k.Name}}{{end}}{{end}}
`))

// The page's data: all that it shows, formatted.
type (
	pageData struct {
		Title, Date, Machine, Command string
		Table                         *pageTable
		Charts                        []pageChart
		Results                       []pageResult
	}
	pageTable struct {
		Servers, Legend string
		Heads           []string
		Rows            []pageRow
		Keys            []key
		Bars            template.HTML
	}
	pageRow struct {
		Cells          []string
		Verdict, Class string
	}
	pageChart struct {
		Title, Y string
		Keys     []key
		SVG      template.HTML
	}
	pageResult struct {
		Name  string
		Cells []string
		More  string
	}
	key struct {
		Name  string
		Color int
	}
)

// HTML writes the report as one page.
func (r *Report) HTML(w io.Writer) error {
	data := pageData{Title: r.Title, Date: r.Date.Format(time.RFC1123), Machine: r.Machine, Command: r.Command}
	results, charts := r.Results, r.Charts
	if r.Table != nil {
		data.Table = tableOf(r.Table)
		results = append(r.Table.Results(), results...)
	}
	for _, chart := range append([]Chart{latencies(r.Results)}, overTime(r.Results)...) {
		if len(chart.Series) > 0 {
			charts = append(charts[:len(charts):len(charts)], chart)
		}
	}
	for _, c := range charts {
		// The drawing escapes all texts that it holds.
		data.Charts = append(data.Charts, pageChart{Title: c.Title, Y: c.Y, Keys: c.keys(), SVG: template.HTML(c.SVG())})
	}
	for _, result := range results {
		data.Results = append(data.Results, resultOf(result))
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (c *Chart) keys() []key {
	var all []key
	for i, s := range c.Series {
		all = append(all, key{s.Name, i % colors})
	}
	return all
}

func tableOf(t *compare.Table) *pageTable {
	heads := compare.Heads()
	p := &pageTable{
		Servers: t.Servers, Legend: t.Legend(), Heads: append(without(heads, verdictColumn), heads[verdictColumn]),
		Keys: []key{{compare.Stock.String(), 0}, {compare.Limit.String(), 1}, {compare.Larder.String(), 2}}, Bars: template.HTML(bars(t)),
	}
	for _, row := range t.Rows {
		cells := row.Cells()
		verdict, class := "", ""
		switch {
		case cells[verdictColumn] == "":
		case row.Met():
			verdict, class = "met", "yes"
		default:
			verdict, class = "missed", "no"
		}
		p.Rows = append(p.Rows, pageRow{Cells: without(cells, verdictColumn), Verdict: verdict, Class: class})
	}
	return p
}

// verdictColumn is the column in which compare's cells say whether the goal is met.
const verdictColumn = 8

func without(cells []string, i int) []string {
	return append(cells[:i:i], cells[i+1:]...)
}

// title names a result, with its round.
func title(r *bench.Result) string {
	if r.Round == 0 {
		return r.Name
	}
	return fmt.Sprintf("%s, round %d", r.Name, r.Round)
}

func resultOf(r *bench.Result) pageResult {
	p := pageResult{Name: title(r), More: strings.TrimSpace(r.Details() + " " + r.Endings()), Cells: []string{
		r.Counted(), fmt.Sprint(r.Failures()), bench.Bytes(r.BytesPerOp()), fmt.Sprintf("%.4g", r.Rate()),
		bench.Duration(r.CPUPerOp()), fmt.Sprintf("%.3g", r.WritesPerOp()),
	}}
	for _, q := range []float64{50, 90, 99, 99.9, 100} {
		p.Cells = append(p.Cells, bench.Duration(r.Quantile(q)))
	}
	p.Cells = append(p.Cells, bench.Bytes(r.Server.RSS), bench.Bytes(r.Server.Anonymous), bench.Bytes(r.Server.PeakRSS), bench.Duration(r.ClientCPU))
	if r.FirstError != "" {
		p.More += " first error: " + r.FirstError
	}
	return p
}

// latencies plots the whole distribution of each result: how long the slowest part of
// the operations took, from the slowest half to the slowest few.
func latencies(results []*bench.Result) Chart {
	c := Chart{Title: "Latency", X: "one operation in so many is slower", Y: "latency by rareness", Seconds: true}
	for _, r := range results {
		if r.Latency == nil || r.Latency.TotalCount() == 0 {
			continue
		}
		s := Series{Name: title(r)}
		for rare := 1.25; rare <= float64(r.Latency.TotalCount())*1.0001; rare *= 1.25 {
			s.Points = append(s.Points, Point{X: rare, Y: r.Quantile(100 - 100/rare).Seconds()})
		}
		if len(s.Points) > 0 {
			c.Series = append(c.Series, s)
		}
	}
	return c
}
