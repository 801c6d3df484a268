package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/thresholds"
)

// asProgram is the environment variable that makes the test binary run as larder-bench.
const asProgram = "LARDER_BENCH_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// run runs the command and returns its output.
func run(t *testing.T, args ...string) (out, progress string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := command(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// TestEveryCommandRuns runs each command once against a small server.
func TestEveryCommandRuns(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	pods := []string{"--pods=10", "--namespaces=2", "--nodes=2"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{append([]string{"seed", "--clients=4"}, pods...), "10 pods"},
		{[]string{"read", "/api/v1/pods", "--requests=3"}, "3 requests"},
		{[]string{"watchlist", "--requests=2", "--objects=10"}, "2 requests"},
		{[]string{"watchlist", "--requests=4", "--clients=4", "--shards=4"}, "4 requests"},
		{append([]string{"watch", "--shards=3", "--changes=4", "--objects=4"}, pods...), "watch, 3 shards"},
		{append([]string{"watch", "--watchers=3", "--stuck=1", "--changes=4", "--objects=2", "--rate=1000"}, pods...), "12 deliveries"},
		{append([]string{"watch", "--watchers=2", "--changes=4", "--objects=10", "--through", kubeconfig}, pods...), "8 deliveries"},
		{[]string{"open", "--watchers=3", "--idle=1ms"}, "3 watches"},
		{[]string{"write", "--objects=5", "--clients=2"}, "merge-patch"},
		{[]string{"custom", "--objects=4", "--namespaces=2", "--changes=4"}, "merge-patch workers"},
		{[]string{"custom", "--resource=reports", "--objects=4", "--namespaces=2", "--bytes=20000", "--changes=2"}, "apply whole reports"},
		{append([]string{"slow", "--clients=3", "--watchers=2", "--changes=4", "--objects=2"}, pods...), "8 deliveries"},
		{append([]string{"mixed", "--requests=20"}, pods...), "20 requests"},
		{[]string{"seed", "--pods=14", "--namespaces=2", "--nodes=0"}, "14 pods"},
		{[]string{"watchlist", "/api/v1/pods?fieldSelector=spec.nodeName%3D", "--requests=1", "--objects=4"}, "1 request "},
	} {
		out, _, err := run(t, c.args...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%v: %v; want %q in\n%s", c.args, err, c.want, out)
		}
	}
}

func TestReportsAndThresholds(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	data := filepath.Join(t.TempDir(), "report.json")
	_, _, err := run(t, "read", "/api/v1/pods", "--kubeconfig", kubeconfig, "--json", data, "--max-p99", "1ns", "--max-cpu-per-op", "1ns", "--pid", fmt.Sprint(os.Getpid()))
	if !errors.Is(err, thresholds.ErrThreshold) || exitCode(err) != exitCrossed {
		t.Errorf("got %v and exit %d, want crossed thresholds and exit %d", err, exitCode(err), exitCrossed)
	}
	var got struct{ Results []struct{ Ops int } }
	raw, err := os.ReadFile(data)
	if err == nil {
		err = json.Unmarshal(raw, &got)
	}
	if err != nil || len(got.Results) != 1 || got.Results[0].Ops != 20 {
		t.Errorf("JSON: %v, %s", err, raw)
	}
}

func TestInvalidArgumentsAreRejected(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"read"}, "arg"},
		{[]string{"read", "/", "extra"}, "arg"},
		{[]string{"read", "/"}, "--kubeconfig"},
		{[]string{"read", "/", "--kubeconfig", "missing"}, "missing"},
		{[]string{"watch", "--pods=5"}, "--objects"},
		{[]string{"compare", "--rows", "("}, "--rows"},
		{[]string{"compare", "extra"}, "unknown command"},
		{[]string{"compare", "--stock=/none", "--larder=/none", "--etcd=/none"}, "/none"},
		{[]string{"starts", "--max-p99", "1s"}, "does not support thresholds"},
		{[]string{"starts", "--pid", "1"}, "--pid"},
		{[]string{"limit", "--tape", "missing"}, "missing"},
		{[]string{"nonsense"}, "unknown command"},
	} {
		if _, _, err := run(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestMistakesNameTheirFlag sets one flag of each line to a wrong value. The error must name the flag.
func TestMistakesNameTheirFlag(t *testing.T) {
	_, kubeconfig := benchtest.Start(t)
	t.Setenv("KUBECONFIG", kubeconfig)
	for _, line := range []string{
		"watch --objects=0", "watch --watchers=0", "watch --changes=0", "open --watchers=0", "open --idle=-1s",
		"read / --requests=0", "read / --rate=NaN", "read / --clients=0", "read / --rounds=0", "read / --json=none/x", "read / --max-p99=x",
		"write --objects=0", "watchlist --stages=1s:1/s", "watchlist --requests=0", "seed --pods=0", "seed --namespaces=0", "seed --clients=0",
		"components --nodes=0", "custom --changes=1001", "custom --changes=-1", "custom --resource=other", "mixed --nodes=0", "mixed --requests=0", "slow --bytes-per-second=0",
		"compare --rounds=0", "compare --rows=none", "starts --data=other", "starts --objects=0", "starts --server=other", "starts --rounds=0", "beside --rest=0", "beside --count=0",
		"crds --count=0", "cluster --pods-per-node=0", "cluster --duration=0", "cluster --protocol=h3", "rollout --pods=150", "rollout --nodes=1",
	} {
		args := strings.Fields(line)
		flag, _, _ := strings.Cut(args[len(args)-1], "=")
		if command, _, err := command(nil).Find(args[:1]); err != nil {
			t.Fatal(err)
		} else if command.Flags().Lookup("stock") != nil {
			args = append(args, "--stock=a", "--larder=b", "--etcd=c")
		}
		if _, _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestHelpNamesEachCommand(t *testing.T) {
	out, _, err := run(t, "--help")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range command(nil).Commands() {
		if strings.Contains(out, "  "+cmd.Name()+" ") == cmd.Hidden {
			t.Errorf("%s: hidden %v, in help %v", cmd.Name(), cmd.Hidden, !cmd.Hidden)
		}
		if cmd.Short == "" {
			t.Errorf("%s has no help", cmd.Name())
		}
		if !cmd.Hidden && cmd.GroupID == "" {
			t.Errorf("%s has no group", cmd.Name())
		}
	}
}

// TestProgressIsPrinted checks that progress is printed regularly until the work ends.
func TestProgressIsPrinted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		var said bytes.Buffer
		showProgress(ctx, &said, func() string { return "list: 3" })
		if want := "list: 3\nlist: 3\n"; said.String() != want {
			t.Errorf("said %q, want %q", &said, want)
		}
	})
}
