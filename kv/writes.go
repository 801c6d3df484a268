package kv

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/larder-io/larder/kv/internal/unary"
)

// writes sends transactions to a cluster over an HTTP/2 connection of its own, at half of what
// etcd's client takes for them (E13). Run connects, and connects again, to one member after the
// other.
//
// What it cannot send is left to etcd's client: transactions that are larger than the member
// takes at once, and all while there is no connection to a member that answers within a second
// or two. One that was sent, even in part, is sent nowhere else: its error is returned. Only
// where the member refused it unseen, or before it looked at anything but who asks, as etcd's
// client knows to try again, is it left to that client.
type writes struct {
	*dialer
	logger  *slog.Logger
	answers atomic.Uint64
	conn    atomic.Pointer[unary.Conn] // nil while there is none

	conns  sync.WaitGroup
	ctx    context.Context // of connections
	cancel context.CancelFunc
}

// newWrites returns nil without a dialer.
func newWrites(dialer *dialer, logger *slog.Logger) *writes {
	if dialer == nil {
		return nil
	}
	w := &writes{dialer: dialer, logger: logger}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// close ends what is under way. No more is sent, and run has ended or never began.
func (w *writes) close() {
	if w != nil {
		w.cancel()
		w.conns.Wait()
	}
}

// run connects whenever there is no connection, until ctx ends. The connection then lives on
// until close.
func (w *writes) run(ctx context.Context) error {
	delay, answers := retryFirst, uint64(0)
	for turn := rand.IntN(len(w.members)); ; turn++ {
		conn, err := w.connect(ctx, w.members[turn%len(w.members)])
		if err != nil {
			w.logger.Debug("no connection to etcd for writes", "error", err)
		} else {
			w.conns.Go(func() {
				if err := conn.Run(w.ctx); w.ctx.Err() == nil {
					w.logger.Debug("connection to etcd for writes ended", "error", err)
				}
			})
			w.conn.Store(conn)
			select {
			case <-conn.Ended():
			case <-ctx.Done():
				return ctx.Err()
			}
			w.conn.Store(nil)
		}
		if now := w.answers.Load(); now > answers {
			delay, answers = retryFirst, now
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
		delay = min(2*delay, retryMax)
	}
}

func (w *writes) connect(ctx context.Context, member *url.URL) (*unary.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	conn, err := w.dial(ctx, member)
	if err != nil {
		return nil, err
	}
	return unary.Open(ctx, conn, member.Scheme, member.Host, "grpc-go/"+grpc.Version,
		hpack.HeaderField{Name: rpctypes.MetadataClientAPIVersionKey, Value: version.APIVersion})
}

// refused reports whether a member did not look at a transaction, so that etcd's client sends it
// again, with another token or to another member (etcd client/v3/retry_interceptor.go).
func refused(err error) bool {
	if errors.Is(err, rpctypes.ErrGRPCNotSupportedForLearner) {
		return true
	}
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// txn sends a transaction; unary.ErrUnsent says that it has had no effect and is left to etcd's
// client.
func (w *writes) txn(ctx context.Context, in *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	conn := w.conn.Load()
	if conn == nil {
		return nil, unary.ErrUnsent
	}
	out := new(etcdserverpb.TxnResponse)
	err := conn.Invoke(ctx, etcdserverpb.KV_Txn_FullMethodName, in, out)
	if err == nil {
		w.answers.Add(1)
		return out, nil
	}
	if refused(err) {
		conn.Retire()
		return nil, unary.ErrUnsent
	}
	if status.Code(err) == codes.Unavailable { // it lacks a leader, for example: another member may have one
		conn.Retire()
	}
	return nil, err
}

// writer sends transactions by writes where it can.
type writer struct {
	etcdserverpb.KVClient
	writes *writes
}

// Txn writes.
func (w writer) Txn(ctx context.Context, in *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	out, err := w.writes.txn(ctx, in)
	if errors.Is(err, unary.ErrUnsent) {
		return w.KVClient.Txn(ctx, in, opts...)
	}
	return out, err
}
