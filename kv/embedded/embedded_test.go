package embedded_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

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
		t.Errorf("socket directory: %v, error %v; want mode 0700", info, err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(dir, "sock", "etcd")}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	resp, err := client.Get(t.Context(), "/registry/a")
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != revision {
		t.Errorf("Get through the socket: got %v and error %v, want the key at %d", resp, err, revision)
	}
	if _, err := client.MemberAdd(t.Context(), []string{"http://127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), "only member") {
		t.Errorf("MemberAdd: got error %v, want one that says only member", err)
	}
}

// TestDirectoryOfAClusterIsRejected checks that an etcd with another member does not start. The other member could
// acknowledge writes without the store.
func TestDirectoryOfAClusterIsRejected(t *testing.T) {
	dir, err := os.MkdirTemp("", "kv") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	config := embed.NewConfig()
	config.Dir, config.ListenPeerUrls, config.LogLevel = dir, nil, "fatal"
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(dir, "etcd")}}
	config.AdvertiseClientUrls = config.ListenClientUrls
	server, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	<-server.Server.ReadyNotify()
	client := v3client.New(server.Server)
	_, err = client.MemberAddAsLearner(t.Context(), []string{"http://127.0.0.1:1"})
	client.Close()
	server.Close()
	if err != nil {
		t.Fatal(err)
	}
	store, err := embedded.New(embedded.Config{Dir: dir, UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "only member") {
		t.Errorf("Run: got error %v, want one that says only member", err)
	}
}

// TestStoresWithLongPathsOpen checks a path that is too long for the address of a socket.
func TestStoresWithLongPathsOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	kvtest.Put(t, open(t, embedded.Config{Dir: dir}), "/registry/a", "1")
}

func TestDirectoryOfAnotherStoreIsRejected(t *testing.T) {
	dir := t.TempDir()
	open(t, embedded.Config{Dir: dir})
	second, err := embedded.New(embedded.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("Run: got error %v, want one that says in use", err)
	}
}

// TestDirectoryOfARunningEtcdIsRejected checks a database that an etcd has open. etcd does not take Larder's lock.
func TestDirectoryOfARunningEtcdIsRejected(t *testing.T) {
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
		t.Errorf("Run: got error %v, want one that says in use", err)
	}
}

func TestDirectoryThatCannotBeCreatedIsRejected(t *testing.T) {
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
		t.Error("Get from a store that did not open returns no error")
	}
}

// TestDatabaseOlderThanTheSnapshotIsRejected checks that Run returns an error, and does not panic, for a database that is
// older than the snapshot, here an empty one.
func TestDatabaseOlderThanTheSnapshotIsRejected(t *testing.T) {
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

func TestReopenedStoresHaveTheirDataAndClusterID(t *testing.T) {
	dir := t.TempDir()
	first := open(t, embedded.Config{Dir: dir})
	revision := kvtest.Put(t, first, "/registry/a", "1")
	cluster := first.ClusterID()
	first.Stop()
	again := open(t, embedded.Config{Dir: dir})
	item, found, _, err := again.Get(t.Context(), "/registry/a")
	if err != nil || !found || item.Revision != revision || again.ClusterID() != cluster {
		t.Errorf("found %v at %d in cluster %v, error %v; want %d in %v", found, item.Revision, again.ClusterID(), err, revision, cluster)
	}
	if size, err := again.Size(t.Context()); err != nil || size <= 0 {
		t.Errorf("Size = %d, error %v; want a positive size", size, err)
	}
}

// TestElectionsWaitForRaft repeatedly opens a store whose log is long enough to be truncated at each start. An election
// that is called before raft has applied the log panics in about one of forty starts.
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

func TestRequestsAboveTheLimitFail(t *testing.T) {
	store := open(t, embedded.Config{})
	_, err := store.Put(t.Context(), "/registry/a", make([]byte, 2<<20), kv.PutOptions{})
	var failed *kv.Error
	if !errors.As(err, &failed) || failed.Err.Error() != "etcdserver: request is too large" {
		t.Errorf("Put of 2 MiB: got error %v, want that the request is too large", err)
	}
}

// TestReopenedStoresReplay checks that events from before a restart are replayed after it.
func TestReopenedStoresReplay(t *testing.T) {
	dir := t.TempDir()
	var first, last int64
	t.Run("before", func(t *testing.T) {
		store := open(t, embedded.Config{Dir: dir})
		first = kvtest.Put(t, store, "/registry/pods/a", "0")
		for i := range 3000 { // more than etcd sends in one response
			last = kvtest.Put(t, store, fmt.Sprintf("/registry/pods/%d", i%10), strconv.Itoa(i))
		}
	})
	store := open(t, embedded.Config{Dir: dir})
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
	sub := tail.Subscribe("/registry/pods/")
	kvtest.RunUntilEnd(t, tail.Run)
	past, until, err := sub.Begin(t.Context(), 0)
	if err != nil || past >= first || until != last {
		t.Fatalf("the replay is from %d to %d, error %v; want from before %d to %d", past, until, err, first, last)
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

func TestNewRejectsAConfigWithoutADirectory(t *testing.T) {
	if _, err := embedded.New(embedded.Config{}); err == nil {
		t.Error("no error without a directory")
	}
}
