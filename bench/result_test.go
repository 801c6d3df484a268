package bench_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
)

// some is a result of operations that took 1 ms, 2 ms and so on.
func some(n, failed int) *bench.Result {
	r := &bench.Result{
		Name: "some", Unit: "request", Ops: n, Errors: failed, Bytes: int64(1000 * (n - failed)), Wall: time.Duration(n) * time.Millisecond,
		ServerCPU: time.Duration(n-failed) * 300 * time.Microsecond, Writes: int64(2 * (n - failed)),
		Server: process.Usage{RSS: 50e6, PeakRSS: 60e6}, Latency: hdrhistogram.New(1, 1e8, 3),
	}
	for i := 1; i <= n-failed; i++ {
		r.Latency.RecordValue(int64(i) * 1000)
	}
	return r
}

func TestResultArithmetic(t *testing.T) {
	r := some(100, 0)
	if r.CPUPerOp() != 300*time.Microsecond || r.Rate() != 1000 || r.BytesPerOp() != 1000 || r.WritesPerOp() != 2 {
		t.Errorf("per operation: %v, %g/s, %d B, %g writes", r.CPUPerOp(), r.Rate(), r.BytesPerOp(), r.WritesPerOp())
	}
	for q, want := range map[float64]time.Duration{50: 50 * time.Millisecond, 99: 99 * time.Millisecond, 100: 100 * time.Millisecond} {
		if got := r.Quantile(q); got < want || got > want+want/500 {
			t.Errorf("p%g is %v, want %v within three digits", q, got, want)
		}
	}
	var nothing bench.Result
	if nothing.CPUPerOp() != 0 || nothing.Rate() != 0 || nothing.Quantile(99) != 0 || nothing.BytesPerOp() != 0 {
		t.Error("a result of nothing has figures")
	}
}

func TestMergeAddsUp(t *testing.T) {
	a, b := some(100, 0), some(50, 10)
	b.FirstError = "failure"
	sum := bench.Merge(a, b)
	if sum.Ops != 150 || sum.Errors != 10 || sum.Wall != 150*time.Millisecond || sum.ServerCPU != 140*300*time.Microsecond || sum.FirstError != "failure" {
		t.Errorf("got %+v", sum)
	}
	if sum.Latency.TotalCount() != 140 || sum.Quantile(100) != a.Quantile(100) {
		t.Errorf("%d latencies up to %v", sum.Latency.TotalCount(), sum.Quantile(100))
	}
	if a.Ops != 100 || a.Latency.TotalCount() != 100 {
		t.Error("merging changed what was merged")
	}
	if bench.Merge() != nil {
		t.Error("nothing merged is something")
	}
}

func TestResultAsJSON(t *testing.T) {
	r := some(100, 0)
	r.Values = []bench.Value{{Name: "memory", Value: 12, Unit: "B"}}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Name    string
		Ops     int
		PerOp   int64 `json:"serverCPUPerOpNanoseconds"`
		Latency struct {
			P99 int64
			HDR string
		}
		Values []bench.Value
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "some" || got.Ops != 100 || got.PerOp != 300_000 || time.Duration(got.Latency.P99) != r.Quantile(99) || len(got.Values) != 1 {
		t.Errorf("got %+v of %s", got, raw)
	}
	decoded, err := hdrhistogram.Decode([]byte(got.Latency.HDR))
	if err != nil || decoded.TotalCount() != 100 || decoded.ValueAtQuantile(50) != r.Latency.ValueAtQuantile(50) {
		t.Errorf("the histogram does not come back: %v", err)
	}
}

func TestThresholds(t *testing.T) {
	r := some(100, 2)
	for _, c := range []struct {
		name    string
		t       bench.Thresholds
		crossed string
	}{
		{"none", bench.Thresholds{MaxErrors: -1}, ""},
		{"errors", bench.Thresholds{}, "2 errors"},
		{"some errors", bench.Thresholds{MaxErrors: 2}, ""},
		{"p50", bench.Thresholds{MaxErrors: -1, MaxP50: 40 * time.Millisecond}, "p50 is 49"},
		{"p99 kept", bench.Thresholds{MaxErrors: -1, MaxP99: 99 * time.Millisecond}, ""},
		{"p99", bench.Thresholds{MaxErrors: -1, MaxP99: 90 * time.Millisecond}, "p99"},
		{"longest", bench.Thresholds{MaxErrors: -1, MaxLatency: 90 * time.Millisecond}, "longest"},
		{"CPU", bench.Thresholds{MaxErrors: -1, MaxCPUPerOp: 299 * time.Microsecond}, "CPU per request is 300 µs"},
		{"CPU kept", bench.Thresholds{MaxErrors: -1, MaxCPUPerOp: 300 * time.Microsecond}, ""},
		{"rate", bench.Thresholds{MaxErrors: -1, MinRate: 2000}, "980 per second"},
		{"memory", bench.Thresholds{MaxErrors: -1, MaxRSS: 49e6}, "RSS is 50.0 MB"},
		{"peak", bench.Thresholds{MaxErrors: -1, MaxRSS: 51e6, MaxPeakRSS: 51e6}, "peak RSS is 60.0 MB"},
		{"two", bench.Thresholds{MaxErrors: 1, MinRate: 2000}, "per second"},
	} {
		err := c.t.Check(r)
		if c.crossed == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.crossed != "" && (!errors.Is(err, bench.ErrThreshold) || !strings.Contains(err.Error(), c.crossed)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.crossed)
		}
	}
	unmeasured := &bench.Result{Name: "elsewhere", Ops: 1, Wall: 1}
	for name, bound := range map[string]bench.Thresholds{"CPU": {MaxCPUPerOp: time.Hour}, "RSS": {MaxRSS: 1 << 40}, "p99": {MaxP99: time.Hour}} {
		if bound.Check(unmeasured) == nil {
			t.Errorf("%s was not measured, and its bound was kept", name)
		}
	}
}

func TestText(t *testing.T) {
	with := some(100, 1)
	with.FirstError = "failure"
	with.Values = []bench.Value{{Name: "memory per watch", Value: 12345, Unit: "B"}, {Name: "pace", Value: 2.5, Unit: "/s"}, {Name: "lag", Value: 0.0015, Unit: "s"}}
	with.Beside = []bench.Cost{{Name: "etcd", CPU: time.Second}}
	var out bytes.Buffer
	if err := bench.WriteText(&out, with, &bench.Result{Name: "elsewhere", Unit: "watch", Ops: 3}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"100 requests", "300 µs", "50.0 MB", "first error: failure", "memory per watch 12.3 KB", "pace 2.5/s", "lag 1.50 ms", "CPU of etcd 1.00 s", "3 watches"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
}

func TestFigures(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0", 999: "1.00 µs", 22 * time.Microsecond: "22.0 µs", 1500 * time.Microsecond: "1.50 ms", 444 * time.Millisecond: "444 ms", 2900 * time.Millisecond: "2.90 s", 75 * time.Second: "75.0 s", -time.Millisecond: "-1.00 ms"} {
		if got := bench.Duration(d); got != want {
			t.Errorf("%d ns is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 33_000: "33.0 KB", 48_000_000: "48.0 MB", 5_000_000_000: "5.00 GB", -2000: "-2.00 KB"} {
		if got := bench.Bytes(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	p := bench.Progress{Name: "list", Done: 50, Total: 200, Errors: 1, Elapsed: 10 * time.Second, P50: time.Millisecond, P99: 2 * time.Millisecond}
	if got, want := p.String(), "list: 50/200, 5/s, 1 errors, p50 1.00 ms, p99 2.00 ms, 30s left"; got != want {
		t.Errorf("progress %q, want %q", got, want)
	}
	if got := (bench.Progress{}).String(); got != "" {
		t.Errorf("no progress is %q", got)
	}
	if got := bench.Machine(); !strings.Contains(got, "CPU") || !strings.Contains(got, "go1.") {
		t.Errorf("the machine is %q", got)
	}
}
