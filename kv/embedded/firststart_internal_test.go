package embedded

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/larder-io/larder/internal/proctest"
)

// killedStart makes the directory of a first start that was killed before its first entry was on disk. The IDs of member
// and cluster are those of another directory, whole.
func killedStart(t *testing.T, whole string, entries ...*raftpb.Entry) (dir string) {
	t.Helper()
	server, err := startServer(t.Context(), testConfig(t, whole, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	member, cluster := uint64(server.Server.MemberID()), uint64(server.Server.Cluster().ID())
	server.Close()
	metadata, err := proto.Marshal(&etcdserverpb.Metadata{NodeID: &member, ClusterID: &cluster})
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := os.MkdirAll(datadir.ToSnapDir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	log, err := wal.Create(nil, datadir.ToWALDir(dir), metadata)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if len(entries) > 0 {
		if err := log.Save(&raftpb.HardState{}, entries); err != nil {
			t.Fatal(err)
		}
	}
	addToDatabase(t, dir, "", "")
	return dir
}

// addToDatabase makes the buckets that etcd makes before it has a log, and puts a key into one of them, unless it is "".
func addToDatabase(t *testing.T, dir, name, key string) {
	t.Helper()
	db, err := bbolt.Open(datadir.ToBackendFileName(dir), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, bucket := range []interface{ Name() []byte }{schema.Meta, schema.Cluster, schema.Members, schema.MembersRemoved, schema.Key, schema.Auth} {
			b, err := tx.CreateBucketIfNotExists(bucket.Name())
			if err == nil && key != "" && string(bucket.Name()) == name {
				err = b.Put([]byte(key), bytes.Repeat([]byte{1}, 17))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// damageLog overwrites a part of a WAL.
func damageLog(t *testing.T, dir string, with []byte, offset int64) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(datadir.ToWALDir(dir), firstLog), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(with, offset); err != nil {
		t.Fatal(err)
	}
}

// TestStartsAfterAKillBeforeTheFirstEntry starts a server where its first start was killed when the WAL had no entry yet,
// writes, and reads that after another start.
func TestStartsAfterAKillBeforeTheFirstEntry(t *testing.T) {
	for _, database := range []bool{true, false} {
		made := killedStart(t, t.TempDir())
		dir := made + "[" // not a valid file pattern
		if err := os.Rename(made, dir); err != nil {
			t.Fatal(err)
		}
		if !database {
			if err := os.Remove(datadir.ToBackendFileName(dir)); err != nil {
				t.Fatal(err)
			}
		}
		for _, write := range []bool{true, false} {
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			server, err := startServer(ctx, testConfig(t, dir, time.Second))
			cancel()
			if err != nil {
				t.Fatalf("with a database %v, first start %v: %v", database, write, err)
			}
			client := v3client.New(server.Server)
			if write {
				_, err = client.Put(t.Context(), "/registry/a", "1")
			} else if resp, getErr := client.Get(t.Context(), "/registry/a"); getErr != nil || len(resp.Kvs) != 1 {
				t.Errorf("Get after another start: got %v and error %v, want the key", resp, getErr)
			}
			if err != nil {
				t.Error(err)
			}
			client.Close()
			server.Close()
		}
	}
}

// TestLogIsNotRemovedBesideData checks that a WAL without a voter is not removed if it has an entry or is damaged, or if
// the database or a snapshot has data. A start then fails with an error that names the directory.
func TestLogIsNotRemovedBesideData(t *testing.T) {
	entry := &raftpb.Entry{Index: proto.Uint64(1), Term: proto.Uint64(1)}
	whole := t.TempDir()
	for name, damage := range map[string]func(t *testing.T) (dir string){
		"an entry that is not committed": func(t *testing.T) string { return killedStart(t, whole, entry) },
		"bytes after zeros": func(t *testing.T) string {
			dir := killedStart(t, whole)
			damageLog(t, dir, []byte("x"), 1<<20)
			return dir
		},
		"a torn entry before another": func(t *testing.T) string {
			torn := &raftpb.Entry{Index: entry.Index, Term: entry.Term, Data: bytes.Repeat([]byte("x"), 4<<10)}
			dir := killedStart(t, whole, torn, &raftpb.Entry{Index: proto.Uint64(2), Term: entry.Term})
			damageLog(t, dir, make([]byte, 1<<10), 1<<10)
			if server, err := startServer(t.Context(), testConfig(t, dir, time.Second)); err == nil { // truncates the file
				server.Close()
				t.Error("the server started with a torn entry")
			}
			return dir
		},
		"a key": func(t *testing.T) string {
			dir := killedStart(t, whole)
			addToDatabase(t, dir, "key", string(make([]byte, 17)))
			return dir
		},
		"an applied entry": func(t *testing.T) string {
			dir := killedStart(t, whole)
			addToDatabase(t, dir, "meta", string(schema.MetaConsistentIndexKeyName))
			return dir
		},
		"a snapshot": func(t *testing.T) string {
			dir := killedStart(t, whole)
			if err := os.WriteFile(filepath.Join(datadir.ToSnapDir(dir), "0000000000000001-0000000000000001.snap"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := damage(t)
			log := filepath.Join(datadir.ToWALDir(dir), firstLog)
			before, err := os.Stat(log)
			if err != nil {
				t.Fatal(err)
			}
			if err := removeEmptyLog(dir); err != nil {
				t.Error(err)
			}
			if after, err := os.Stat(log); err != nil || !os.SameFile(before, after) {
				t.Fatalf("the log was removed or replaced: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			defer cancel()
			if server, err := startServer(ctx, testConfig(t, dir, time.Second)); err == nil {
				server.Close()
				t.Error("the server started")
			} else if !strings.Contains(err.Error(), dir) {
				t.Errorf("the error does not name the directory: %v", err)
			}
		})
	}
}
