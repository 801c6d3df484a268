package bench_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
)

// some returns a result with operations that took 1 ms, 2 ms and so on.
func some(n, failed int) *bench.Result {
	r := &bench.Result{
		Name: "some", Unit: "request", Counts: bench.Counts{Ops: n, Errors: failed, Latency: hdrhistogram.New(1, 1e8, 3)}, Bytes: int64(1000 * (n - failed)), Wall: time.Duration(n) * time.Millisecond,
		ServerCPU: time.Duration(n-failed) * 300 * time.Microsecond, Writes: int64(2 * (n - failed)),
		Server: process.Usage{RSS: 50e6, PeakRSS: 60e6},
	}
	for i := 1; i <= n-failed; i++ {
		r.Latency.RecordValue(int64(i) * 1000)
	}
	return r
}

// TestResultArithmetic checks rates, costs per operation and quantiles; those of an empty result are 0.
func TestResultArithmetic(t *testing.T) {
	r := some(100, 0)
	if r.CPUPerOp() != 300*time.Microsecond || r.Rate() != 1000 || r.BytesPerOp() != 1000 {
		t.Errorf("CPU per operation %v, rate %g/s, %d B per operation", r.CPUPerOp(), r.Rate(), r.BytesPerOp())
	}
	for q, want := range map[float64]time.Duration{50: 50 * time.Millisecond, 99: 99 * time.Millisecond, 100: 100 * time.Millisecond} {
		if got := r.Quantile(q); got < want || got > want+want/500 {
			t.Errorf("p%g is %v, want %v within three digits", q, got, want)
		}
	}
	var nothing bench.Result
	if nothing.CPUPerOp() != 0 || nothing.Rate() != 0 || nothing.Quantile(99) != 0 || nothing.BytesPerOp() != 0 {
		t.Error("an empty result has figures")
	}
}

// TestMergeAddsUp checks that Merge adds counts and costs, and does not change its arguments.
func TestMergeAddsUp(t *testing.T) {
	a, b := some(100, 0), some(50, 10)
	b.FirstError = "failure"
	a.Beside, b.Beside = []bench.Cost{{Name: "etcd", CPU: 2}}, []bench.Cost{{Name: "etcd", CPU: 3}}
	sum := bench.Merge(a, b)
	if len(sum.Beside) != 1 || sum.Beside[0].CPU != 5 || a.Beside[0].CPU != 2 {
		t.Errorf("the other processes used %v, want the sum of both runs; the first has %v", sum.Beside, a.Beside)
	}
	if sum.Ops != 150 || sum.Errors != 10 || sum.Wall != 150*time.Millisecond || sum.ServerCPU != 140*300*time.Microsecond || sum.FirstError != "failure" {
		t.Errorf("got %+v", sum)
	}
	if sum.Latency.TotalCount() != 140 || sum.Quantile(100) != a.Quantile(100) {
		t.Errorf("%d latencies, the longest %v", sum.Latency.TotalCount(), sum.Quantile(100))
	}
	if a.Ops != 100 || a.Latency.TotalCount() != 100 {
		t.Error("merging changed its arguments")
	}
	if bench.Merge() != nil {
		t.Error("merging no results returns a result")
	}
}

// TestResultAsJSON checks derived figures in JSON, and that the histogram can be decoded.
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
		t.Errorf("got %+v from %s", got, raw)
	}
	decoded, err := hdrhistogram.Decode([]byte(got.Latency.HDR))
	if err != nil || decoded.TotalCount() != 100 || decoded.ValueAtQuantile(50) != r.Latency.ValueAtQuantile(50) {
		t.Errorf("the histogram cannot be decoded: %v", err)
	}
}

// TestResultsSurviveJSON writes a result with all fields except the series, and reads it again.
func TestResultsSurviveJSON(t *testing.T) {
	r := some(100, 5)
	r.Round, r.Part, r.Loop, r.Late, r.Protocol, r.Interrupted = 3, true, bench.OpenLoop, 7, "HTTP/2", true
	r.Errors, r.Timeouts, r.Refused, r.Retries, r.Statuses = 2, 2, 1, 4, map[int]int{200: 95, 429: 5}
	r.FirstError, r.Before, r.Reads = "first", process.Usage{CPU: 1}, 9
	r.Beside, r.Values = []bench.Cost{{Name: "etcd", CPU: 5}}, []bench.Value{{Name: "v", Value: 1.5, Unit: "s"}}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got bench.Result
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&got)
	if err != nil || !bytes.Equal(raw, again) {
		t.Errorf("error %v; wrote\n%s\nread\n%s", err, raw, again)
	}
	if got.Latency.TotalCount() != 95 {
		t.Errorf("got %d latencies, some are lost", got.Latency.TotalCount())
	}
	if err := json.Unmarshal([]byte(`{"latency":{"hdr":"x"}}`), &got); err == nil {
		t.Error("an invalid histogram was read")
	}
}

// TestMergeParallelIsExact splits a sample into two results and merges them.
func TestMergeParallelIsExact(t *testing.T) {
	whole, a, b := some(100, 0), some(0, 0), some(0, 0)
	for i := 1; i <= 100; i++ {
		part := a
		if i%3 == 0 {
			part = b
		}
		part.Ops++
		part.Bytes += 1000
		part.Latency.RecordValue(int64(i) * 1000)
	}
	a.Timeouts, b.Statuses = 2, map[int]int{200: 7}
	b.Series = []bench.Counts{{Ops: 4, Latency: hdrhistogram.New(1, 600e6, 2)}}
	sum := bench.MergeParallel(a, b)
	if sum.Ops != 100 || sum.Bytes != 100_000 || sum.Timeouts != 2 || sum.Statuses[200] != 7 || len(sum.Series) != 1 || sum.Series[0].Ops != 4 {
		t.Errorf("got %+v", sum)
	}
	if !sum.Latency.Equals(some(100, 0).Latency) && sum.Quantile(99) != whole.Quantile(99) {
		t.Error("the merged histogram differs from that of the whole sample")
	}
	for _, q := range []float64{0, 25, 50, 90, 99, 100} {
		if sum.Quantile(q) != whole.Quantile(q) {
			t.Errorf("p%g is %v, want %v", q, sum.Quantile(q), whole.Quantile(q))
		}
	}
}

// TestRoundsShowTheirSpread checks that all rounds of a workload are one row, with the p99 of each.
func TestRoundsShowTheirSpread(t *testing.T) {
	var out bytes.Buffer
	failing := some(100, 4)
	failing.Errors, failing.Timeouts, failing.Refused, failing.Retries, failing.Late = 1, 2, 1, 3, 5
	failing.Statuses, failing.Loop, failing.Interrupted = map[int]int{200: 96, 429: 4}, bench.OpenLoop, true
	closed := some(10, 0)
	closed.Name, closed.Loop = "other", bench.ClosedLoop
	first := some(100, 0)
	first.Loop = bench.OpenLoop
	if err := bench.WriteText(&out, first, closed, some(50, 0), failing); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"250 requests", "3 rounds: p50 50.0 ms, 25.0 ms, 48.0 ms (spread 52 %); p99 99.0 ms, 50.0 ms, 95.", "ops/s 1000, 1000, 960",
		"1 errors, 2 timeouts, 1 refused (429)", "3 sent again", "5 began late", "responses: 96 of 200, 4 of 429", "interrupted",
		"no coordinated omission", "Closed loop",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Count(out.String(), "\n") > 12 {
		t.Errorf("the text says more than it should:\n%s", out.String())
	}
}

// TestTextHasAllFigures checks that the text has the figures of each result.
func TestTextHasAllFigures(t *testing.T) {
	with := some(100, 1)
	with.FirstError = "failure"
	with.Values = []bench.Value{{Name: "memory per watch", Value: 12345, Unit: "B"}, {Name: "pace", Value: 2.5, Unit: "/s"}, {Name: "lag", Value: 0.0015, Unit: "s"}}
	with.Beside = []bench.Cost{{Name: "etcd", CPU: time.Second}}
	var out bytes.Buffer
	if err := bench.WriteText(&out, with, &bench.Result{Name: "elsewhere", Unit: "watch", Counts: bench.Counts{Ops: 3}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"100 requests", "300 µs", "50.0 MB", "first error: failure", "memory per watch 12.3 KB", "pace 2.5/s", "lag 1.50 ms", "CPU of etcd 1.00 s", "3 watches"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// TestFormatsOfFigures checks how durations, sizes and the machine are written.
func TestFormatsOfFigures(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0", 999: "1.00 µs", 22 * time.Microsecond: "22.0 µs", 1500 * time.Microsecond: "1.50 ms", 444 * time.Millisecond: "444 ms", 2900 * time.Millisecond: "2.90 s", 75 * time.Second: "75.0 s", -time.Millisecond: "-1.00 ms"} {
		if got := bench.Duration(d); got != want {
			t.Errorf("%d ns are written as %q, want %q", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 33_000: "33.0 KB", 48_000_000: "48.0 MB", 5_000_000_000: "5.00 GB", -2000: "-2.00 KB"} {
		if got := bench.Bytes(n); got != want {
			t.Errorf("%d is written as %q, want %q", n, got, want)
		}
	}
	if got := bench.Machine(); !strings.Contains(got, "CPU") || !strings.Contains(got, "go1.") {
		t.Errorf("the machine is described as %q", got)
	}
}
