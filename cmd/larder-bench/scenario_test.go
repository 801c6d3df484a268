package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/scenario"
)

// TestExampleScenario runs the example of the documentation with a fiftieth of its durations.
func TestExampleScenario(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench-scenario.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	if _, _, err := run(t, "seed", "--pods=100", "--namespaces=10", "--nodes=50", "--clients=8"); err != nil {
		t.Fatal(err)
	}
	shorter := strings.NewReplacer("10s:", "200ms:", "15s:", "300ms:", "30s", "600ms", "--warmup 2s", "--warmup 40ms", "5s", "100ms", "--rate 50", "--rate 1000", "--pods 1000", "--pods 100")
	file := filepath.Join(t.TempDir(), "scenario.yaml")
	if err := os.WriteFile(file, []byte(shorter.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	r, out, err := read(t, "scenario", file, "--max-p99", "cluster get=10s", "--max-p99", "dashboard=10s")
	if err != nil && !strings.Contains(err.Error(), "--max-p99") { // a busy machine may cross bounds of latencies
		t.Fatalf("%v\n%s", err, out)
	}
	want := map[string]int{
		"cluster": 60, "dashboard": 8, "config create": 100, "config delete": 100, "informers": 3 * 20,
		scenario.All: 60 + 8 + 400 + 60,
	}
	for _, r := range r.Results {
		if n, ok := want[r.Name]; ok && r.Ops != n || r.Failures() > 0 {
			t.Errorf("%s: %d operations, want %d; %d failures (%s)", r.Name, r.Ops, n, r.Failures(), r.FirstError)
		}
		delete(want, r.Name)
	}
	if len(want) > 0 {
		t.Errorf("results lack %v", want)
	}
	if !strings.Contains(out, "cluster list node") {
		t.Errorf("the kinds of requests are missing in\n%s", out)
	}
}

// TestScenarioMistakes checks that all mistakes are returned at once, each with the name of its workload.
func TestScenarioMistakes(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	head := "version: 2\nworkloads:\n- name: a\n  "
	for text, want := range map[string]string{
		"":                                    "version is 0, want 2",
		"version: 2":                          "there are no workloads",
		"version: 2\nworkload: []":            `unknown field "workload"`,
		head + "run: read /x --x 5":           `workload "a": unknown flag: --x`,
		head + "run: read /x --requests many": "--requests",
		head + "run: read":                    `workload "a": accepts 1 arg`,
		head + "run: fly":                     `workload "a": unknown command "fly"`,
		head + "run: scale":                   `workload "a": unknown command "scale"`,
		head + "run: read --help":             "want a workload with its flags",
		head + "rn: read /x":                  `unknown field "rn"`,
		head + "run: read /x --stages 10s":    "stage 1",
		head + "run: read /x --stages 10s:5/s --rate 3":   "--stages sets",
		head + "run: read /x --pid 5":                     "unknown flag: --pid",
		head + "run: read /x\n- name: a\n  run: read /x":  "a name that no other workload has",
		head + "run: read /x\n  startAfter: -5s":          "startAfter of 0 or more",
		head + "run: read /x\nthresholds: [max-p99 fast]": "is not a duration",
		head + "run: read /x\nthresholds: [json x]":       "want a bound",
		"version: 3\nworkloads:\n- name: a\n  run: fly":   "version is 3, want 2\nworkload \"a\": unknown command",
	} {
		file := filepath.Join(t.TempDir(), "s.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := run(t, "scenario", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzScenario parses arbitrary input.
func FuzzScenario(f *testing.F) {
	f.Add("version: 2\nworkloads:\n- {name: a, run: read /x}")
	f.Add("a: &a [*a]")
	f.Fuzz(func(_ *testing.T, text string) {
		o := &options{}
		if s, err := o.readScenario(command(nil), []byte(text)); err == nil {
			s.Kinds()
		}
	})
}
