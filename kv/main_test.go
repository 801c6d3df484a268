package kv_test

import (
	"context"
	"flag"
	"log"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

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
	goleak.VerifyTestMain(m)
}

// startCluster starts a cluster of real members.
func startCluster(t *testing.T, size int, adjust func([]kvtest.MemberConfig)) []*kvtest.Member {
	t.Helper()
	if testing.Short() {
		t.Skip("runs etcd in processes of its own")
	}
	return kvtest.StartCluster(t, memberVariable, size, adjust)
}

// runStore runs a store until the test ends and waits until it is open.
func runStore(t *testing.T, store *kv.Etcd, err error) *kv.Etcd {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- store.Run(context.Background()) }()
	t.Cleanup(func() {
		store.Close()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-store.Ready():
	case <-time.After(proctest.Patience):
		t.Fatal("the store does not open")
	}
	return store
}

func openEmbedded(t *testing.T, cfg embedded.Config) *kv.Etcd {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.UnsafeNoFsync = true
	store, err := embedded.New(cfg)
	return runStore(t, store, err)
}

func openExternal(t *testing.T, cfg kv.ExternalConfig) *kv.Etcd {
	t.Helper()
	store, err := kv.NewExternal(cfg)
	return runStore(t, store, err)
}

func subject(store *kv.Etcd) Subject {
	return Subject{Store: store, Compact: store.CompactAt, PutAll: store.PutAll}
}
