package report_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/thresholds"
)

// TestJSONIsReadAgain checks that a written report can be read, and that other versions are rejected.
func TestJSONIsReadAgain(t *testing.T) {
	r := full()
	r.Cases = []thresholds.Case{{Result: "a", Bound: "b", Is: "c", Crossed: true}}
	r.Changes = []thresholds.Change{{Result: "a", Figure: "p99", Old: 1, New: 2, Ratio: 2, P: 0.01, Worse: true}}
	var first, second bytes.Buffer
	if err := r.JSON(&first); err != nil {
		t.Fatal(err)
	}
	got, err := report.Read(bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := got.JSON(&second); err != nil || first.String() != second.String() {
		t.Errorf("error %v; wrote\n%s\nread\n%s", err, first.String(), second.String())
	}
	if len(got.All()) != 6 || got.All()[0].Name != "B1 kube-apiserver" {
		t.Errorf("%d results, the first %q", len(got.All()), got.All()[0].Name)
	}
	for text, want := range map[string]string{`{}`: "schema version 0, want 4", `{"schemaVersion":1}`: "schema version 1", `x`: "not JSON"} {
		if _, err := report.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

// TestCSV checks that there is one line for each second.
func TestCSV(t *testing.T) {
	second := bench.Counts{Ops: 5, Errors: 1, Timeouts: 2, Refused: 1, Latency: hdrhistogram.New(1, 600e6, 2)}
	second.Latency.RecordValue(2000)
	r := &report.Report{Date: time.Unix(0, 0), Results: []*bench.Result{
		{Name: "a, with a comma", Series: []bench.Counts{second, {}}}, {Name: "b", Round: 2, Series: []bench.Counts{second}}, {Name: "none"},
	}}
	var out bytes.Buffer
	if err := r.CSV(&out); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	want := "[[result round second ops errors timeouts refused p50_ms p99_ms] [a, with a comma 1 0 5 1 2 1 2.007 2.007] [a, with a comma 1 1 0 0 0 0 0.000 0.000] [b 2 0 5 1 2 1 2.007 2.007]]"
	if err != nil || fmt.Sprint(rows) != want {
		t.Errorf("error %v, got\n%v\nwant\n%v", err, rows, want)
	}
}
