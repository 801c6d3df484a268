package report_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
)

// TestCSV checks that there is a line for each second.
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
		t.Errorf("%v: got\n%v\nwant\n%v", err, rows, want)
	}
}
