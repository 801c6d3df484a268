package scenario_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/scenario"
	"github.com/larder-io/larder/bench/thresholds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a scenario against a server that has its pods.
func run(t *testing.T, text string) []*bench.Result {
	t.Helper()
	s, err := scenario.Read("test.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	_, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target.Series = true
	if _, err := bench.Seed(t.Context(), target, bench.SeedConfig{Pods: 100, Namespaces: 10, Nodes: 50, Clients: 8}); err != nil {
		t.Fatal(err)
	}
	results, err := s.Run(t.Context(), target, 1)
	if err != nil {
		t.Fatal(err)
	}
	kinds := s.Kinds()
	for i, r := range results {
		if r.Failures() > 0 {
			t.Errorf("%s: %d failures: %s", r.Name, r.Failures(), r.FirstError)
		}
		if i >= len(kinds) || r.Name != kinds[i].Name || r.Part != kinds[i].Part {
			t.Errorf("result %d is %q, part %v; kinds say otherwise", i, r.Name, r.Part)
		}
	}
	thresholds := thresholds.Thresholds{Bounds: s.Thresholds}
	if err := thresholds.Check(kinds); err != nil {
		t.Error(err)
	}
	return results
}

// TestExample runs the example of the documentation, with a fiftieth of its lengths.
func TestExample(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench-scenario.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	shorter := strings.NewReplacer("10s:", "200ms:", "15s:", "300ms:", "30s", "600ms", "warmup: 2s", "warmup: 40ms", "5s", "100ms", "rate: 50", "rate: 1000", "pods: 1000", "pods: 100")
	results := run(t, shorter.Replace(string(text)))
	want := map[string]int{
		"cluster": 60, "dashboard": 8, "config create": 100, "config delete": 100, "informers": 3 * 20,
		scenario.All: 60 + 8 + 400 + 60,
	}
	for _, r := range results {
		if n, ok := want[r.Name]; ok && r.Ops != n {
			t.Errorf("%s: %d operations, want %d", r.Name, r.Ops, n)
		}
		delete(want, r.Name)
	}
	if len(want) > 0 {
		t.Errorf("there is nothing of %v", want)
	}
}

// TestEveryKind runs the workloads that the example has not, as JSON.
func TestEveryKind(t *testing.T) {
	results := run(t, `{"version": 1, "seed": {"pods": 100, "namespaces": 10, "nodes": 50}, "workloads": [
		{"do": "watchlist", "path": "/api/v1/namespaces/bench-0/pods", "accept": "json", "requests": 3, "clients": 2},
		{"do": "patch", "requests": 20, "clients": 2},
		{"do": "mixed", "duration": "50ms"},
		{"do": "read", "name": "late", "path": "/api/v1/pods?limit=1", "fieldSelector": "spec.nodeName=node-1", "requests": 5, "startAfter": "20ms"}]}`)
	for _, r := range results {
		if want := map[string]int{"watchlist": 3, "patch": 20, "late": 5}[r.Name]; want > 0 && r.Ops != want {
			t.Errorf("%s: %d operations, want %d", r.Name, r.Ops, want)
		}
	}
	if results[0].Name != scenario.All || results[0].Wall == 0 || results[0].Ops < 28 {
		t.Errorf("the first is %+v", results[0])
	}
}

// TestWhatMakesNoSense names the line of each mistake.
func TestWhatMakesNoSense(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "test.yaml: the file is empty"},
		{"version: 2\nworkloads: [{do: mixed}]", "test.yaml:1: version is 2, want 1"},
		{"version: 1", "test.yaml:1: there are no workloads"},
		{"version: 1\nworkload: []", `test.yaml:2: there is no field "workload" here`},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  ratee: 5\n  requests: 1", `test.yaml:5: there is no field "ratee" here`},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  requests: many", "test.yaml:5: cannot unmarshal text `many`: want a whole number"},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  duration: 5", `test.yaml:5: "5" is no length of time such as 30s`},
		{"version: 1\nworkloads:\n- do: fly", `test.yaml:3: do is "fly": want one of mixed, patch, read, watch, watchlist, write`},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  requests: 1\n  watchers: 3", `test.yaml:6: read does not heed "watchers"`},
		{"version: 1\nworkloads:\n- do: read\n  path: x y\n  requests: 1", `test.yaml:4: path is "x y"`},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n", "test.yaml:3: workload \"read\": want one of requests"},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  requests: 1\n  duration: 1s", "want one of requests"},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  stages: 10s", "test.yaml:5: stage 1"},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  stages: 10s:5/s\n  rate: 3", "test.yaml:6: stages say"},
		{"version: 1\nworkloads:\n- do: read\n  path: /x\n  requests: 1\n  user: nobody", `test.yaml:6: there is no user "nobody"`},
		{"version: 1\nworkloads:\n- {do: read, path: /x, requests: 1}\n- {do: read, path: /x, requests: 1}", `test.yaml:4: two workloads have the name "read"`},
		{"version: 1\nusers:\n- name: a\nworkloads:\n- {do: read, path: /x, requests: 1}", `test.yaml:3: user "a": want either impersonate`},
		{"version: 1\nworkloads:\n- do: mixed\n  requests: 5", "test.yaml:3: mixed is about pods"},
		{"version: 1\nworkloads:\n- do: write\n  duration: 5s", "must know how many"},
		{"version: 1\nworkloads:\n- {do: watchlist, path: /x, stages: '5s:5/s'}", "closed loop"},
		{"version: 1\nworkloads:\n- {do: read, path: /x, requests: 1}\nthresholds:\n- max-p99 fast", "test.yaml:5: \"fast\" is no time"},
		{"version: 1\nworkloads:\n- {do: read, path: /x, requests: 1}\nthresholds: [nonsense]", "test.yaml:4: \"nonsense\": want the name of a threshold"},
		{"version: 1\nworkloads: {do: read}", "want a list of workloads"},
		{"version: 1\nworkloads:\n- read", "want the fields of a workload"},
		{"version: 1\n  bad: [", "test.yaml:2:"},
		{"version: 1\nworkloads: []\n---\nversion: 1", "several documents"},
		{"- version", "want the fields of a scenario"},
		{"version: 1\nworkloads:\n- {do: read, path: /x, requests: -1}", "requests is -1"},
	} {
		_, err := scenario.Read("test.yaml", strings.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
			continue
		}
		if regexp.MustCompile(`scenario\.|!!|[^.]yaml: `).MatchString(err.Error()) {
			t.Errorf("%q: %v speaks of what users do not know", c.text, err)
		}
	}
	// Several mistakes are all named.
	_, err := scenario.Read("x", strings.NewReader("version: 3\nworkloads:\n- {do: fly}\n- {do: read, path: no, requests: 1}"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, want three mistakes", err)
	}
}

// FuzzRead reads anything.
func FuzzRead(f *testing.F) {
	f.Add("version: 1\nworkloads:\n- {do: read, path: /x, requests: 1}")
	f.Add("a: &a [*a]")
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := scenario.Read("x", strings.NewReader(text)); err == nil {
			s.Kinds()
		}
	})
}
