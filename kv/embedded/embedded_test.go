package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

func TestListensOnPrivateSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "kv") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store := open(t, embedded.Config{Dir: dir})
	revision := kvtest.Put(t, store, "/registry/a", "1")
	info, err := os.Stat(filepath.Join(dir, "sock"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("socket directory: %v, %v", info, err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "sock", "etcd")}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	resp, err := client.Get(t.Context(), "/registry/a")
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != revision {
		t.Errorf("through the socket: %v, %v", resp, err)
	}
}

// TestNewMembersAreNoticed checks that the server reads the revision from etcd once there is another voting member,
// which can acknowledge writes too.
func TestNewMembersAreNoticed(t *testing.T) {
	dir, err := os.MkdirTemp("", "kv") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store := open(t, embedded.Config{Dir: dir})
	kvtest.Put(t, store, "/registry/a", "1")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "sock", "etcd")}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.MemberList(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Revision(t.Context()); err != nil || store.RevisionReads() != 0 {
		t.Errorf("%d reads of the only member, %v", store.RevisionReads(), err)
	}
	if _, err := client.MemberAdd(t.Context(), []string{"http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if revision, err := store.Revision(short); err == nil {
		t.Errorf("revision %d without the other member, which never was there", revision)
	}
}

func TestLongPathsHaveNoSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	kvtest.Put(t, open(t, embedded.Config{Dir: dir}), "/registry/a", "1")
}

func TestDirInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, embedded.Config{Dir: dir})
	second, err := embedded.New(embedded.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("Run: %v", err)
	}
}

// TestDirInUseByEtcd checks that a database that an etcd has open is an error, too. etcd does not know Larder's lock.
func TestDirInUseByEtcd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "member", "snap", "db")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	store, err := embedded.New(embedded.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("Run: %v", err)
	}
}

func TestUnusableDirectoriesAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := embedded.New(embedded.Config{Dir: filepath.Join(file, "data")})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "open embedded etcd") {
		t.Errorf("Run: %v", err)
	}
	if _, _, _, err := store.Get(t.Context(), "/registry/a"); err == nil {
		t.Error("Get from a store that did not open")
	}
}

// TestOldDatabasesAreErrorsOfRun checks that a database that is older than the snapshot, here an empty one, makes
// Run return an error and does not panic.
func TestOldDatabasesAreErrorsOfRun(t *testing.T) {
	dir := t.TempDir()
	first := open(t, embedded.Config{Dir: dir, SnapshotCount: 10})
	for i := range 50 {
		kvtest.Put(t, first, fmt.Sprintf("/registry/%d", i), "1")
	}
	first.Stop()
	if err := os.Truncate(filepath.Join(dir, "member", "snap", "db"), 0); err != nil {
		t.Fatal(err)
	}
	store, err := embedded.New(embedded.Config{Dir: dir, SnapshotCount: 10, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "etcd cannot use "+dir) {
		t.Errorf("Run: %v", err)
	}
}

func TestStoresReopen(t *testing.T) {
	dir := t.TempDir()
	first := open(t, embedded.Config{Dir: dir})
	revision := kvtest.Put(t, first, "/registry/a", "1")
	cluster := first.ClusterID()
	first.Stop()
	again := open(t, embedded.Config{Dir: dir})
	item, found, _, err := again.Get(t.Context(), "/registry/a")
	if err != nil || !found || item.Revision != revision || again.ClusterID() != cluster {
		t.Errorf("found %v at %d in cluster %v, %v; want %d in %v", found, item.Revision, again.ClusterID(), err, revision, cluster)
	}
	if size, err := again.Size(t.Context()); err != nil || size <= 0 {
		t.Errorf("Size = %d, %v", size, err)
	}
}

// TestElectionsWaitForRaft opens a store again and again whose log is long enough to be cut at each start. An election that
// is called before raft has applied the log panics in about one of forty starts.
func TestElectionsWaitForRaft(t *testing.T) {
	cfg := embedded.Config{Dir: t.TempDir()}
	store := open(t, cfg)
	for range 400 {
		kvtest.Put(t, store, "/registry/a", "1")
	}
	for range proctest.Iterations(150) {
		store.Stop()
		store = open(t, cfg)
	}
}

func TestRequestTooLarge(t *testing.T) {
	store := open(t, embedded.Config{})
	_, err := store.Put(t.Context(), "/registry/a", make([]byte, 2<<20), kv.PutOptions{})
	var failed *kv.Error
	if !errors.As(err, &failed) || failed.Err.Error() != "etcdserver: request is too large" {
		t.Errorf("Put of 2 MiB: %v", err)
	}
}

// TestReopenedStoresHaveTheirPast checks that earlier revisions can be read after a restart.
func TestReopenedStoresHaveTheirPast(t *testing.T) {
	dir := t.TempDir()
	var first, last int64
	t.Run("before", func(t *testing.T) {
		store := open(t, embedded.Config{Dir: dir})
		first = kvtest.Put(t, store, "/registry/pods/a", "0")
		for i := range 3000 { // more than etcd sends at once
			last = kvtest.Put(t, store, fmt.Sprintf("/registry/pods/%d", i%10), strconv.Itoa(i))
		}
	})
	store := open(t, embedded.Config{Dir: dir})
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
	sub := tail.Subscribe("/registry/pods/")
	kvtest.RunUntilEnd(t, tail.Run)
	past, present, err := sub.Begin(t.Context(), 0)
	if err != nil || past >= first || present != last {
		t.Fatalf("from %d to %d, %v; want from before %d to %d", past, present, err, first, last)
	}
	sub.Loaded(past)
	for next := first; next <= last; {
		batches, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, batch := range batches {
			if batch.Revision != next {
				t.Fatalf("revision %d, want %d", batch.Revision, next)
			}
			next++
		}
		sub.Applied(len(batches))
	}
}

// TestConfigIsChecked checks that an invalid configuration is refused before anything is opened.
func TestConfigIsChecked(t *testing.T) {
	if _, err := embedded.New(embedded.Config{}); err == nil {
		t.Error("no error without a directory")
	}
}
