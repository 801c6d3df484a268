package kv_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// misreportingProxy is a proxy of a member that reports progress before it delivers the events, as etcd may before
// 3.4.31 and 3.5.13.
type misreportingProxy struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedMaintenanceServer
	etcdserverpb.UnimplementedWatchServer

	member       *grpc.ClientConn
	url          string
	earlyReports atomic.Int64

	mu      sync.Mutex
	version string        // the version in responses; "" is the member's
	held    chan struct{} // closed while events are not held back
	broken  chan struct{} // closed to end the streams
}

func newMisreportingProxy(t *testing.T, member *kvtest.Member) *misreportingProxy {
	t.Helper()
	conn, err := grpc.NewClient(member.Config.Client[len("http://"):], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &misreportingProxy{member: conn, url: "http://" + listener.Addr().String(), held: make(chan struct{}), broken: make(chan struct{})}
	close(p.held)
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, p)
	etcdserverpb.RegisterMaintenanceServer(server, p)
	etcdserverpb.RegisterWatchServer(server, p)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
		conn.Close()
	})
	return p
}

func (p *misreportingProxy) claim(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = version
}

// hold holds events back until release is called.
func (p *misreportingProxy) hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make(chan struct{})
	p.held = held
	return sync.OnceFunc(func() { close(held) })
}

// breakStreams ends the open watches without an error message.
func (p *misreportingProxy) breakStreams() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.broken)
	p.broken = make(chan struct{})
}

func (p *misreportingProxy) state() (version string, held, broken chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.version, p.held, p.broken
}

func (p *misreportingProxy) Range(ctx context.Context, in *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return etcdserverpb.NewKVClient(p.member).Range(ctx, in)
}

func (p *misreportingProxy) Txn(ctx context.Context, in *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	return etcdserverpb.NewKVClient(p.member).Txn(ctx, in)
}

func (p *misreportingProxy) Status(ctx context.Context, in *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	out, err := etcdserverpb.NewMaintenanceClient(p.member).Status(ctx, in)
	if version, _, _ := p.state(); err == nil && version != "" {
		out.Version = version
	}
	return out, err
}

func (p *misreportingProxy) Watch(down etcdserverpb.Watch_WatchServer) error {
	_, _, broken := p.state()
	group, ctx := errgroup.WithContext(down.Context())
	up, err := etcdserverpb.NewWatchClient(p.member).Watch(ctx)
	if err != nil {
		return err
	}
	var sending sync.Mutex
	send := func(response *etcdserverpb.WatchResponse) error {
		sending.Lock()
		defer sending.Unlock()
		return down.Send(response)
	}
	requests := make(chan *etcdserverpb.WatchRequest)
	go func() { // ends with the stream, which ends with this handler
		defer close(requests)
		for {
			request, err := down.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- request:
			case <-ctx.Done():
				return
			}
		}
	}()
	group.Go(func() error {
		for {
			select {
			case request, ok := <-requests:
				if !ok {
					return context.Canceled
				}
				if err := p.pass(ctx, request, up, send); err != nil {
					return err
				}
			case <-broken:
				return context.Canceled
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	group.Go(func() error {
		for {
			response, err := up.Recv()
			if err != nil {
				return err
			}
			if _, held, _ := p.state(); len(response.Events) > 0 {
				select {
				case <-held:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if err := send(response); err != nil {
				return err
			}
		}
	})
	_ = group.Wait()
	return status.Error(codes.Unavailable, "broken")
}

// pass forwards a request. While events are held back, it responds to requests for progress itself.
func (p *misreportingProxy) pass(ctx context.Context, request *etcdserverpb.WatchRequest, up etcdserverpb.Watch_WatchClient, send func(*etcdserverpb.WatchResponse) error) error {
	_, held, _ := p.state()
	select {
	case <-held:
		return up.Send(request)
	default:
	}
	if request.GetProgressRequest() == nil {
		return up.Send(request)
	}
	now, err := p.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte("a"), CountOnly: true})
	if err != nil {
		return err
	}
	p.earlyReports.Add(1)
	return send(&etcdserverpb.WatchResponse{Header: now.Header, WatchId: -1})
}

// TestEarlyProgressIsNotTrusted follows members that report progress too early, from the beginning or after they
// replaced others. A revision must not count as fresh before its events have arrived, and no event may be lost when a
// watch is opened again.
func TestEarlyProgressIsNotTrusted(t *testing.T) {
	t.Parallel()
	for _, versions := range [][2]string{{"3.5.12", "3.5.12"}, {"3.4.30", "3.4.30"}, {"", "3.5.12"}, {"not a version", "not a version"}} {
		t.Run(fmt.Sprintf("%q then %q", versions[0], versions[1]), func(t *testing.T) {
			member := startCluster(t, 1, nil)[0]
			proxy := newMisreportingProxy(t, member)
			proxy.claim(versions[0])
			store := openExternal(t, kv.ExternalConfig{Endpoints: []string{proxy.url}})
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			defer cancel()
			_, sub := followPods(t, store)
			kvtest.Put(t, store, "/registry/pods/before", "1")
			next(t, sub)
			sub.Applied(1)
			proxy.claim(versions[1])
			proxy.breakStreams()

			release := proxy.hold()
			defer release()
			written := kvtest.Put(t, store, "/registry/pods/held", "1")
			var group errgroup.Group
			var released atomic.Bool
			fresh := make(chan struct{})
			group.Go(func() error {
				defer close(fresh)
				err := sub.Wait(ctx, written)
				if err == nil && !released.Load() {
					err = fmt.Errorf("fresh at %d before the event was delivered, after %d early reports", written, proxy.earlyReports.Load())
				}
				return err
			})
			proctest.Eventually(t, "progress is reported ahead", func() error {
				select {
				case <-fresh:
					return nil
				default:
				}
				if proxy.earlyReports.Load() < 3 {
					return fmt.Errorf("%d early reports", proxy.earlyReports.Load())
				}
				return nil
			})
			proxy.breakStreams()
			release()
			released.Store(true)
			keys, _ := next(t, sub)
			if len(keys) != 1 || keys[0] != fmt.Sprintf("%d:/registry/pods/held", written) {
				t.Errorf("after the early reports the events are %q, want the one held back", keys)
			}
			sub.Applied(1)
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
