package e2e_test

import (
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
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	results, err := cluster.Run(t.Context(), cluster.Config{
		Trials: testservers.Trials{
			TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: binaries.larder, Etcd: etcd},
			Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
		},
		Nodes: []int{3}, PodsPerNode: 4, Churn: 4, Protocols: []string{cluster.HTTP2, cluster.HTTP1},
		Duration: 4 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]*bench.Result) // by name
	for _, r := range results {
		values[r.Name] = r
		// The graph that authorizes nodes may get a pod later than its kubelet.
		if r.Failures() > r.Statuses[http.StatusForbidden] {
			t.Errorf("%s: %d of %d failed, first error: %s", r.Name, r.Failures(), r.Ops, r.FirstError)
		}
	}
	for _, protocol := range []string{"HTTP/2", "HTTP/1.1"} {
		name := "Larder: 3 nodes, " + protocol + ": "
		for _, kind := range []string{"pod creation", "binding", "binding until its kubelet's watch has it", "pod status", "pod deletion", "event"} {
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
