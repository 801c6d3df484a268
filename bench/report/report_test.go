package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/compare"
	"github.com/larder-io/larder/bench/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostile is a text with characters that formats have to escape.
const hostile = `<script>alert("x" & 'y')</script>`

func result(name string) *bench.Result {
	r := &bench.Result{Name: name, Unit: "request", Counts: bench.Counts{Ops: 1000, Errors: 1, Latency: hdrhistogram.New(1, 1e8, 3)}, Wall: time.Second, ServerCPU: time.Second, FirstError: hostile}
	for i := range 1000 {
		r.Latency.RecordValue(int64(100 + i*i))
	}
	return r
}

func full() *report.Report {
	row := &compare.Row{ID: "B1", Work: "LIST " + hostile, Body: 48e6, Figures: []compare.Figure{
		{Unit: compare.Seconds, Best: map[string]float64{compare.Stock: 0.444, compare.Limit: 0.027, compare.Larder: 0.030}},
	}}
	writes := &compare.Row{ID: "B27", Work: "create", Figures: []compare.Figure{
		{Unit: compare.Seconds, Best: map[string]float64{compare.Stock: 0.001, compare.Limit: 0, compare.Larder: 0.0009}},
		{Unit: compare.PerSecond, Best: map[string]float64{compare.Stock: 100, compare.Limit: 0, compare.Larder: 200}},
	}}
	for _, r := range []*compare.Row{row, writes} {
		r.Results = make(map[string][]*bench.Result)
		for _, k := range []string{compare.Stock, compare.Limit, compare.Larder} {
			r.Results[k] = append(r.Results[k], result("round"))
		}
	}
	return &report.Report{
		Title: "title " + hostile, Command: "command " + hostile, Machine: "machine", Date: time.Unix(0, 0).UTC(),
		Table: &compare.Table{Servers: "servers", Rounds: 3, Rows: []*compare.Row{row, writes}},
	}
}

// TestTextAndJSON checks that both formats contain the rows, with special characters escaped.
func TestTextAndJSON(t *testing.T) {
	r := full()
	var text, raw bytes.Buffer
	if err := errors.Join(r.Text(&text), r.JSON(&raw)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| B1 | LIST " + hostile + " | 48.0 MB | 444 ms | 27.0 ms | 30.0 ms | 14.8 | 1.11 |",
		"| B27 | create |  | 1.00 ms, 100/s |  | 900 µs, 200/s | 1.11, 2 |  |",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, text.String())
		}
	}
	var results strings.Builder
	if err := (&report.Report{Results: []*bench.Result{result("workload " + hostile)}}).Text(&results); err != nil || !strings.Contains(results.String(), "1000 requests") {
		t.Errorf("error %v, or no requests in\n%s", err, &results)
	}
	var got struct {
		Title string
		Table struct {
			Rows []struct {
				ID      string
				Results map[string][]struct{ Ops int }
			}
		}
	}
	if err := json.Unmarshal(raw.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	rows := got.Table.Rows
	if got.Title != r.Title || len(rows) != 2 || rows[0].Results["Larder"][0].Ops != 1000 {
		t.Errorf("got %+v", got)
	}
}

// TestTableComparesServers checks that the table shows both servers side by side: the median, minimum and maximum of all rounds, and
// the ratio of the medians.
func TestTableComparesServers(t *testing.T) {
	at := func(server, work string, cpu time.Duration) *bench.Result {
		return &bench.Result{Name: server + ": " + work, Counts: bench.Counts{Ops: 1}, ServerCPU: cpu, Values: []bench.Value{{Name: "heap", Value: 1e6, Unit: "B"}}}
	}
	failed := at("Larder", "b", time.Second)
	failed.Errors, failed.FirstError = 2, "out of memory"
	r := &report.Report{Pairs: true, Command: "larder-bench starts", Results: []*bench.Result{
		at("kube-apiserver", "a", 10*time.Second), at("kube-apiserver", "a", 14*time.Second), at("Larder", "b", time.Second), failed, at("Larder", "a", 2*time.Second),
	}}
	for _, want := range []string{
		"| a | CPU of the server | 12.0 s (10.0 s–14.0 s) | 2.00 s | 6 |\n| a | heap | 1.00 MB | 1.00 MB | 1 |\n| b |",
		"| b | CPU of the server |  | 1.00 s |  |", "Larder: b: 2 failures, the first: out of memory", "    larder-bench starts",
	} {
		var text strings.Builder
		if err := r.Markdown(&text); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("error %v, or no %q in\n%s", err, want, &text)
		}
	}
}
