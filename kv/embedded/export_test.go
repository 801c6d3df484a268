package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

// Store is an embedded store that tests reach behind. What is not of kv.Store may be
// called once it is open.
type Store struct {
	*kv.Etcd
	opener *opener
}

// NewStore is New.
func NewStore(cfg Config) (*Store, error) {
	etcd, opener, err := newStore(cfg)
	return &Store{etcd, opener}, err
}

// CompactAt compacts the store.
func (s *Store) CompactAt(ctx context.Context, revision int64) error {
	_, err := s.opener.space.client.KV.Compact(ctx, revision)
	return err
}

// ClusterID returns the id of the cluster that the server is.
func (s *Store) ClusterID(ctx context.Context) (uint64, error) {
	resp, err := s.opener.space.client.Get(ctx, "any", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return resp.Header.ClusterId, nil
}

// StallDatabase makes the store's database wait in the middle of a commit, as
// it does on a disk that does not answer, until release is called: a file that has to
// grow waits for all who read its mapping.
func (s *Store) StallDatabase(t testing.TB) (release func()) {
	t.Helper()
	database := s.opener.space.database
	reader := database.Snapshot()
	var committing sync.WaitGroup
	release = sync.OnceFunc(func() {
		reader.Close()
		committing.Wait()
	})
	t.Cleanup(release)
	committing.Go(func() {
		tx := database.BatchTx()
		tx.LockOutsideApply()
		tx.UnsafeCreateBucket(schema.Test)
		for i := range 80 {
			tx.UnsafePut(schema.Test, fmt.Appendf(nil, "%d", i), make([]byte, 1<<20))
		}
		tx.Unlock()
		database.ForceCommit()
	})
	proctest.Eventually(t, "the database stalls", func() error {
		if !waitsForReaders() {
			return errors.New("no commit waits for a reader")
		}
		return nil
	})
	return release
}

// waitsForReaders reports whether a commit waits until nobody reads the mapping of a file that
// has to grow. It holds then what all later reads and writes must take. Only the goroutines'
// stacks tell it from one that has yet to come so far.
func waitsForReaders() bool {
	stacks := make([]byte, 4<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for goroutine := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(goroutine, []byte("go.etcd.io/bbolt.(*DB).mmap(")) && bytes.Contains(goroutine, []byte("sync.(*RWMutex).Lock(")) {
			return true
		}
	}
	return false
}

// StallMembers holds the lock of the list of members, as the server does while it writes one
// of them, or the cluster's version, to a database that stalls, until release is called.
func (s *Store) StallMembers(t testing.TB) (release func()) {
	t.Helper()
	members := s.opener.only.server.Cluster().(*membership.RaftCluster)
	members.Lock()
	release = sync.OnceFunc(members.Unlock)
	t.Cleanup(release)
	return release
}
