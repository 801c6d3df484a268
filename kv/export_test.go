package kv

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// CompactAt compacts the store.
func (e *Etcd) CompactAt(ctx context.Context, revision int64) error {
	if err := e.awaitOpen(ctx); err != nil {
		return err
	}
	_, err := e.connection.Client.KV.Compact(ctx, revision)
	return err
}

// PutAll writes several keys in one transaction.
func (e *Etcd) PutAll(ctx context.Context, values map[string][]byte) (int64, error) {
	if err := e.awaitOpen(ctx); err != nil {
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
	resp, err := e.connection.Client.KV.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// CompactOnce takes one step of the compaction protocol.
func (e *Etcd) CompactOnce(ctx context.Context) error {
	if err := e.awaitOpen(ctx); err != nil {
		return err
	}
	return e.compact(ctx)
}

// ForgeHistory makes the store believe that it has seen a revision.
func (e *Etcd) ForgeHistory(revision int64) { raise(&e.history.revision, revision) }

// ForgeTerm makes the store believe that it has seen a raft term.
func (e *Etcd) ForgeTerm(term uint64) { e.history.term.Store(term) }

// ObserveOldTerm passes the store a response of a member whose last applied entry is of the previous term.
func (e *Etcd) ObserveOldTerm(ctx context.Context) {
	mark := e.history.mark()
	e.observeHistory(ctx, mark, &etcdserverpb.ResponseHeader{
		ClusterId: e.history.clusterID.Load(), Revision: mark.revision, RaftTerm: mark.term - 1,
	})
}

// ForgeCluster makes the store believe that it has seen another cluster.
func (e *Etcd) ForgeCluster() { e.history.clusterID.Add(1) }

// OwnReads returns the number of revisions that were read without etcd's client.
func (e *Etcd) OwnReads() uint64 { return e.connection.revisions.responses.Load() }

// WithoutOwnReads makes all reads use etcd's client. No read may be in progress.
func (e *Etcd) WithoutOwnReads() { e.connection.revisions = nil }

// OwnWrites returns the number of transactions that were sent without etcd's client.
func (e *Etcd) OwnWrites() uint64 { return e.connection.writes.responses.Load() }

// WithoutOwnWrites makes all writes use etcd's client, until the connection for writes ends.
func (e *Etcd) WithoutOwnWrites() { e.connection.writes.conn.Store(nil) }

// PutLeased writes a key with a lease.
func (e *Etcd) PutLeased(ctx context.Context, key string, lease int64) error {
	if err := e.awaitOpen(ctx); err != nil {
		return err
	}
	_, err := e.commit(ctx, "create", key, 0, clientv3.OpPut(key, "", clientv3.WithLease(clientv3.LeaseID(lease))))
	return err
}

// RevokeLease revokes a lease, with the same effect as its expiry.
func (e *Etcd) RevokeLease(ctx context.Context, lease int64) error {
	if err := e.awaitOpen(ctx); err != nil {
		return err
	}
	_, err := e.connection.Client.Lease.Revoke(ctx, clientv3.LeaseID(lease))
	return err
}

// IsBehind runs the check of a heartbeat.
func (t *Tail) IsBehind(ctx context.Context) bool { return t.isBehind(ctx) }

// Seen returns the revision up to which every event has been queued to its subscription, or 0 if that is unknown.
func (t *Tail) Seen() int64 { return t.seen.Load() }
