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
	"google.golang.org/protobuf/proto"

	"github.com/larder-io/larder/kv"
)

// maxReads limits the concurrent reads of the server in this process, including reads whose callers have left. The
// limit is far above what the processors serve at a time. It stops reads from piling up while a disk stalls.
const maxReads = 256

// measuredRevisions is how many revisions are measured at a time.
const measuredRevisions = 1000

// localKV calls the server in this process.
//
// The server reads on its caller's goroutine. It waits for locks that are held while the database
// is written, however long the disk takes. localKV returns at the caller's deadline; the read
// continues on its own goroutine. When maxReads are under way, a caller waits until one ends, or
// for its own deadline. Writes end at their deadlines by themselves.
type localKV struct {
	etcdserverpb.KVClient
	database backend.Backend
	answers  kv.Answers
	log      *writeLog
	reads    *semaphore.Weighted // of maxReads
	ctx      context.Context     // ended by close; then no read may begin, and callers stop waiting
	cancel   context.CancelFunc
}

func newLocalKV(server etcdserverpb.KVClient, database backend.Backend, log *writeLog, answers kv.Answers) *localKV {
	k := &localKV{KVClient: server, database: database, answers: answers, log: log, reads: semaphore.NewWeighted(maxReads)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// close refuses new reads and waits for reads in flight.
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
	k.answers.Learn(out.GetHeader())
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

// recent is the Recent of the connection. The database returns values without reading or copying them.
func (k *localKV) recent(ctx context.Context, past, present, most int64) (int64, error) {
	if k.database.Size() <= most {
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
				if bytes += int64(len(values[i])); bytes > most {
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
	k.answers.Learn(out.GetHeader())
	k.log.wrote(ctx, proto.Size(in))
	return out, err
}

// learnAnswers records the server's answers to clients of its socket before they receive them.
func learnAnswers(answers kv.Answers) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		out, err := handler(ctx, in)
		if answer, ok := out.(interface {
			GetHeader() *etcdserverpb.ResponseHeader
		}); ok && err == nil {
			answers.Learn(answer.GetHeader())
		}
		return out, err
	}
}
