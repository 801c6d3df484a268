package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-io/larder/bench/starts"
	"github.com/larder-io/larder/bench/testservers"
)

// TestStarts starts a server on objects that no server has written: it lists all of them.
func TestStarts(t *testing.T) {
	t.Parallel() // it waits most of the time
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	const objects = 130 // more than etcd takes in a transaction
	table, err := starts.Run(t.Context(), starts.Config{
		Trials: testservers.Trials{
			TestServers: testservers.Config{Dir: t.TempDir(), Stock: os.DevNull, Larder: binaries.larder, Etcd: etcd},
			Servers:     []string{testservers.Larder}, Rounds: 1, Say: func(line string) { t.Log(line) },
		},
		Data:    []string{"old", "autoscalers", "custom-old"},
		Objects: objects,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Results) != 3 {
		t.Fatalf("%d results, want one for each kind of data", len(table.Results))
	}
	for _, r := range table.Results {
		// With its defaults, an object has more than so many bytes.
		if least := map[string]int64{"old": 3500, "autoscalers": 1000, "custom-old": 2500}[r.Data]; r.Bytes < objects*least {
			t.Errorf("%s: a list of %d bytes", r.Data, r.Bytes)
		}
		if r.Ready.Server.CPU <= 0 || r.Listed.Wall < r.Ready.Wall || r.Listed.Server.PeakRSS < r.Ready.Server.PeakRSS {
			t.Errorf("%s: ready after %+v, listed after %+v", r.Data, r.Ready, r.Listed)
		}
	}
}
