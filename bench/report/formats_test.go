package report_test

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/thresholds"
)

// TestJSONIsReadAgain reads what was written, and refuses what another version has written.
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
		t.Errorf("%v:\n%s\nbecame\n%s", err, first.String(), second.String())
	}
	if len(got.All()) != 2+6 || got.All()[0].Name != "B1 kube-apiserver" {
		t.Errorf("%d results, the first %q", len(got.All()), got.All()[0].Name)
	}
	for text, want := range map[string]string{`{}`: "schema version 0, want 1", `{"schemaVersion":2}`: "schema version 2", `x`: "no JSON"} {
		if _, err := report.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestBenchstat has lines as Go's benchmarks have, whatever the names.
func TestBenchstat(t *testing.T) {
	var out bytes.Buffer
	if err := full().Benchstat(&out); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^Benchmark[^a-z\s-][^\s-]* \d+( [0-9.e+]+ [a-z0-9/-]+)+$`)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2+6+1 || lines[0][:5] != "goos:" {
		t.Errorf("%d lines, want two of the machine, six of the table and one result that did something:\n%s", len(lines), out.String())
	}
	for _, l := range lines[2:] {
		if !line.MatchString(l) {
			t.Errorf("%q is no line of a benchmark", l)
		}
	}
	if !strings.Contains(out.String(), "BenchmarkB1_Larder 999 ") || !strings.Contains(out.String(), " p99-ns/op ") {
		t.Errorf("got\n%s", out.String())
	}
}

// TestJUnit counts what failed.
func TestJUnit(t *testing.T) {
	r := full()
	r.Cases = []thresholds.Case{{Result: hostile, Bound: "--max-p99 1.00 ms", Is: "2.00 ms", Crossed: true}, {Result: "b", Bound: "--max-errors 0", Is: "0"}}
	for name, failed := range map[string]error{"a run": nil, "a run that failed": errors.New("no connection")} {
		var out bytes.Buffer
		if err := r.JUnit(&out, failed); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Suites []struct {
				Tests    int `xml:"tests,attr"`
				Failures int `xml:"failures,attr"`
				Errors   int `xml:"errors,attr"`
				Cases    []struct {
					Class   string `xml:"classname,attr"`
					Failure *struct {
						Message string `xml:"message,attr"`
					} `xml:"failure"`
				} `xml:"testcase"`
			} `xml:"testsuite"`
		}
		if err := xml.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		s := got.Suites[0]
		broken := 0
		if failed != nil {
			broken = 1
		}
		if s.Tests != 2+broken || s.Failures != 1 || s.Errors != broken || len(s.Cases) != s.Tests || s.Cases[0].Class != hostile || s.Cases[0].Failure == nil || s.Cases[1].Failure != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestCSV has a line for each second.
func TestCSV(t *testing.T) {
	second := bench.Second{Ops: 5, Errors: 1, Timeouts: 2, Refused: 1, Latency: hdrhistogram.New(1, 600e6, 2)}
	second.Latency.RecordValue(2000)
	r := &report.Report{Date: time.Unix(0, 0), Results: []*bench.Result{
		{Name: "a, with a comma", Series: []bench.Second{second, {}}}, {Name: "b", Round: 2, Series: []bench.Second{second}}, {Name: "none"},
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
	var page bytes.Buffer
	if err := r.HTML(&page); err != nil || strings.Count(page.String(), "over time") != 2 {
		t.Errorf("%v: the page plots no series", err)
	}
}
