package kv_test

import (
	"flag"
	"log"
	"os"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// memberVariable makes the test binary run as a member of an etcd cluster, configured by its value.
const memberVariable = "LARDER_KV_TEST_MEMBER"

func TestMain(m *testing.M) {
	proctest.ShortTemp()
	if raw := os.Getenv(memberVariable); raw != "" {
		log.Fatal(kvtest.RunMember(raw))
	}
	// Parallel tests wait for members most of the time.
	if err := flag.Set("test.parallel", "4"); err != nil {
		log.Fatal(err)
	}
	proctest.Main(m)
}

// startCluster starts a cluster of members in other processes.
func startCluster(t *testing.T, size int, adjust func([]kvtest.MemberConfig)) []*kvtest.Member {
	t.Helper()
	if testing.Short() {
		t.Skip("starts etcd processes, which takes seconds; -short leaves that out")
	}
	return kvtest.StartCluster(t, memberVariable, size, adjust)
}

// runStore runs a store until the test ends, or stop is called, and waits until it is open.
func runStore(t *testing.T, store *kv.Etcd, err error) (stop func()) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	stop = kvtest.RunUntilEnd(t, store.Run)
	select {
	case <-store.Ready():
	case <-time.After(proctest.Patience):
		t.Fatal("the store does not open")
	}
	return stop
}

func openEmbedded(t *testing.T, cfg embedded.Config) *kv.Etcd {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.UnsafeNoFsync = true
	store, err := embedded.New(cfg)
	runStore(t, store, err)
	return store
}

func openExternal(t *testing.T, cfg kv.ExternalConfig) *kv.Etcd {
	t.Helper()
	store, err := kv.NewExternal(cfg)
	runStore(t, store, err)
	return store
}

// subject runs a store as runStore does.
func subject(t *testing.T, store *kv.Etcd, err error) Subject {
	t.Helper()
	stop := runStore(t, store, err)
	return Subject{Store: store, Stop: stop, Compact: store.CompactAt, PutAll: store.PutAll}
}
