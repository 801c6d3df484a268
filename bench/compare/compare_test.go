package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/baseline"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// The test binary runs as any of the servers when it is started with this role.
func TestMain(m *testing.M) {
	if os.Getenv(benchtest.Role) == benchtest.ServerRole {
		if err := serve(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// serve serves a tape for the arguments limit --tape FILE --port PORT, and otherwise calls Serve.
func serve(args []string) error {
	if args[0] != "limit" {
		return benchtest.Serve()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	tape, err := baseline.Load(args[2])
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+args[4])
	if err != nil {
		return err
	}
	return baseline.New(tape).Run(ctx, l)
}

func config(t *testing.T) Config {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(benchtest.Role, benchtest.ServerRole)
	return Config{
		Trials: testservers.Trials{TestServers: testservers.Config{Dir: t.TempDir(), Stock: program, Larder: program, Etcd: program}, Rounds: 1},
		Pods:   20, Quick: true,
	}
}

// TestComparisonHasAllRows runs a few rows. The same small server stands for all servers.
func TestComparisonHasAllRows(t *testing.T) {
	if testing.Short() {
		t.Skip("compares twenty rows")
	}
	c := config(t)
	c.Rows = regexp.MustCompile(`^B(1|10|22|23|24|29|31|32|34|35|36|39|42) `)
	var said []string
	c.Say = func(line string) { said = append(said, line) }
	comparison, err := New(&c)
	if err != nil {
		t.Fatal(err)
	}
	table, err := comparison.Run(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(said, "\n"))
	}
	var ids []string
	for _, r := range table.Rows {
		ids = append(ids, r.ID)
		for _, k := range kinds {
			if k == Limit && len(r.Results[k]) == 0 {
				continue
			}
			// The memory of an open watch may come from free memory and be 0.
			if len(r.Results[k]) != c.Rounds || (r.ID != "B26" && r.Figures[0].Best[k] <= 0) {
				t.Errorf("%s: %s has %d results, and %g as its figure", r.ID, k, len(r.Results[k]), r.Figures[0].Best[k])
			}
			if n, first := r.Errors(k); n > 0 {
				t.Errorf("%s: %s: %s", r.ID, k, first)
			}
		}
	}
	if got, want := strings.Join(ids, " "), "B1 B10 B22 B23 B24 B26 B27 B28 B29 B30 B31 B32 B33 B34 B35 B36 B39 B40 B41 B42 B43 B44"; got != want {
		t.Errorf("rows %s, want %s", got, want)
	}
	for _, s := range comparison.started.Servers() {
		if err := syscall.Kill(s.Process.PID, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s still runs: %v", s.Process.Name, err)
		}
	}
}

// TestOneFailureAffectsNoOtherRow stops kube-apiserver after the first row.
func TestOneFailureAffectsNoOtherRow(t *testing.T) {
	c := config(t)
	c.Rows = regexp.MustCompile(`^B(1|31|10) `)
	var broken error
	comparison, err := New(&c)
	if err != nil {
		t.Fatal(err)
	}
	comparison.config.Say = func(line string) {
		if strings.HasPrefix(line, "B1 ") {
			broken = comparison.servers[Stock].Stop()
		}
	}
	table, err := comparison.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "B10, kube-apiserver") || strings.Contains(err.Error(), "B31") || broken != nil {
		t.Errorf("got %v, want only the failure of B10", err)
	}
	if table == nil || len(table.Rows) != 3 || table.Rows[0].Figures[0].Best[Larder] == 0 || table.Rows[2].Figures[0].Best[Larder] == 0 {
		t.Errorf("other rows have no results: %+v", table)
	}
}

// TestInterruptionKeepsResults checks that an interrupted comparison returns the results until then.
func TestInterruptionKeepsResults(t *testing.T) {
	c := config(t)
	c.Rows = regexp.MustCompile(`^B(1|24) `)
	ctx, cancel := context.WithCancel(t.Context())
	c.Say = func(line string) {
		if strings.HasPrefix(line, "B1 ") {
			cancel()
		}
	}
	comparison, err := New(&c)
	if err != nil {
		t.Fatal(err)
	}
	table, err := comparison.Run(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if table == nil || len(table.Rows) == 0 || table.Rows[0].ID != "B1" || table.Rows[0].Figures[0].Best[Larder] == 0 {
		t.Errorf("the results until then are lost: %+v", table)
	}
}

// TestInvalidConfigsAreRejected checks that New rejects incomplete configurations, and rows that match nothing.
func TestInvalidConfigsAreRejected(t *testing.T) {
	once := testservers.Trials{Rounds: 1}
	for _, c := range []Config{{}, {Pods: 1000}, {Pods: 5, Trials: once}, {Pods: 1000, Trials: once, Rows: regexp.MustCompile("no such row")}} {
		if _, err := New(&c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// TestIDsAreUnique checks the IDs of rows, which documents cite.
func TestIDsAreUnique(t *testing.T) {
	comparison, err := New(&Config{Pods: 10000, StartPods: 50000, Trials: testservers.Trials{Rounds: 1}})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, s := range append(comparison.steps(), comparison.startSteps()...) {
		for _, r := range s.rows {
			if seen[r.ID] {
				t.Errorf("two rows have the ID %s", r.ID)
			}
			seen[r.ID] = true
			for _, f := range r.Figures {
				if f.of == nil {
					t.Errorf("%s does not say how its figure %q is computed", r.ID, f.Name)
				}
			}
		}
	}
	if len(seen) != 50 {
		t.Errorf("%d rows, want 50", len(seen))
	}
}

// best returns figures with the best value of each server.
func best(stock, limit, larder float64) map[string]float64 {
	return map[string]float64{Stock: stock, Limit: limit, Larder: larder}
}

// TestRatiosOfFigures checks the ratios of figures, which are 0 if a figure is missing.
func TestRatiosOfFigures(t *testing.T) {
	for _, c := range []struct {
		figure       Figure
		stock, limit float64
	}{
		{Figure{Unit: Seconds, Best: best(8, 1, 2)}, 4, 2},
		{Figure{Unit: Seconds, Best: best(0, 0, 5)}, 0, 0},
		{Figure{Unit: Seconds}, 0, 0},
		{Figure{Unit: PerSecond, Best: best(8, 0, 12)}, 1.5, 0},
		{Figure{Unit: Memory, Best: best(8, 0, -1)}, 0, 0},
	} {
		if stock, limit := c.figure.Ratio(), c.figure.OfLimit(); stock != c.stock || limit != c.limit {
			t.Errorf("%+v: ratios %g and %g, want %g and %g", c.figure, stock, limit, c.stock, c.limit)
		}
	}
}

// TestBestValues checks that the best value is the lowest cost or the highest rate, and that failed runs do not count.
func TestBestValues(t *testing.T) {
	results := func(values ...int) []*bench.Result {
		var all []*bench.Result
		for _, v := range values {
			all = append(all, &bench.Result{Counts: bench.Counts{Ops: 1}, Server: process.Usage{RSS: int64(v)}})
		}
		return append(all, &bench.Result{Counts: bench.Counts{Ops: 3, Errors: 3}, Server: process.Usage{RSS: 1}})
	}
	for _, c := range []struct {
		row  Row
		unit Unit
		of   []*bench.Result
		want float64
	}{
		{Row{}, Memory, results(5, 3, 4), 3},
		{Row{}, PerSecond, results(5, 3, 6), 6},
		{Row{worst: true}, Memory, results(5, 3, 4), 5},
		{Row{median: true}, Memory, results(5, 3, 4), 4},
		{Row{}, Memory, results(), 0},
	} {
		if got := c.row.best(c.unit, resident, c.of); got != c.want {
			t.Errorf("best is %g, want %g", got, c.want)
		}
	}
}

// TestMarkdownIsATable checks that each line has all columns.
func TestMarkdownIsATable(t *testing.T) {
	table := &Table{Rounds: 2, Rows: []*Row{{ID: "B1", Work: "w", Results: map[string][]*bench.Result{Larder: {{Counts: bench.Counts{Ops: 1}, Wall: 1}, {Counts: bench.Counts{Ops: 2}, Wall: 1}}}, Figures: []Figure{{Unit: Seconds, Best: best(1, 0, 2)}}}, {ID: "B2"}}}
	const columns = 9
	for line := range bytes.Lines([]byte(table.Markdown())) {
		if line[0] == '|' && bytes.Count(line, []byte("|")) != columns+1 {
			t.Errorf("%q does not have %d columns", line, columns)
		}
	}
	if !strings.Contains(table.Markdown(), "B1, Larder: 2 rounds: ") || !strings.Contains(table.Markdown(), "spread 67 %") {
		t.Errorf("the table does not have the rounds:\n%s", table.Markdown())
	}
}
