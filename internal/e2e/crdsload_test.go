package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	benchcrds "github.com/larder-io/larder/bench/crds"
	"github.com/larder-io/larder/bench/testservers"
)

// TestCRDsAreMeasured creates a few CRDs, and checks that each step and each kind of memory is measured.
func TestCRDsAreMeasured(t *testing.T) {
	t.Parallel() // mostly waits
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	results, err := benchcrds.Run(t.Context(), benchcrds.Config{
		Trials: testservers.Trials{
			TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: binaries.larder, Etcd: etcd},
			Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
		},
		Count: 4, Clients: 2, Used: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results[:len(results)-1] {
		if r.ServerCPU <= 0 || r.Wall <= 0 {
			t.Errorf("%s took %v of CPU and %v", r.Name, r.ServerCPU, r.Wall)
		}
	}
	// Each of seven steps has a result. After three of them, the heap and the resident memory are measured.
	if n := len(results); n != 7+1 || len(results[n-1].Values) != 2*3 {
		t.Errorf("%d results, the last one with %v", n, results[n-1].Values)
	}
}
