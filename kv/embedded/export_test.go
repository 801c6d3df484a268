package embedded

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
)

// Store is an embedded store with access to its internals. The methods that kv.Store lacks require an open store.
type Store struct {
	*kv.Etcd
	Stop   func() // ends Run and waits for it
	opener *opener
}

// NewStore returns a store like New, as a Store.
func NewStore(cfg Config) *Store {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	o := &opener{cfg: cfg}
	return &Store{Etcd: o.store(), opener: o}
}

// CompactAt compacts the store.
func (s *Store) CompactAt(ctx context.Context, revision int64) error {
	_, err := s.opener.server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: revision})
	return err
}

// ClusterID returns etcd's cluster ID.
func (s *Store) ClusterID() types.ID { return s.opener.server.Cluster().ID() }

// StallDatabase blocks a commit of the database, as a hanging disk does, until release is called. It makes the
// file grow while a reader uses its memory mapping, and bbolt waits for such readers.
func (s *Store) StallDatabase(t testing.TB) (release func()) {
	t.Helper()
	database := s.opener.server.Backend()
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

// waitsForReaders reports whether a commit waits for readers of the memory mapping. It then holds the locks that
// all later reads and writes need. This can be seen only in the stacks of the goroutines.
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
