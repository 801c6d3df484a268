package embedded_test

import (
	"os"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// Each of these variables makes the test binary run as another process, configured by its value: a program whose
// embedded etcd may end it.
const (
	writerVariable = "LARDER_EMBEDDED_TEST_WRITER"
	openerVariable = "LARDER_EMBEDDED_TEST_OPENER"
	fillerVariable = "LARDER_EMBEDDED_TEST_FILLER"
)

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	if raw := os.Getenv(writerVariable); raw != "" {
		playWriter(raw)
	} else if raw := os.Getenv(openerVariable); raw != "" {
		playOpener(raw)
	} else if raw := os.Getenv(fillerVariable); raw != "" {
		playFiller(raw)
	} else {
		proctest.Main(m)
	}
}

// open runs a store until the test ends and waits until it is open.
func open(t testing.TB, cfg embedded.Config) *embedded.Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.UnsafeNoFsync = true
	store := embedded.NewStore(cfg)
	store.Stop = kvtest.RunUntilEnd(t, store.Run)
	select {
	case <-store.Ready():
	case <-time.After(proctest.Patience):
		t.Fatal("the store does not open")
	}
	return store
}
