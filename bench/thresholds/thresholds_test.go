package thresholds_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/thresholds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// some returns a result with operations that took 1 ms, 2 ms and so on, times a factor.
func some(n int, factor float64) *bench.Result {
	r := &bench.Result{
		Name: "some", Unit: "request", Counts: bench.Counts{Ops: n, Latency: hdrhistogram.New(1, 1e8, 3)}, Wall: time.Duration(float64(n)*factor) * time.Millisecond,
		ServerCPU: time.Duration(float64(n) * factor * float64(300*time.Microsecond)),
		Server:    process.Usage{RSS: 50e6, PeakRSS: 60e6},
	}
	for i := 1; i <= n; i++ {
		r.Latency.RecordValue(int64(float64(i) * factor * 1000))
	}
	return r
}

// parsed returns the thresholds of flags such as "max-p99 20ms".
func parsed(t *testing.T, flags ...string) thresholds.Thresholds {
	t.Helper()
	var all thresholds.Thresholds
	for _, flag := range flags {
		name, text, _ := strings.Cut(flag, " ")
		for _, f := range thresholds.Figures() {
			if f.Name == name {
				b, err := thresholds.ParseBound(f, text)
				if err != nil {
					t.Fatal(err)
				}
				all.Bounds = append(all.Bounds, b)
			}
		}
	}
	if len(all.Bounds) != len(flags) {
		t.Fatalf("%v have %d bounds", flags, len(all.Bounds))
	}
	return all
}

// TestCrossedThresholdsAreReported checks which thresholds a result crosses, and the text of the error.
func TestCrossedThresholdsAreReported(t *testing.T) {
	failing := some(100, 1)
	failing.Errors, failing.Timeouts, failing.Refused = 1, 2, 3
	for _, c := range []struct {
		of      *bench.Result
		flags   string
		crossed string // the complete text of the error
	}{
		{some(100, 1), "", ""},
		{failing, "", "max-errors 0, but it is 1; max-timeouts 0, but it is 2; max-refused 0, but it is 3"},
		{failing, "max-errors -1; max-timeouts 2; max-refused 3", ""},
		{failing, "max-errors 1; max-timeouts 1; max-refused -1", "max-timeouts 1, but it is 2"},
		{some(100, 1), "max-p50 40ms", "max-p50 40.0 ms, but it is 50.0 ms"},
		{some(100, 1), "max-p99 100ms", ""},
		{some(100, 1), "max-p99 90ms", "max-p99 90.0 ms, but it is 99"},
		{some(100, 1), "max-latency 90ms", "max-latency 90.0 ms, but it is 100"},
		{some(100, 1), "max-cpu-per-op 299us", "max-cpu-per-op 299 µs, but it is 300 µs"},
		{some(100, 1), "max-cpu-per-op 300us", ""},
		{some(100, 1), "min-rate 2000", "min-rate 2000, but it is 1000"},
		{some(100, 1), "max-rss 49e6", "max-rss 49.0 MB, but it is 50.0 MB"},
		{some(100, 1), "max-rss 51e6; max-peak-rss 51e6", "max-peak-rss 51.0 MB, but it is 60.0 MB"},
		// A figure that was not measured violates every bound, and the error says why.
		{&bench.Result{Name: "some", Unit: "request", FirstError: "refused", Counts: bench.Counts{Ops: 7, Errors: 7}}, "max-cpu-per-op 1h; max-errors -1",
			"max-cpu-per-op 3600.0 s, but it is unknown, because none of 7 requests has succeeded; first error: refused"},
		{&bench.Result{Name: "some", Counts: bench.Counts{Ops: 1}, Wall: 1}, "max-cpu-per-op 1h; max-rss 1e12; max-p99 1h", "is unknown"},
	} {
		var flags []string
		if c.flags != "" {
			flags = strings.Split(c.flags, "; ")
		}
		err := thresholds.Err(parsed(t, flags...).Evaluate([]*bench.Result{c.of}))
		if c.crossed == "" {
			if err != nil {
				t.Errorf("%s: error %v, want none", c.flags, err)
			}
			continue
		}
		if !errors.Is(err, thresholds.ErrThreshold) {
			t.Errorf("%s: %v, want a crossed threshold", c.flags, err)
			continue
		}
		for _, want := range strings.Split(c.crossed, "; ") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.flags, err, want)
			}
		}
	}
}

// TestThresholdsOfKinds checks that a bound without a name applies to the sum, and one with a name to that kind.
func TestThresholdsOfKinds(t *testing.T) {
	whole, get, node := some(100, 1), some(80, 1), some(20, 10)
	whole.Name, get.Name, node.Name = "mixed load", "get pod", "list node"
	get.Part, node.Part = true, true
	get.ServerCPU, node.ServerCPU = 0, 0
	all := []*bench.Result{whole, get, node}
	for flags, crossed := range map[string]string{
		"max-p99 100ms":                                        "", // no bound applies to list node's 200 ms
		"max-p99 100ms; max-p99 list=199ms":                    "list node: --max-p99 199 ms",
		"max-p99 list=201ms":                                   "",
		"max-p99 list node=199ms":                              "list node: --max-p99 199 ms",
		"max-p99 get=50ms; max-p99 list=199ms":                 "get pod: --max-p99 50.0 ms",
		"max-cpu-per-op 300us; max-rss 50e6":                   "",
		"min-rate 900; min-rate get=1; max-p50 mixed load=1ms": "mixed load: --max-p50",
	} {
		wanted := parsed(t, strings.Split(flags, "; ")...)
		if err := wanted.Check(all); err != nil {
			t.Errorf("%s: error %v, want none", flags, err)
		}
		err := thresholds.Err(wanted.Evaluate(all))
		if (err == nil) != (crossed == "") || err != nil && !strings.Contains(err.Error(), crossed) {
			t.Errorf("%s: error %v, want %q", flags, err, crossed)
		}
	}
	for flag, want := range map[string]string{
		"max-p99 lists=1s": `no result has this name; there are "mixed load", "get pod", "list node"`, "max-cpu-per-op list=1s": "all kinds together",
	} {
		if err := parsed(t, flag).Check(all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", flag, err, want)
		}
	}
}

// TestInvalidBoundsAreRejected checks that ParseBound rejects invalid bounds, and that each flag has a help text.
func TestInvalidBoundsAreRejected(t *testing.T) {
	for _, f := range thresholds.Figures() {
		for _, text := range []string{"", "x", "=1", "list=", "list=x", "-2", "NaN"} {
			if b, err := thresholds.ParseBound(f, text); err == nil {
				t.Errorf("--%s %q was accepted as %+v", f.Name, text, b)
			}
		}
		if f.Help == "" {
			t.Errorf("--%s has no help", f.Name)
		}
	}
}

// rounds returns the results of several rounds that differ by a few thousandths.
func rounds(factor float64, n int) []*bench.Result {
	var all []*bench.Result
	for i := range n {
		r := some(100, factor*(1+float64(i)/1000))
		r.Round = i + 1
		all = append(all, r)
	}
	return all
}

// TestRegressionsAreReported checks which differences from a baseline are regressions.
func TestRegressionsAreReported(t *testing.T) {
	for name, c := range map[string]struct {
		factor     float64
		rounds     int
		regression float64
		worse      string
	}{
		"the same":             {1.0005, 5, 0.05, ""},
		"better":               {0.5, 5, 0, ""},
		"worse":                {1.5, 5, 0.05, "some: --baseline: p99 of 99.2 ms, but it is 149 ms, 1.5 times as much (p=0.008)"},
		"a little worse":       {1.04, 5, 0.05, ""},
		"a little, and wanted": {1.04, 5, 0.01, "p50"},
		"shown alone":          {1.5, 5, -1, ""},
		"too few rounds":       {1.5, 3, 0.05, ""},
	} {
		changes, err := thresholds.Compare(rounds(1, c.rounds), rounds(c.factor, c.rounds), c.regression)
		if err != nil {
			t.Fatal(err)
		}
		err = thresholds.Err(thresholds.Cases(changes))
		if (err == nil) != (c.worse == "") || err != nil && (!errors.Is(err, thresholds.ErrThreshold) || !strings.Contains(err.Error(), c.worse)) {
			t.Errorf("%s: error %v, want %q", name, err, c.worse)
		}
		if len(changes) != 4 || len(thresholds.Cases(changes)) != 4 {
			t.Errorf("%s: %d changes, want p50, p99, the rate and the CPU time", name, len(changes))
		}
		for _, change := range changes {
			want := c.factor
			if change.Figure == "operations per second" {
				want = 1 / want
			}
			if change.Ratio < want*0.97 || change.Ratio > want*1.03 {
				t.Errorf("%s: %s is %g times as much, want %g", name, change.Figure, change.Ratio, want)
			}
		}
		var out bytes.Buffer
		if err := thresholds.WriteChanges(&out, changes); err != nil || !strings.Contains(out.String(), "p99") {
			t.Errorf("%s: %v: %s", name, err, out.String())
		}
	}
}

// TestUnsuitableBaselinesAreRejected checks that unsuitable baselines are rejected before anything is measured.
func TestUnsuitableBaselinesAreRejected(t *testing.T) {
	for want, c := range map[string]struct {
		old   []*bench.Result
		names []string
		now   int
	}{
		`the baseline has 1 rounds of "some" and this run has 5`: {rounds(1, 1), []string{"some"}, 5},
		`the baseline has 5 rounds of "some" and this run has 1`: {rounds(1, 5), []string{"some"}, 1},
		`no result "other", but "some"`:                          {rounds(1, 5), []string{"other"}, 5},
	} {
		if err := thresholds.CanCompare(c.old, c.names, c.now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
	if err := thresholds.CanCompare(rounds(1, 4), []string{"some"}, 4); err != nil {
		t.Error(err)
	}
	other := rounds(1, 5)
	for _, r := range other {
		r.Name = "other"
	}
	if _, err := thresholds.Compare(rounds(1, 5), other, 0); err == nil {
		t.Error("results without a common name were compared")
	}
}
