package embedded

import (
	"cmp"
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/larder-io/larder/kv"
)

// maxReads is how many reads of the server in this process may be under way, including reads whose
// callers have gone. It is far more than the processors serve at a time, and bounds the reads that
// pile up while a disk stalls.
const maxReads = 256

// localKV calls the server in this process.
//
// The server reads on its caller's goroutine, and waits there for locks that it holds
// while the database is written, however long the disk takes. localKV returns at the caller's
// deadline, and leaves the read to a goroutine until it ends. When maxReads are under way, a
// caller waits until one ends, or for its own deadline. Writes end at their deadlines by
// themselves.
type localKV struct {
	etcdserverpb.KVClient
	answers kv.Answers
	log     *writeLog
	reads   *semaphore.Weighted // has a place for each read that may be under way
	ctx     context.Context     // ends when no new reads may begin, and ends all that wait
	cancel  context.CancelFunc
}

func newLocalKV(server etcdserverpb.KVClient, log *writeLog, answers kv.Answers) *localKV {
	k := &localKV{KVClient: server, answers: answers, log: log, reads: semaphore.NewWeighted(maxReads)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// close refuses new reads and waits for reads in flight.
func (k *localKV) close() {
	k.cancel()
	_ = k.reads.Acquire(context.Background(), maxReads) // never released
}

func (k *localKV) Range(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	if k.reads.Acquire(reading, 1) != nil {
		return nil, cmp.Or(ctx.Err(), kv.ErrClosed)
	}
	var out *etcdserverpb.RangeResponse
	var err error
	done := make(chan struct{})
	go func() { // close waits for it
		defer k.reads.Release(1)
		defer close(done)
		out, err = k.KVClient.Range(reading, in, opts...)
	}()
	select {
	case <-done:
		k.answers.Learn(out.GetHeader())
		return out, err
	case <-reading.Done():
		return nil, cmp.Or(ctx.Err(), kv.ErrClosed)
	}
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
