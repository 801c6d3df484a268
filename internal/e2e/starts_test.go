package e2e_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/larder-io/larder/bench/starts"
	"github.com/larder-io/larder/bench/testservers"
)

// TestServerStartsOnForeignObjects starts a server on objects that no server has written, and checks that it lists all
// of them.
func TestServerStartsOnForeignObjects(t *testing.T) {
	t.Parallel() // mostly waits
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.Symlink(binaries.larder, etcd); err != nil {
		t.Fatal(err)
	}
	const objects = 130 // more than etcd allows in one transaction
	results, err := starts.Run(t.Context(), starts.Config{
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
	if len(results) != 2*3 {
		t.Fatalf("%d results, want two for each kind of data", len(results))
	}
	// With its defaults, an object has more bytes than this.
	for i, least := range []int64{3500, 1000, 2500} {
		ready, listed := results[2*i], results[2*i+1]
		if listed.Bytes < objects*least {
			t.Errorf("%s: a list of %d bytes", listed.Name, listed.Bytes)
		}
		if ready.ServerCPU <= 0 || listed.Wall < ready.Wall || listed.Server.PeakRSS < ready.Server.PeakRSS {
			t.Errorf("%s: ready after %+v, listed after %+v", ready.Name, ready, listed)
		}
	}
}
