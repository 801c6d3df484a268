package kv_test

import (
	"context"
	"log"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// The variables make the test binary play another process, configured by their
// value: a member of an etcd cluster, or a program that uses embedded etcd in ways that
// may end it.
const (
	memberVariable = "LARDER_KV_TEST_MEMBER"
	writerVariable = "LARDER_KV_TEST_WRITER"
	openerVariable = "LARDER_KV_TEST_OPENER"
	fillerVariable = "LARDER_KV_TEST_FILLER"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(memberVariable); raw != "" {
		log.Fatal(kvtest.RunMember(raw))
	} else if raw := os.Getenv(writerVariable); raw != "" {
		playWriter(raw)
	} else if raw := os.Getenv(openerVariable); raw != "" {
		playOpener(raw)
	} else if raw := os.Getenv(fillerVariable); raw != "" {
		playFiller(raw)
	} else {
		goleak.VerifyTestMain(m)
	}
}

// startCluster starts a cluster of real members.
func startCluster(t *testing.T, size int, adjust func([]kvtest.MemberConfig)) []*kvtest.Member {
	t.Helper()
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

func openEmbedded(t *testing.T, cfg kv.EmbeddedConfig) *kv.Etcd {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.UnsafeNoFsync = true
	store, err := kv.NewEmbedded(cfg)
	return runStore(t, store, err)
}

func openExternal(t *testing.T, cfg kv.ExternalConfig) *kv.Etcd {
	t.Helper()
	store, err := kv.NewExternal(cfg)
	return runStore(t, store, err)
}

func subject(store *kv.Etcd) kvtest.Subject {
	return kvtest.Subject{Store: store, Compact: store.CompactAt, PutAll: store.PutAll}
}
