package kv

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/larder-io/larder/kv/internal/unary"
)

// connectTimeout bounds one attempt to connect to a member.
const connectTimeout = time.Second

// unaryClient calls a cluster over its own HTTP/2 connection, at about half the cost of etcd's client (E8, E13). It
// connects to one member after the other.
//
// etcd's client makes the other calls: transactions that are larger than the member's windows, and all calls while no
// member responds within a second or two.
type unaryClient struct {
	members []*url.URL
	tls     *tls.Config // nil: not encrypted
	// inline says that there is at most one call at a time, and that its caller reads the response.
	inline    bool
	logger    *slog.Logger
	responses atomic.Uint64
	conn      atomic.Pointer[unary.Conn] // nil while there is none

	conns  sync.WaitGroup
	ctx    context.Context // of connections
	cancel context.CancelFunc
}

// newUnaryClient returns nil if it does not support the URL of a member, for example of a unix socket.
func newUnaryClient(endpoints []string, config *tls.Config, inline bool, logger *slog.Logger) *unaryClient {
	u := &unaryClient{tls: config, inline: inline, logger: logger}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	scheme := "http"
	if config != nil {
		scheme = "https"
	}
	for _, endpoint := range endpoints {
		member, err := url.Parse(endpoint)
		if err != nil || member.Scheme != scheme || member.Port() == "" {
			return nil
		}
		u.members = append(u.members, member)
	}
	return u
}

// close ends the running calls. The caller makes no new ones, and run has ended or never started.
func (u *unaryClient) close() {
	if u != nil {
		u.cancel()
		u.conns.Wait()
	}
}

// run connects whenever there is no connection, until ctx ends. The connection then stays open
// until close.
func (u *unaryClient) run(ctx context.Context) error {
	delay, responses := retryFirst, uint64(0)
	for turn := rand.IntN(len(u.members)); ; turn++ {
		conn, err := u.connect(ctx, u.members[turn%len(u.members)])
		if err != nil {
			u.logger.Debug("no connection to etcd for unary calls", "error", err)
		} else {
			u.conns.Go(func() { u.runConn(conn) })
			u.conn.Store(conn)
			select {
			case <-conn.Ended():
			case <-ctx.Done():
				return ctx.Err()
			}
			u.conn.Store(nil)
		}
		if now := u.responses.Load(); now > responses {
			delay, responses = retryFirst, now
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
		delay = min(2*delay, retryMax)
	}
}

// runConn runs a connection until it ends, or until close.
func (u *unaryClient) runConn(conn *unary.Conn) {
	run := conn.Run
	if u.inline {
		run = conn.RunInline
	}
	if err := run(u.ctx); u.ctx.Err() == nil {
		u.logger.Debug("connection to etcd for unary calls ended", "error", err)
	}
}

func (u *unaryClient) connect(ctx context.Context, member *url.URL) (*unary.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", member.Host)
	if err != nil {
		return nil, err
	}
	if u.tls != nil {
		config := u.tls.Clone()
		config.NextProtos = []string{"h2"}
		if config.ServerName == "" {
			config.ServerName = member.Hostname()
		}
		encrypted := tls.Client(conn, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = encrypted
	}
	return unary.Open(ctx, conn, member.Scheme, member.Host, "grpc-go/"+grpc.Version,
		hpack.HeaderField{Name: rpctypes.MetadataClientAPIVersionKey, Value: version.APIVersion})
}

// header sends a linearizable read and returns the header of the response. If that fails, it retires the connection and
// returns nil. The caller then uses etcd's client, which waits, tries other members and returns an error that explains
// the failure.
func (u *unaryClient) header(ctx context.Context, in *etcdserverpb.RangeRequest) *etcdserverpb.ResponseHeader {
	if u == nil {
		return nil
	}
	conn := u.conn.Load()
	if conn == nil {
		return nil
	}
	out := new(etcdserverpb.RangeResponse)
	err := conn.InvokeInline(ctx, etcdserverpb.KV_Range_FullMethodName, in, out)
	if err != nil {
		u.logger.Debug("cannot read the revision over the connection for unary calls", "error", err)
		conn.Retire()
		return nil
	}
	u.responses.Add(1)
	return out.Header
}

// refused reports whether a member rejected a transaction before processing it: etcd's client sends such a
// transaction again, with another token or to another member (etcd client/v3/retry_interceptor.go).
func refused(err error) bool {
	if errors.Is(err, rpctypes.ErrGRPCNotSupportedForLearner) {
		return true
	}
	err = rpctypes.Error(err)
	return errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision)
}

// txn sends a transaction. unary.ErrUnsent says that the transaction had no effect, so etcd's client may send it. After
// any other error it must not be sent again.
func (u *unaryClient) txn(ctx context.Context, in *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	conn := u.conn.Load()
	if conn == nil {
		return nil, unary.ErrUnsent
	}
	out := new(etcdserverpb.TxnResponse)
	err := conn.Invoke(ctx, etcdserverpb.KV_Txn_FullMethodName, in, out)
	if err == nil {
		u.responses.Add(1)
		return out, nil
	}
	if refused(err) {
		conn.Retire()
		return nil, unary.ErrUnsent
	}
	if status.Code(err) == codes.Unavailable { // it may lack a leader, which another member has
		conn.Retire()
	}
	return nil, err
}

// clusterKV is etcd's client of a cluster, except that writes sends transactions if it can, and that the *borrowed in
// the context of a range decodes its response.
type clusterKV struct {
	etcdserverpb.KVClient
	writes *unaryClient // may be nil
}

// Txn sends a transaction, by writes if possible.
func (c clusterKV) Txn(ctx context.Context, in *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	if c.writes != nil {
		if out, err := c.writes.txn(ctx, in); !errors.Is(err, unary.ErrUnsent) {
			return out, err
		}
	}
	return c.KVClient.Txn(ctx, in, opts...)
}

// Range sends a range request.
func (c clusterKV) Range(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	if own, ok := ctx.Value(borrowedKey{}).(*borrowed); ok {
		opts = append(opts[:len(opts):len(opts)], grpc.ForceCodecV2(own))
	}
	return c.KVClient.Range(ctx, in, opts...)
}
