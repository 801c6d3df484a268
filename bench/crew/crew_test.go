package crew_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/crew"
	"github.com/larder-io/larder/bench/process"
)

// The test program is a member when it is started as one. Its arguments are the kubeconfig and
// what it does.
func TestMain(m *testing.M) {
	part, err := crew.ParsePart(os.Getenv(crew.Variable))
	if err == nil && part.Of == 0 {
		goleak.VerifyTestMain(m)
		return
	}
	if err == nil {
		err = work(part, os.Args[1], os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// work reads, in two parts that are measured apart, as often as the member's number says.
func work(part crew.Part, kubeconfig, what string) error {
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		return err
	}
	target.Series = true
	m := crew.Join(os.Stdin, os.Stdout, target)
	var results []*bench.Result
	for _, name := range []string{"first", "second"} {
		if what == "fail" && part.Number == 1 && name == "second" {
			return errors.New("last words")
		}
		c := bench.ReadConfig{Name: name, Path: "/version", Accept: bench.JSON, Requests: 10 * (part.Number + 1), Clients: 2}
		if what == "endless" {
			c.Requests, c.Rate = 1_000_000, 10
		}
		r, err := bench.Read(context.Background(), target, c)
		if err != nil {
			return err
		}
		results = append(results, r)
		if r.Interrupted {
			break
		}
	}
	return m.Finish(results)
}

// leader leads three members against a server, and accounts for this process.
func leader(t *testing.T, what string) (*crew.Leader, *bench.Target, *benchtest.Server) {
	t.Helper()
	server, kubeconfig := benchtest.Start(t)
	target, err := bench.NewTarget(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target.Process = process.Process{PID: os.Getpid()}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := crew.New(crew.Config{Program: program, Args: []string{kubeconfig, what}, Size: 3, Target: target})
	if err != nil {
		t.Fatal(err)
	}
	return l, target, server
}

// TestMembersAddUp lets three processes run a workload of two parts.
func TestMembersAddUp(t *testing.T) {
	l, _, server := leader(t, "all")
	results, err := l.Run(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 2 || results[0].Name != "first" || results[1].Name != "second" {
		t.Fatalf("results %+v", results)
	}
	for _, r := range results {
		if r.Ops != 60 || r.Failures() != 0 || r.Latency.TotalCount() != 60 || r.Statuses[200] != 60 || r.Wall == 0 || r.ServerCPU == 0 || len(r.Series) == 0 {
			t.Errorf("%s: %d requests, %d latencies, %v, %v of CPU in %v, a series of %d; want 60", r.Name, r.Ops, r.Latency.TotalCount(), r.Statuses, r.ServerCPU, r.Wall, len(r.Series))
		}
	}
	if got := server.Requests("GET"); got != 120+6 {
		t.Errorf("the server saw %d requests, want 120 and one of each member to warm up for each part", got)
	}
}

// TestOneFailureEndsAll says which words a member had last.
func TestOneFailureEndsAll(t *testing.T) {
	l, _, _ := leader(t, "fail")
	if _, err := l.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("got %v, want the member's error", err)
	}
}

// TestStopIsGraceful stops members in the midst of their load.
func TestStopIsGraceful(t *testing.T) {
	l, target, server := leader(t, "endless")
	stop := make(chan struct{})
	server.Watch("/version", 20, func() { close(stop) })
	results, err := l.Run(t.Context(), stop)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) == 0 || results[0].Ops < 10 || !results[0].Interrupted {
		t.Errorf("results %+v", results)
	}
	if p := target.Progress(); p.Name != "" {
		t.Errorf("at the end %+v", p)
	}
}

// TestKilledWithTheContext ends members that would go on.
func TestKilledWithTheContext(t *testing.T) {
	l, _, server := leader(t, "endless")
	ctx, cancel := context.WithCancel(t.Context())
	server.Watch("/version", 10, cancel)
	if _, err := l.Run(ctx, nil); err == nil {
		t.Error("a run that was killed has results")
	}
}

func TestWhatCannotBeLed(t *testing.T) {
	if _, err := crew.New(crew.Config{Size: 1}); err == nil {
		t.Error("one process is a crew")
	}
	l, err := crew.New(crew.Config{Program: "/none", Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("a program that is not there gave %v", err)
	}
	for _, text := range []string{"x", "1/", "2/2", "-1/2", "1/x"} {
		if p, err := crew.ParsePart(text); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
	if p, err := crew.ParsePart(crew.Part{Number: 1, Of: 3}.String()); err != nil || p.Number != 1 || p.Of != 3 {
		t.Errorf("%v, %v", p, err)
	}
}
