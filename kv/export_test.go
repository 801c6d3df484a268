package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/larder-io/larder/internal/proctest"
)

// CompactAt compacts the store.
func (e *Etcd) CompactAt(ctx context.Context, revision int64) error {
	client, err := e.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.KV.Compact(ctx, revision)
	return err
}

// PutAll writes several keys in one transaction.
func (e *Etcd) PutAll(ctx context.Context, values map[string][]byte) (int64, error) {
	client, err := e.client(ctx)
	if err != nil {
		return 0, err
	}
	var ops []clientv3.Op
	for key, value := range values {
		if value == nil {
			ops = append(ops, clientv3.OpDelete(key))
		} else {
			ops = append(ops, clientv3.OpPut(key, string(value)))
		}
	}
	resp, err := client.KV.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// CompactOnce makes one move of the compaction protocol.
func (e *Etcd) CompactOnce(ctx context.Context) error {
	client, err := e.client(ctx)
	if err != nil {
		return err
	}
	return e.compact(ctx, client)
}

// ForgeHistory makes the store believe that it has seen a revision.
func (e *Etcd) ForgeHistory(revision int64) { raise(&e.history.revision, revision) }

// ForgeTerm makes the store believe that it has seen a raft term.
func (e *Etcd) ForgeTerm(term uint64) { e.history.term.Store(term) }

// ObserveOldTerm has the store take in an answer of a member that applied its last
// entry in the term before the present one.
func (e *Etcd) ObserveOldTerm(ctx context.Context) {
	mark := e.history.mark()
	e.observeHistory(ctx, mark, &etcdserverpb.ResponseHeader{
		ClusterId: e.history.clusterID.Load(), Revision: mark.revision, RaftTerm: mark.term - 1,
	})
}

// ForgeCluster makes the store believe that it has seen another cluster.
func (e *Etcd) ForgeCluster() { e.history.clusterID.Add(1) }

// DirectAnswers counts the revisions that were read past etcd's client.
func (e *Etcd) DirectAnswers() uint64 { return e.session.direct.answers.Load() }

// WithoutDirect leaves all reads to etcd's client. Nothing may be asked meanwhile.
func (e *Etcd) WithoutDirect() { e.session.direct = nil }

// RevokeLease ends a lease as its expiry does.
func (e *Etcd) RevokeLease(ctx context.Context, lease int64) error {
	client, err := e.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.Lease.Revoke(ctx, clientv3.LeaseID(lease))
	return err
}

// Defragment makes the database smaller.
func (e *Etcd) Defragment(ctx context.Context) error {
	client, err := e.client(ctx)
	if err != nil {
		return err
	}
	if e.session.space != nil {
		return e.session.space.defragment()
	}
	_, err = client.Defragment(ctx, client.Endpoints()[0])
	return err
}

// IsBehind does what a heartbeat does.
func (t *Tail) IsBehind(ctx context.Context) bool { return t.isBehind(ctx) }

// StallDatabase makes an embedded store's database wait in the middle of a commit, as
// it does on a disk that does not answer, until release is called: a file that has to
// grow waits for all who read its mapping.
func (e *Etcd) StallDatabase(t testing.TB) (release func()) {
	t.Helper()
	database := e.session.space.database
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
		read := make(chan struct{})
		committing.Go(func() {
			database.ConcurrentReadTx().RUnlock()
			close(read)
		})
		select {
		case <-read:
			return errors.New("it can be read")
		case <-time.After(100 * time.Millisecond):
			return nil
		}
	})
	return release
}
