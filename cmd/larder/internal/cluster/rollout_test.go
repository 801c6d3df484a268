package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/larder-io/larder/bench/rollout"
	"github.com/larder-io/larder/bench/testservers"
)

// TestRollout measures a small rollout over a server and the programs that its users have: each
// phase has a result, and when all is over nothing is left.
func TestRollout(t *testing.T) {
	t.Parallel()
	etcd := filepath.Join(t.TempDir(), "etcd")
	must(t, os.Symlink(*larder, etcd))
	c := rollout.Config{
		Trials: testservers.Trials{
			TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: *larder, Etcd: etcd},
			Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
		},
		Programs: *others, Nodes: 2, Pods: 100, Rest: time.Second,
	}
	results, err := rollout.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range results {
		names = append(names, r.Name)
		if r.ServerCPU <= 0 || r.Wall <= 0 || len(r.Beside) != 4 {
			t.Errorf("%s: %v of CPU in %v, beside %v", r.Name, r.ServerCPU, r.Wall, r.Beside)
		}
	}
	var want []string
	for _, phase := range rollout.Phases {
		want = append(want, testservers.Larder+": "+phase)
	}
	if !slices.Equal(names, want) {
		t.Errorf("results %v, want %v", names, want)
	}
	if left, err := os.ReadDir(c.TestServers.Dir); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}
