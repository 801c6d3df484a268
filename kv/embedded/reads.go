package embedded

import (
	"context"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/larder-io/larder/kv"
)

// mostReads is how many reads of the server in this process may be under way, those
// that nobody waits for any more among them. It is more than so many processors as there
// are can serve, and less than what a disk that stalls for long could collect otherwise.
const mostReads = 256

// ownKV calls the server in this process.
//
// The server reads on the goroutine that asks, and waits there for locks that are held
// while the database is written, however long the disk takes. ownKV lets a caller go at
// its deadline; the read ends when it can. When mostReads are left behind like that, who
// comes then waits for one of them to end, or for its own deadline. Writes end at their
// deadlines by themselves.
type ownKV struct {
	etcdserverpb.KVClient
	answers kv.Answers
	under   chan struct{}   // has an element for each read that has not ended
	open    context.Context // ends when no more reads may begin, and ends all that wait
	shut    context.CancelFunc
}

func newOwnKV(server etcdserverpb.KVClient, answers kv.Answers) *ownKV {
	k := &ownKV{KVClient: server, answers: answers, under: make(chan struct{}, mostReads)}
	k.open, k.shut = context.WithCancel(context.Background())
	return k
}

// close refuses reads from now on and waits for those that are under way.
func (k *ownKV) close() {
	k.shut()
	for range cap(k.under) {
		k.under <- struct{}{} // never taken out again
	}
}

// Range reads.
func (k *ownKV) Range(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	if err := k.begin(ctx); err != nil {
		return nil, err
	}
	reading, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(k.open, cancel)
	var out *etcdserverpb.RangeResponse
	var err error
	done := make(chan struct{})
	go func() { // close waits for its place in under
		defer func() { <-k.under }()
		defer close(done)
		defer cancel()
		defer stop()
		out, err = k.KVClient.Range(reading, in, opts...)
	}()
	select {
	case <-done:
		return k.answer(out, err)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-k.open.Done():
		return nil, kv.ErrClosed
	}
}

// begin waits until one more read may be under way.
func (k *ownKV) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if k.open.Err() != nil {
		return kv.ErrClosed
	}
	select {
	case k.under <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-k.open.Done():
		return kv.ErrClosed
	}
}

func (k *ownKV) answer(out *etcdserverpb.RangeResponse, err error) (*etcdserverpb.RangeResponse, error) {
	k.answers.Learn(out.GetHeader())
	return out, err
}

// Txn writes.
func (k *ownKV) Txn(ctx context.Context, in *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	out, err := k.KVClient.Txn(ctx, in, opts...)
	k.answers.Learn(out.GetHeader())
	return out, err
}

// learnAnswers takes note of what a server in this process answers to others, before
// they get the answers.
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
