package kv

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/larder-io/larder/internal/proctest"
)

// failing is a member whose transactions all fail.
type failing struct {
	etcdserverpb.UnimplementedKVServer
	err error
}

// Txn fails.
func (f *failing) Txn(context.Context, *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	return nil, f.err
}

// countingClient stands in for etcd's client, and counts the calls.
type countingClient struct {
	etcdserverpb.KVClient
	calls int
}

// Txn counts.
func (i *countingClient) Txn(context.Context, *etcdserverpb.TxnRequest, ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	i.calls++
	return new(etcdserverpb.TxnResponse), nil
}

// TestFailedWritesAreRetriedOnlyIfRefused checks that a failed write is repeated, by etcd's client, only if the member
// refused it before processing it. A member that cannot write gets no further writes.
func TestFailedWritesAreRetriedOnlyIfRefused(t *testing.T) {
	for _, c := range []struct {
		err              error
		retried, retired bool
	}{
		{rpctypes.ErrGRPCLeaseNotFound, false, false},
		{rpctypes.ErrGRPCNoSpace, false, false},
		{rpctypes.ErrGRPCPermissionDenied, false, false},
		{status.Error(codes.Canceled, "canceled by the member"), false, false},
		{status.Error(codes.DeadlineExceeded, "too late for the member"), false, false},
		{rpctypes.ErrGRPCTimeout, false, true},
		{rpctypes.ErrGRPCLeaderChanged, false, true},
		{rpctypes.ErrGRPCNoLeader, false, true},
		{rpctypes.ErrGRPCStopped, false, true},
		{status.Error(codes.Unavailable, "there is no connection available"), false, true},
		{rpctypes.ErrGRPCUserEmpty, true, true},
		{rpctypes.ErrGRPCInvalidAuthToken, true, true},
		{rpctypes.ErrGRPCAuthOldRevision, true, true},
		{rpctypes.ErrGRPCNotSupportedForLearner, true, true},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer()
			etcdserverpb.RegisterKVServer(server, &failing{err: c.err})
			served := make(chan error)
			go func() { served <- server.Serve(listener) }()
			defer func() { server.Stop(); <-served }()

			w := newUnaryClient([]string{"http://" + listener.Addr().String()}, nil, false, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			ran := make(chan error)
			go func() { ran <- w.run(ctx) }()
			defer func() { cancel(); <-ran; w.close() }()
			proctest.Eventually(t, "there is a connection", func() error {
				if w.conn.Load() == nil {
					return errors.New("none yet")
				}
				return nil
			})
			conn, client := w.conn.Load(), &countingClient{}
			_, err = clusterKV{client, w}.Txn(t.Context(), new(etcdserverpb.TxnRequest))
			if (client.calls > 0) != c.retried || (err == nil) != c.retried || !c.retried && (status.Code(err) != status.Code(c.err) || rpctypes.ErrorDesc(err) != rpctypes.ErrorDesc(c.err)) {
				t.Errorf("%d calls of etcd's client, error %v; want a retry: %t", client.calls, err, c.retried)
			}
			retired := false
			select {
			case <-conn.Ended():
				retired = true
			default:
			}
			if retired != c.retired {
				t.Errorf("the connection was retired: %t, want %t", retired, c.retired)
			}
		})
	}
}

// TestUnaryClientNeedsPlainEndpoints checks that etcd's client is used for a member whose endpoint is not an IP address
// and port over plain TCP or TLS.
func TestUnaryClientNeedsPlainEndpoints(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"http://127.0.0.1:2379": true, "http://[::1]:2379": true, "https://127.0.0.1:2379": false, "http://127.0.0.1": false,
		"127.0.0.1:2379": false, "unix:///run/etcd": false, "member:2379": false, "": false,
	} {
		if got := newUnaryClient([]string{"http://member:2379", endpoint}, nil, true, nil) != nil; got != want {
			t.Errorf("%q: got a client: %v, want %v", endpoint, got, want)
		}
	}
}
