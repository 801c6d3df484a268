package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-io/larder/bench/definitions"
	"github.com/larder-io/larder/bench/testservers"
)

// TestDefinitionsAreMeasured makes a few definitions: each step and each kind of memory is told.
func TestDefinitionsAreMeasured(t *testing.T) {
	t.Parallel() // it waits most of the time
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	table, err := definitions.Run(t.Context(), definitions.Config{
		Trials: testservers.Trials{
			TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: binaries.larder, Etcd: etcd},
			Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
		},
		Count: 4, PerGroup: 2, Fields: 5, Clients: 2, Used: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := table.Results[0]
	for _, s := range r.Steps {
		if s.CPU <= 0 || s.Wall <= 0 {
			t.Errorf("%s took %v of CPU and %v", s.Name, s.CPU, s.Wall)
		}
	}
	text := table.Markdown()
	if n := strings.Count(text, "| CPU: "); n != 7 || len(r.Steps) != n {
		t.Errorf("%d of 7 steps are in the table, %d were measured:\n%s", n, len(r.Steps), text)
	}
	for _, m := range []definitions.Memory{r.Empty, r.Described, r.InUse, r.Idle} {
		if m.Heap <= 0 || m.RSS <= m.Heap {
			t.Errorf("memory is not told: %+v", r)
		}
	}
}
