package scenario_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/scenario"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// same returns its argument, for workloads without a user of their own.
func same(t *bench.Target) *bench.Target { return t }

// TestResultsHaveTheNamesOfTheirWorkloads checks that the first result is the sum of all workloads and the others are
// its parts. The series of a workload that starts later is shifted.
func TestResultsHaveTheNamesOfTheirWorkloads(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target.Series = true
	read := func(n int) func(context.Context, *bench.Target) ([]*bench.Result, error) {
		return func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
			r, err := bench.Read(ctx, t, bench.ReadConfig{Name: "read", Path: "/version", Accept: bench.JSON, Load: bench.Load{Operations: n, Clients: 2}})
			return []*bench.Result{r}, err
		}
	}
	write := func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
		return bench.Write(ctx, t, bench.WriteConfig{Namespace: "w", Load: bench.Load{Operations: 3, Clients: 1}})
	}
	one := []*bench.Result{{Name: "read"}}
	verbs := []*bench.Result{{Name: "create"}, {Name: "merge-patch"}, {Name: "apply"}, {Name: "delete"}}
	s := &scenario.Scenario{Workloads: []scenario.Workload{
		{Name: "first", Results: one, User: same, Run: read(7)},
		{Name: "late", Results: one, User: same, Run: read(5), StartAfter: time.Second},
		{Name: "writer", Results: verbs, User: same, Run: write},
	}}
	results, err := s.Run(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	kinds, want := s.Kinds(), []int{7 + 5 + 4*3, 7, 5, 3, 3, 3, 3}
	if len(results) != len(want) || len(kinds) != len(want) {
		t.Fatalf("%d results and %d kinds, want %d", len(results), len(kinds), len(want))
	}
	for i, r := range results {
		if r.Name != kinds[i].Name || r.Part != (i > 0) || r.Part != kinds[i].Part || r.Ops != want[i] || r.Failures() > 0 {
			t.Errorf("result %d is %q, %d operations, part %v (%s); want %q, %d", i, r.Name, r.Ops, r.Part, r.FirstError, kinds[i].Name, want[i])
		}
	}
	if results[3].Name != "writer create" || len(results[2].Series) < 2 || results[2].Series[0].Ops != 0 {
		t.Errorf("result %q: the series of the late workload is %v", results[3].Name, results[2].Series)
	}
}

// TestErrorNamesTheFailedWorkload checks that the error begins with the name of the failed workload.
func TestErrorNamesTheFailedWorkload(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario.Scenario{Workloads: []scenario.Workload{{Name: "broken", User: same, Run: func(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
		_, err := bench.Read(ctx, t, bench.ReadConfig{})
		return nil, err
	}}}}
	if _, err := s.Run(t.Context(), target); err == nil || err.Error()[:len("scenario: broken: ")] != "scenario: broken: " {
		t.Errorf("got %v", err)
	}
}
