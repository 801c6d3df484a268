package embedded

import (
	"cmp"
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/larder-io/larder/kv"
)

// maxReads limits the concurrent reads of the server in this process, including reads whose callers have left. It is
// far above what the processors serve at a time, and stops reads from piling up while a disk stalls.
const maxReads = 256

// measuredRevisions is how many revisions recent reads at a time.
const measuredRevisions = 1000

// localKV calls the server in this process.
//
// The server reads on its caller's goroutine, and waits for locks that are held while the database is written, however
// long the disk takes. localKV returns at the caller's deadline, and the read continues on its own goroutine. If
// maxReads are running, a caller waits until one ends or its deadline passes. Writes end at their deadlines without
// help.
type localKV struct {
	etcdserverpb.KVClient
	database backend.Backend
	recorder kv.ResponseRecorder
	log      *writeLog
	reads    *semaphore.Weighted // of maxReads
	ctx      context.Context     // ended by close, which stops new reads and waiting callers
	cancel   context.CancelFunc
}

func newLocalKV(server etcdserverpb.KVClient, database backend.Backend, log *writeLog, recorder kv.ResponseRecorder) *localKV {
	k := &localKV{KVClient: server, database: database, recorder: recorder, log: log, reads: semaphore.NewWeighted(maxReads)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// close refuses new reads and waits for running ones.
func (k *localKV) close() {
	k.cancel()
	_ = k.reads.Acquire(context.Background(), maxReads) // never released
}

func (k *localKV) Range(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	var out *etcdserverpb.RangeResponse
	var err error
	if failed := k.read(ctx, func(ctx context.Context) { out, err = k.KVClient.Range(ctx, in, opts...) }); failed != nil {
		return nil, failed
	}
	k.recorder.Record(out.GetHeader())
	return out, err
}

// read runs f, and returns an error if f has not ended when ctx ends or the store closes. Then f may still
// be running: the caller must not touch its variables.
func (k *localKV) read(ctx context.Context, f func(context.Context)) error {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	if k.reads.Acquire(reading, 1) != nil {
		return cmp.Or(ctx.Err(), kv.ErrClosed)
	}
	done := make(chan struct{})
	go func() { // close waits for it
		defer k.reads.Release(1)
		defer close(done)
		f(reading)
	}()
	select {
	case <-done:
		return nil
	case <-reading.Done():
		return cmp.Or(ctx.Err(), kv.ErrClosed)
	}
}

// recent is Connection.Recent. The database returns values without reading or copying them.
func (k *localKV) recent(ctx context.Context, past, present, limit int64) (int64, error) {
	if k.database.Size() <= limit {
		return past, nil
	}
	oldest := past
	err := k.read(ctx, func(context.Context) {
		tx := k.database.ReadTx()
		tx.RLock()
		defer tx.RUnlock()
		var bytes int64
		for last := present; last > past; last -= measuredRevisions {
			first := max(past, last-measuredRevisions) + 1
			revisions, values := tx.UnsafeRange(schema.Key, revisionKey(first), revisionKey(last+1), 0)
			for i := len(values) - 1; i >= 0; i-- {
				if bytes += int64(len(values[i])); bytes > limit {
					oldest = mvcc.BytesToRev(revisions[i]).Main
					return
				}
			}
		}
	})
	if err != nil {
		return 0, err
	}
	return oldest, nil
}

func revisionKey(revision int64) []byte {
	return mvcc.RevToBytes(mvcc.Revision{Main: revision}, mvcc.NewRevBytes())
}

func (k *localKV) Txn(ctx context.Context, in *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	out, err := k.KVClient.Txn(ctx, in, opts...)
	k.recorder.Record(out.GetHeader())
	k.log.wrote(ctx, proto.Size(in))
	return out, err
}

// recordResponses records the server's responses to clients of its socket before they receive them. It rejects other
// members of the cluster: the server would connect to them, and they could acknowledge writes that nobody records.
func recordResponses(recorder kv.ResponseRecorder) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if info.FullMethod == etcdserverpb.Cluster_MemberAdd_FullMethodName {
			return nil, status.Error(codes.FailedPrecondition, errMembers.Error())
		}
		out, err := handler(ctx, in)
		if response, ok := out.(interface {
			GetHeader() *etcdserverpb.ResponseHeader
		}); ok && err == nil {
			recorder.Record(response.GetHeader())
		}
		return out, err
	}
}
