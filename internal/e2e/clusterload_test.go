package e2e_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/cluster"
	"github.com/larder-io/larder/bench/testservers"
)

// TestClusterLoadSurvivesARestart simulates a small cluster over both protocols, and restarts the server. No request
// may fail while the server is up, and each informer must end with the server's objects.
func TestClusterLoadSurvivesARestart(t *testing.T) {
	t.Parallel() // mostly waits
	values := simulateCluster(t)
	for _, r := range values {
		// The graph that authorizes nodes may get a pod later than its kubelet.
		if r.Failures() > r.Statuses[http.StatusForbidden] {
			t.Errorf("%s: %d of %d failed, first error: %s", r.Name, r.Failures(), r.Ops, r.FirstError)
		}
	}
	for _, protocol := range clusterProtocols {
		name := "Larder: 3 nodes, " + protocol + ": "
		for _, kind := range clusterRequests {
			if values[name+"steady: "+kind] == nil {
				t.Errorf("%s: no results of %q", protocol, kind)
			}
		}
		all, restart := values[name+"connecting all"], values[name+"restart"]
		if all == nil || restart == nil {
			t.Fatalf("%s: results are missing: %v", protocol, values)
		}
		if all.Ops < 76+3*9+3 || restart.Wall <= 0 || restart.ServerCPU <= 0 || restart.Value("puts of etcd") <= 0 {
			t.Errorf("%s: %d watches; the restart: %+v", protocol, all.Ops, restart)
		}
		if n := restart.Value("informers that listed again"); n > 0 {
			t.Errorf("%s: %g informers listed again", protocol, n)
		}
	}
}

// clusterProtocols and clusterRequests are the results that the load must have.
var (
	clusterProtocols = []string{"HTTP/2", "HTTP/1.1"}
	clusterRequests  = []string{"pod creation", "binding", "binding until its kubelet's watch has it", "pod status", "pod deletion", "event"}
)

// simulateCluster simulates the cluster and returns the results by name. If the machine was too slow for the load, it
// does so again for a longer time.
func simulateCluster(t *testing.T) map[string]*bench.Result {
	t.Helper()
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	for duration := 4 * time.Second; ; duration *= 4 {
		results, err := cluster.Run(t.Context(), cluster.Config{
			Trials: testservers.Trials{
				TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: binaries.larder, Etcd: etcd},
				Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
			},
			Nodes: []int{3}, PodsPerNode: 4, Churn: 4, Protocols: []string{cluster.HTTP2, cluster.HTTP1},
			Duration: duration,
		})
		values := make(map[string]*bench.Result)
		for _, r := range results {
			values[r.Name] = r
		}
		slow := tooSlow(values, err)
		switch {
		case slow != "" && duration < time.Minute:
			t.Logf("the machine is too slow: %s", slow)
		case err != nil:
			t.Fatal(err)
		default:
			return values
		}
	}
}

// tooSlow says what shows that a machine was too slow for the load: an operation that did not end within its limit, a
// list of a cache that was not current, or requests that ended after the measurement. It returns "" if nothing does.
func tooSlow(values map[string]*bench.Result, err error) string {
	if errors.Is(err, context.DeadlineExceeded) || bench.StatusOf(err) == http.StatusTooManyRequests {
		return err.Error()
	}
	for _, r := range values {
		if r.Timeouts > 0 {
			return r.Name + ": " + r.FirstError
		}
	}
	for _, protocol := range clusterProtocols {
		for _, kind := range clusterRequests {
			if name := "Larder: 3 nodes, " + protocol + ": steady: " + kind; values[name] == nil && err == nil {
				return name + " was never done"
			}
		}
	}
	return ""
}
