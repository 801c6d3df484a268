package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/report"
	"github.com/larder-io/larder/bench/thresholds"
)

// read runs the command with --json and returns the report.
func read(t *testing.T, args ...string) (*report.Report, string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	out, _, err := run(t, append(args, "--json", file)...)
	f, failed := os.Open(file)
	if failed != nil {
		return nil, out, errors.Join(err, failed)
	}
	defer f.Close()
	r, failed := report.Read(f)
	if failed != nil {
		t.Fatal(failed)
	}
	return r, out, err
}

// TestPlansAndRounds runs workloads with plans, and in rounds.
func TestPlansAndRounds(t *testing.T) {
	server, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	pods := []string{"--pods=10", "--namespaces=2", "--nodes=2"}
	if _, _, err := run(t, append([]string{"seed"}, pods...)...); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		ops  []int // of each result
	}{
		{[]string{"read", "/version", "--stages=100ms:0..1000/s,100ms:1000/s", "--warmup=50ms", "--clients=4"}, []int{150}},
		{[]string{"read", "/version", "--duration=100ms", "--rate=1000"}, []int{100}},
		{[]string{"read", "/version", "--requests=7", "--rounds=3"}, []int{7, 7, 7}},
		{[]string{"read", "/version", "--requests=30", "--clients=4", "--pid", fmt.Sprint(os.Getpid())}, []int{30}},
		{append([]string{"mixed", "--clients=2", "--requests=200", "--rate=2000"}, pods...), []int{200, 100, 40, 18, 2, 40}},
		{[]string{"write", "--stages=100ms:200/s", "--clients=2"}, []int{20, 20, 20, 20}},
		{[]string{"write", "--objects=4", "--rounds=2"}, []int{4, 4, 4, 4, 4, 4, 4, 4}},
		{[]string{"watchlist", "--requests=5", "--clients=2", "--objects=10"}, []int{5}},
		{[]string{"open", "--watchers=5", "--idle=1ms"}, []int{5}},
		{append([]string{"watch", "--watchers=2", "--objects=2", "--stages=100ms:100/s", "--warmup=20ms"}, pods...), []int{20}},
	} {
		r, out, err := read(t, c.args...)
		if err != nil {
			t.Errorf("%v: %v\n%s", c.args, err, out)
			continue
		}
		var ops []int
		for i, result := range r.Results {
			ops = append(ops, result.Ops)
			if result.Failures() > 0 || result.Latency.TotalCount() != int64(result.Ops) {
				t.Errorf("%v: %s: %d failures (%s), %d latencies", c.args, result.Name, result.Failures(), result.FirstError, result.Latency.TotalCount())
			}
			if len(r.Results) == 3 && result.Round != i+1 {
				t.Errorf("%v: round %d is number %d", c.args, i, result.Round)
			}
		}
		if fmt.Sprint(ops) != fmt.Sprint(c.ops) {
			t.Errorf("%v: operations %v, want %v", c.args, ops, c.ops)
		}
	}
	for _, path := range server.Objects() {
		if strings.Contains(path, "configmaps") {
			t.Errorf("%s was left behind", path)
		}
	}
}

// TestProtocolIsPrinted checks the printed protocol, against a server that speaks both.
func TestProtocolIsPrinted(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	for streams, want := range map[string]string{"4": "Protocol: HTTP/2.", "0": "Protocol: HTTP/1.1."} {
		out, _, err := run(t, "read", "/version", "--http2-streams", streams, "--kubeconfig", kubeconfig)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s streams: %v, printed\n%s", streams, err, out)
		}
	}
}

// TestOutputFiles writes all output files.
func TestOutputFiles(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	dir := t.TempDir()
	args := []string{"read", "/version", "--rounds=2", "--max-p99=1ns"}
	wants := map[string]string{"json": `"schemaVersion": 4`, "series": "result,round,second"}
	for name := range wants {
		args = append(args, "--"+name, filepath.Join(dir, name))
	}
	if _, _, err := run(t, args...); !errors.Is(err, thresholds.ErrThreshold) {
		t.Fatal(err)
	}
	for name, want := range wants {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("--%s: %v, want %q in\n%s", name, err, want, text)
		}
	}
}

// TestComparisonsWithBaselines compares a run with itself, and with one whose figures are better.
func TestComparisonsWithBaselines(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	file := filepath.Join(t.TempDir(), "old.json")
	measure := []string{"read", "/version", "--requests=40", "--rounds=5"}
	if _, _, err := run(t, append(measure, "--json", file)...); err != nil {
		t.Fatal(err)
	}
	out, _, err := run(t, append(measure, "--baseline", file, "--max-regression=10000")...)
	if err != nil || !strings.Contains(out, "compared with the baseline") || !strings.Contains(out, "p99") {
		t.Errorf("%v:\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var old map[string]any
	if err := json.Unmarshal(text, &old); err != nil {
		t.Fatal(err)
	}
	for _, r := range old["results"].([]any) { // it had a thousandth of the time
		r.(map[string]any)["wallNanoseconds"] = math.Trunc(r.(map[string]any)["wallNanoseconds"].(float64) / 1000)
	}
	if text, err = json.Marshal(old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run(t, append(measure, "--baseline", file)...); !errors.Is(err, thresholds.ErrThreshold) || exitCode(err) != exitCrossed || !strings.Contains(err.Error(), "operations per second") {
		t.Errorf("slower than the baseline gave %v", err)
	}
	for want, args := range map[string][]string{
		"both need 4":              {"read", "/version", "--baseline", file},
		"no such file":             {"read", "/version", "--baseline", "none"},
		"no result":                {"write", "--rounds=5", "--baseline", file},
		"compare does not support": {"compare", "--pid=1"},
	} {
		if _, _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

// output records the output of a process, and notifies when it reports the interruption.
type output struct {
	interrupted chan struct{} // closed then

	mu  sync.Mutex
	all strings.Builder
}

// graceful is printed at the first signal.
const graceful = "a second signal ends at once"

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := strings.Contains(o.all.String(), graceful)
	o.all.Write(p)
	if !before && strings.Contains(o.all.String(), graceful) {
		close(o.interrupted)
	}
	return len(p), nil
}

// String returns all that was written.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// program starts larder-bench as another process, and records its output.
func program(t *testing.T, args ...string) (*exec.Cmd, *output) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out := &output{interrupted: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, out
}

// TestInterruptedLoads interrupts a load once, and a load that hangs twice.
func TestInterruptedLoads(t *testing.T) {
	for name, c := range map[string]struct {
		args    []string
		hangs   bool
		signals int
	}{
		"once":                     {[]string{"--rate=200", "--requests=1000000"}, false, 1},
		"once, with three clients": {[]string{"--rate=200", "--requests=1000000", "--clients=3"}, false, 1},
		"twice, while it hangs":    {nil, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			server := benchtest.New()
			hang := make(chan struct{})
			if c.hangs {
				server.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang })
			}
			inner := server.Config.Handler
			asked := make(chan struct{}, 1)
			n := 0
			server.Config.ConnState = nil
			server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case asked <- struct{}{}:
				default:
				}
				inner.ServeHTTP(w, r)
			})
			server.StartTLS()
			t.Cleanup(func() { close(hang); server.Close() })
			t.Setenv("KUBECONFIG", benchtest.Kubeconfig(t, server.Server))
			cmd, out := program(t, append([]string{"read", "/version"}, c.args...)...)
			wanted := 20
			if c.hangs {
				wanted = 1
			}
			for ; n < wanted; n++ {
				<-asked
			}
			for i := range c.signals {
				if i > 0 {
					<-out.interrupted // two that come at once may be one
				}
				if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			var failed *exec.ExitError
			err := cmd.Wait()
			if !errors.As(err, &failed) || failed.ExitCode() != exitInterrupted {
				t.Errorf("ended with %v, want status %d\n%s", err, exitInterrupted, out)
			}
			if measured := strings.Contains(out.String(), "interrupted: the figures cover the completed operations"); measured == c.hangs {
				t.Errorf("said\n%s", out)
			}
		})
	}
}
