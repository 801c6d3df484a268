package testservers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/benchtest"
	"github.com/larder-io/larder/bench/testservers"
)

// The test binary runs as any of the servers if it is started in this role.
func TestMain(m *testing.M) {
	if os.Getenv(benchtest.Role) == benchtest.ServerRole {
		if err := benchtest.Serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T) *testservers.Servers {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(benchtest.Role, benchtest.ServerRole)
	f, err := testservers.New(t.Context(), testservers.Config{Dir: t.TempDir(), Stock: program, Larder: program, Etcd: program}, "all")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// TestServersStartAndStop starts servers of each kind, sends requests to them and stops them.
func TestServersStartAndStop(t *testing.T) {
	f := start(t)
	var servers []*testservers.Server
	add := func(s *testservers.Server, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	}
	add(f.Start(t.Context(), testservers.Stock, testservers.DefaultGuards()))
	add(f.Start(t.Context(), testservers.Larder, testservers.DefaultGuards()))
	add(f.StartEmpty(t.Context(), testservers.Larder))
	before := len(f.Servers())
	stock, err := f.StartEmpty(t.Context(), testservers.Stock)
	add(stock, err)
	etcd := f.Servers()[before]
	servers = append(servers, etcd, f.Etcd())
	for _, s := range servers {
		if group, err := syscall.Getpgid(s.Process.PID); err != nil || group != s.Process.PID {
			t.Errorf("%s has process group %d, error %v; want its own", s.Process.Name, group, err)
		}
		if s.Target == nil {
			continue
		}
		if version, err := s.Target.Version(t.Context()); err != nil || version == "" {
			t.Errorf("%s: version %q, error %v", s.Process.Name, version, err)
		}
		if usage, err := s.Target.Process.Usage(); err != nil || usage.CPU == 0 {
			t.Errorf("%s: usage %+v, error %v", s.Process.Name, usage, err)
		}
	}
	if err := errors.Join(stock.Stop(), stock.Stop()); err != nil || etcd.CheckAlive() == nil {
		t.Fatalf("Stop: %v; want that the server's own etcd has also ended", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range servers {
		if err := syscall.Kill(s.Process.PID, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s still runs: %v", s.Process.Name, err)
		}
	}
}

// TestServerThatEnds checks that Start returns the last output of a server that ends, and an error for a missing program.
func TestServerThatEnds(t *testing.T) {
	f := start(t)
	_, err := f.StartOther(t.Context(), "broken", "/bin/sh", func(string) []string { return []string{"-c", "echo last words; exit 3"} })
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("got %v, want the process's last output", err)
	}
	if _, err := f.StartOther(t.Context(), "missing", "/none", func(string) []string { return nil }); err == nil {
		t.Error("a program that does not exist was started")
	}
}

// TestStartEndsWithItsContext checks that Start returns an error and stops the server if it is not ready when the context
// ends.
func TestStartEndsWithItsContext(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.StartOther(ctx, "never-ready", "/bin/sleep", func(string) []string { return []string{"100"} }); err == nil {
		t.Error("a server that does not listen became ready")
	}
	servers := f.Servers()
	if last := servers[len(servers)-1]; last.CheckAlive() == nil {
		t.Error("a server that was not ready in time still runs")
	}
}

func TestNewRejectsIncompleteConfigs(t *testing.T) {
	for _, c := range []testservers.Config{{}, {Dir: "x"}, {Dir: t.TempDir(), Stock: "a", Larder: "b"}, {Stock: "a", Larder: "b", Etcd: "c"}} {
		if _, err := testservers.New(t.Context(), c, "one"); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// TestBuildSkipsUnneededPrograms checks that programs are built only if they are not given, and kube-apiserver only if it is
// measured.
func TestBuildSkipsUnneededPrograms(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a canceled context prevents builds
	for _, c := range []struct {
		stock, etcd, server string
		builds              bool
	}{
		{"", "e", testservers.Larder, false}, {"s", "e", testservers.Stock, false}, {"", "e", testservers.Stock, true}, {"s", "", testservers.Larder, true},
	} {
		given := testservers.Config{Stock: c.stock, Larder: "l", Etcd: c.etcd}
		trials := testservers.Trials{TestServers: given, Servers: []string{c.server}}
		given.Dir = "dir"
		if err := trials.Build(ctx, "dir"); (err != nil) != c.builds || trials.TestServers != given {
			t.Errorf("%+v became %+v, error %v", c, trials.TestServers, err)
		}
	}
}

// TestCloseRemovesFiles checks that Close, and New when it fails, remove the directory with all its contents.
func TestCloseRemovesFiles(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(benchtest.Role, benchtest.ServerRole)
	c := testservers.Config{Dir: t.TempDir(), Stock: program, Larder: program, Etcd: program}
	f, err := testservers.New(t.Context(), c, "one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testservers.New(t.Context(), c, "one"); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second Servers with the same name: %v", err)
	}
	if wrote, err := os.ReadDir(filepath.Join(c.Dir, "one")); len(wrote) == 0 || err != nil {
		t.Errorf("the directory has %v, error %v; want files of the servers", wrote, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	c.Etcd = ""
	if _, err := testservers.New(t.Context(), c, "two"); err == nil {
		t.Error("New without an etcd: no error")
	}
	if left, err := os.ReadDir(c.Dir); len(left) > 0 || err != nil {
		t.Errorf("files left: %v, error %v", left, err)
	}
}

// TestEachAlternatesTheOrder checks that every second round has the reverse order of servers, and that Each ends after the
// first failure.
func TestEachAlternatesTheOrder(t *testing.T) {
	trials := testservers.Trials{Servers: []string{testservers.Stock, testservers.Larder}, Rounds: 3}
	if err := trials.Check(); err != nil {
		t.Error(err)
	}
	var got []string
	results, err := trials.Each(func(server string, round int) ([]*bench.Result, error) {
		got = append(got, fmt.Sprint(round, " ", server))
		return []*bench.Result{{Name: server}}, nil
	})
	want := []string{"1 kube-apiserver", "1 Larder", "2 Larder", "2 kube-apiserver", "3 kube-apiserver", "3 Larder"}
	if err != nil || !slices.Equal(got, want) || len(results) != len(want) || results[0].Round != 1 || results[len(want)-1].Round != 3 {
		t.Errorf("order %q, %d results, error %v; want %q", got, len(results), err, want)
	}
	failure, turns := errors.New("failed"), 0
	fail := func(string, int) ([]*bench.Result, error) { turns++; return []*bench.Result{{}}, failure }
	if results, err := trials.Each(fail); !errors.Is(err, failure) || !strings.HasPrefix(err.Error(), testservers.Stock) || len(results) != 1 || turns != 1 {
		t.Errorf("%d results of %d turns, error %v; want the results until the first failure, and its server's name", len(results), turns, err)
	}
	for _, wrong := range []testservers.Trials{{Servers: []string{"larder"}, Rounds: 1}, {}} {
		if err := wrong.Check(); err == nil {
			t.Errorf("%+v was accepted", wrong)
		}
	}
}
