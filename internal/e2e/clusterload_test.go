package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/larder-io/larder/bench/cluster"
	"github.com/larder-io/larder/bench/testservers"
)

// TestClusterLoad plays a small cluster by both protocols and restarts the server meanwhile. No
// request fails while it serves, and afterwards each informer has what there is.
func TestClusterLoad(t *testing.T) {
	t.Parallel() // it waits most of the time
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	table, err := cluster.Run(t.Context(), cluster.Config{
		Trials: testservers.Trials{
			TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: binaries.larder, Etcd: etcd},
			Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
		},
		Nodes: []int{3}, PodsPerNode: 4, Churn: 4, Protocols: []string{cluster.HTTP2, cluster.HTTP1}, Connections: 1,
		Duration: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Results) != 2 {
		t.Fatalf("%d results, want one by each protocol", len(table.Results))
	}
	for _, r := range table.Results {
		kinds := make(map[string]int)
		for _, k := range r.Steady.Kinds {
			kinds[k.Name] = k.Ops
			// The graph that authorizes nodes may know a pod later than its kubelet.
			if k.Failures() > k.Statuses[http.StatusForbidden] {
				t.Errorf("%s: %s: %d of %d requests failed, the first: %s", r.Protocol, k.Name, k.Failures(), k.Ops, k.FirstError)
			}
		}
		for _, name := range []string{"pod creation", "binding", "binding until its kubelet's watch has it", "pod status", "pod deletion", "event"} {
			if kinds[name] == 0 {
				t.Errorf("%s: nothing of %q", r.Protocol, name)
			}
		}
		if r.Watches < 76+3*9+3 || r.Restart.Cost.Wall <= 0 || r.Restart.Cost.Server <= 0 {
			t.Errorf("%s: %d watches; the restart took %v and %v of CPU", r.Protocol, r.Watches, r.Restart.Cost.Wall, r.Restart.Cost.Server)
		}
		if r.Expired > 0 || r.Differing > 0 {
			t.Errorf("%s: %d informers began anew; %d differ at the end: %s", r.Protocol, r.Expired, r.Differing, r.FirstDiffering)
		}
	}
}
