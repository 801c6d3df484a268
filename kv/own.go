package kv

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// ownKV calls the server in this process.
//
// The server reads on the goroutine that asks, and waits there for locks that are held
// while the database is written, however long the disk takes. ownKV lets a caller go at
// its deadline; the read ends when it can. Writes end at their deadlines by themselves.
type ownKV struct {
	etcdserverpb.KVClient
	history *history
	reads   sync.WaitGroup
}

// Range reads.
func (k *ownKV) Range(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	if ctx.Done() == nil {
		return k.answer(k.KVClient.Range(ctx, in, opts...))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out *etcdserverpb.RangeResponse
	var err error
	done := make(chan struct{})
	k.reads.Go(func() {
		defer close(done)
		out, err = k.KVClient.Range(ctx, in, opts...)
	})
	select {
	case <-done:
		return k.answer(out, err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (k *ownKV) answer(out *etcdserverpb.RangeResponse, err error) (*etcdserverpb.RangeResponse, error) {
	k.history.learn(out.GetHeader())
	return out, err
}

// Txn writes.
func (k *ownKV) Txn(ctx context.Context, in *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	out, err := k.KVClient.Txn(ctx, in, opts...)
	k.history.learn(out.GetHeader())
	return out, err
}

// learnAnswers takes note of what a server in this process answers to others, before
// they get the answers.
func learnAnswers(h *history) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		out, err := handler(ctx, in)
		if answer, ok := out.(interface {
			GetHeader() *etcdserverpb.ResponseHeader
		}); ok && err == nil {
			h.learn(answer.GetHeader())
		}
		return out, err
	}
}

// learn takes in an answer of the server in this process, whose history is not replaced
// while it runs.
func (h *history) learn(header *etcdserverpb.ResponseHeader) {
	if header != nil {
		h.clusterID.CompareAndSwap(0, header.ClusterId)
		h.raise(h.generation.Load(), header)
	}
}
