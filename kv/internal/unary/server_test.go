package unary

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/internal/proctest"
)

// server responds to puts with serve, or with echo if that is nil.
type server struct {
	etcdserverpb.UnimplementedKVServer
	puts  atomic.Int64
	serve func(ctx context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error)
}

// Put implements etcdserverpb.KVServer.
func (s *server) Put(ctx context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
	s.puts.Add(1)
	if s.serve != nil {
		return s.serve(ctx, in)
	}
	return echo(in), nil
}

func echo(in *etcdserverpb.PutRequest) *etcdserverpb.PutResponse {
	return &etcdserverpb.PutResponse{
		Header: &etcdserverpb.ResponseHeader{Revision: in.Lease, ClusterId: uint64(len(in.Value))},
	}
}

// start serves until the test ends.
func start(t testing.TB, s etcdserverpb.KVServer, opts ...grpc.ServerOption) (address string, server *grpc.Server) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append([]grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 20)}, opts...)...)
	etcdserverpb.RegisterKVServer(g, s)
	done := make(chan error)
	go func() { done <- g.Serve(listener) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return listener.Addr().String(), g
}

// never is a tick longer than any test, so that a slow machine does not count as a slow server.
const never = 24 * time.Hour

// open returns a connection for calls until the test ends.
func open(t testing.TB, conn net.Conn, tick time.Duration, err error) *Conn {
	t.Helper()
	return openAs(t, (*Conn).Run, conn, tick, err)
}

// openAs is like open, with run instead of Run.
func openAs(t testing.TB, run func(*Conn, context.Context) error, conn net.Conn, tick time.Duration, err error) *Conn {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), conn, "http", "server:1", "test")
	if err != nil {
		t.Fatal(err)
	}
	c.tick = tick
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if run(c, ctx) == nil {
			t.Error("Run returns no error")
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func dial(t testing.TB, address string) *Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	return open(t, conn, never, err)
}

func put(ctx context.Context, c *Conn, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
	out := new(etcdserverpb.PutResponse)
	err := c.Invoke(ctx, etcdserverpb.KV_Put_FullMethodName, in, out)
	return out, err
}

// TestConcurrentCallsGetTheirResponses makes calls of many sizes concurrently. Each must get its own response and be made
// once, or fail with ErrUnsent and not be made.
func TestConcurrentCallsGetTheirResponses(t *testing.T) {
	s := &server{}
	address, _ := start(t, s)
	c := dial(t, address)
	var succeeded, unsent atomic.Int64
	var callers sync.WaitGroup
	const each = 300
	for caller := range 16 {
		callers.Go(func() {
			for i := range each {
				size := []int{0, 10, 1000, 16 << 10, 20 << 10}[(caller+i)%5]
				in := &etcdserverpb.PutRequest{Key: []byte("k"), Value: make([]byte, size), Lease: int64(caller*each + i)}
				switch out, err := put(t.Context(), c, in); {
				case errors.Is(err, ErrUnsent):
					unsent.Add(1)
				case err != nil:
					t.Errorf("call %d: %v", in.Lease, err)
				case !proto.Equal(out, echo(in)):
					t.Errorf("call %d: got %v, want %v", in.Lease, out, echo(in))
				default:
					succeeded.Add(1)
				}
			}
		})
	}
	callers.Wait()
	t.Logf("%d calls succeeded, %d were not sent", succeeded.Load(), unsent.Load())
	if succeeded.Load() < each || s.puts.Load() != succeeded.Load() {
		t.Errorf("%d calls were made, %d succeeded, %d were not sent", s.puts.Load(), succeeded.Load(), unsent.Load())
	}
}

// TestLargeResponsesAreRead checks responses that are larger than the flow-control windows.
func TestLargeResponsesAreRead(t *testing.T) {
	address, _ := start(t, &ranger{})
	c := dial(t, address)
	for _, size := range []int64{1, 70_000, streamWindow + 1, connectionWindow + 1, 3 * streamWindow, connectionWindow} {
		out := new(etcdserverpb.RangeResponse)
		if err := c.Invoke(t.Context(), etcdserverpb.KV_Range_FullMethodName, &etcdserverpb.RangeRequest{Limit: size}, out); err != nil || int64(len(out.Kvs[0].Value)) != size {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
}

// TestRequestsAboveTheLimitAreNotSent checks the size limit of etcd's client, with a server that accepts more.
func TestRequestsAboveTheLimitAreNotSent(t *testing.T) {
	address, _ := start(t, &server{}, grpc.InitialWindowSize(4*maxRequest), grpc.InitialConnWindowSize(4*maxRequest))
	c := dial(t, address)
	request := func(size int) *etcdserverpb.PutRequest {
		in := &etcdserverpb.PutRequest{Value: make([]byte, size)}
		for proto.Size(in) > size {
			in.Value = in.Value[1:]
		}
		return in
	}
	proctest.Eventually(t, "the server's window is known", func() error {
		_, err := put(t.Context(), c, request(maxRequest))
		return err
	})
	for size, want := range map[int]error{maxRequest: nil, maxRequest + 1: ErrUnsent} {
		if _, err := put(t.Context(), c, request(size)); !errors.Is(err, want) {
			t.Errorf("%d bytes: got error %v, want %v", size, err, want)
		}
	}
}

func TestErrorsEqualThoseOfGRPCsClient(t *testing.T) {
	s := &server{serve: func(ctx context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
		if err := grpc.SetTrailer(ctx, metadata.Pairs("other", "trailer")); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.Code(in.Lease), string(in.Key))
	}}
	address, _ := start(t, s)
	c := dial(t, address)
	usual, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer usual.Close()
	compare := func(method string, in proto.Message) error {
		want := usual.Invoke(t.Context(), method, in, new(etcdserverpb.PutResponse))
		got := c.Invoke(t.Context(), method, in, new(etcdserverpb.PutResponse))
		if status.Code(got) != status.Code(want) || status.Convert(got).Message() != status.Convert(want).Message() {
			return fmt.Errorf("got %v (%w), want %w", status.Code(got), got, want)
		}
		return nil
	}
	rapid.Check(t, func(t *rapid.T) {
		in := &etcdserverpb.PutRequest{Lease: rapid.Int64Range(1, 20).Draw(t, "code"), Key: []byte(rapid.String().Draw(t, "message"))}
		if err := compare(etcdserverpb.KV_Put_FullMethodName, in); err != nil {
			t.Error(err)
		}
	})
	for _, message := range []string{"", "etcdserver: requested lease not found", "100 %", "%41", "é\n"} {
		if err := compare(etcdserverpb.KV_Put_FullMethodName, &etcdserverpb.PutRequest{Lease: 5, Key: []byte(message)}); err != nil {
			t.Error(err)
		}
	}
	if err := compare("/etcdserverpb.KV/Nothing", &etcdserverpb.PutRequest{}); err != nil {
		t.Error(err)
	}
}

// ending is a context that ends with err when its parent is canceled.
type ending struct {
	context.Context
	err error
}

// Err implements context.Context.
func (e ending) Err() error {
	if e.Context.Err() == nil {
		return nil
	}
	return e.err
}

// TestCallsEndWithTheirContext checks that when the context of a call ends, the caller gets the context's error, the
// server's context ends, too, and the connection stays usable.
func TestCallsEndWithTheirContext(t *testing.T) {
	ended, begun := make(chan struct{}), make(chan struct{}, 1)
	s := &server{}
	s.serve = func(ctx context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
		if in.Lease == 1 {
			return echo(in), nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, ctx.Err()
	}
	address, _ := start(t, s)
	c := dial(t, address)
	for want, err := range map[codes.Code]error{codes.Canceled: context.Canceled, codes.DeadlineExceeded: context.DeadlineExceeded} {
		below, cancel := context.WithCancel(t.Context())
		ctx := ending{below, err}
		go func() { <-begun; begun <- struct{}{}; cancel() }()
		if _, err := put(ctx, c, &etcdserverpb.PutRequest{}); status.Code(err) != want {
			t.Errorf("got %v, want %v", err, want)
		}
		cancel()
		<-begun
		<-ended
		if _, err := put(ctx, c, &etcdserverpb.PutRequest{Lease: 1}); status.Code(err) != want {
			t.Errorf("a call with an ended context: got %v, want %v", err, want)
		}
		if out, err := put(t.Context(), c, &etcdserverpb.PutRequest{Lease: 1}); err != nil || out.Header.Revision != 1 {
			t.Errorf("the next call: got %v and error %v, want revision 1", out, err)
		}
	}
	if made := s.puts.Load(); made != 4 {
		t.Errorf("%d calls were made, want 4", made)
	}
}

// TestCallsInProgressSucceedAfterGoAway checks that a server that sends GOAWAY finishes the calls in progress, and that
// later calls fail with ErrUnsent.
func TestCallsInProgressSucceedAfterGoAway(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	s := &server{}
	s.serve = func(_ context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
		if in.Lease == 2 {
			begun <- struct{}{}
			<-finish
		}
		return echo(in), nil
	}
	address, g := start(t, s)
	c := dial(t, address)
	result := make(chan error)
	go func() {
		out, err := put(t.Context(), c, &etcdserverpb.PutRequest{Lease: 2})
		if err == nil && out.Header.Revision != 2 {
			err = fmt.Errorf("%v", out)
		}
		result <- err
	}()
	<-begun
	stopped := make(chan struct{})
	go func() { g.GracefulStop(); close(stopped) }()
	<-c.Ended()
	if _, err := put(t.Context(), c, &etcdserverpb.PutRequest{Lease: 3}); !errors.Is(err, ErrUnsent) {
		t.Errorf("a call after GOAWAY: got error %v, want ErrUnsent", err)
	}
	close(finish)
	if err := <-result; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	<-stopped
	if made := s.puts.Load(); made != 1 {
		t.Errorf("%d calls were made, want 1", made)
	}
}

// TestCallsFailWhenTheServerStops checks that calls in progress fail with Unavailable, because they may have been made.
func TestCallsFailWhenTheServerStops(t *testing.T) {
	begun := make(chan struct{})
	s := &server{}
	s.serve = func(ctx context.Context, _ *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	address, g := start(t, s)
	c := dial(t, address)
	const callers = 5
	results := make(chan error)
	for range callers {
		go func() {
			_, err := put(t.Context(), c, &etcdserverpb.PutRequest{})
			results <- err
		}()
	}
	for range callers {
		<-begun
	}
	g.Stop()
	for range callers {
		if err := <-results; status.Code(err) != codes.Unavailable || !strings.HasPrefix(status.Convert(err).Message(), "error reading from server: ") {
			t.Errorf("got error %v, want Unavailable", err)
		}
	}
	<-c.Ended()
}

// TestCallsAboveTheStreamLimitAreNotSent checks that no more calls are in progress than the server allows.
func TestCallsAboveTheStreamLimitAreNotSent(t *testing.T) {
	const limit = 3
	release := make(chan struct{})
	s := &server{serve: func(_ context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
		<-release
		return echo(in), nil
	}}
	address, _ := start(t, s, grpc.MaxConcurrentStreams(limit))
	c := dial(t, address)
	results := make(chan error)
	for range limit + 1 {
		go func() {
			_, err := put(t.Context(), c, &etcdserverpb.PutRequest{})
			results <- err
		}()
	}
	if err := <-results; !errors.Is(err, ErrUnsent) {
		t.Errorf("got error %v, want ErrUnsent", err)
	}
	close(release)
	for range limit {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// TestSlowServersGetNoMoreCalls checks that a slow server gets no further calls, and that calls in progress can succeed.
func TestSlowServersGetNoMoreCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		result := p.put()
		p.request()
		begin := time.Now()
		<-p.c.Ended()
		if waited := time.Since(begin); waited < Tick || waited > 2*Tick {
			t.Errorf("the connection ended after %v, want %v to %v", waited, Tick, 2*Tick)
		}
		if _, err := put(t.Context(), p.c, &etcdserverpb.PutRequest{}); !errors.Is(err, ErrUnsent) {
			t.Errorf("got error %v, want ErrUnsent", err)
		}
		p.respond(1)
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

// TestSilentServersGetAPing checks that a silent server receives a ping, and that the connection ends without a response.
func TestSilentServersGetAPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		result := p.put()
		p.request()
		begin := time.Now()
		if frame := p.frame(); !strings.Contains(frame, "PING") {
			t.Errorf("the server received %s, want PING", frame)
		}
		if err := <-result; status.Code(err) != codes.Unavailable {
			t.Errorf("got error %v, want Unavailable", err)
		}
		if waited := time.Since(begin); waited < silentAfter*Tick || waited > (silentAfter+2)*Tick {
			t.Errorf("the call failed after %v, want %v to %v", waited, silentAfter*Tick, (silentAfter+2)*Tick)
		}
	})
}

// TestCallsLastWhilePingsAreAcknowledged checks that a call does not fail while the server acknowledges pings.
func TestCallsLastWhilePingsAreAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		result := p.put()
		p.request()
		for range 3 {
			if frame := p.frame(); !strings.Contains(frame, "PING") {
				t.Errorf("the server received %s, want PING", frame)
			}
			p.sent(p.framer.WritePing(true, [8]byte{}))
		}
		p.respond(1)
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

// TestServersThatDoNotReadBlockNoCaller checks that a call ends although its request cannot be written.
func TestServersThatDoNotReadBlockNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.acknowledged() // so that the caller writes
		ctx, cancel := context.WithTimeout(t.Context(), Tick/2)
		defer cancel()
		begin := time.Now()
		_, err := put(ctx, p.c, &etcdserverpb.PutRequest{}) // a pipe has no buffer
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Errorf("got error %v, want Unavailable or DeadlineExceeded", err)
		}
		if waited := time.Since(begin); waited < stuckAfter*Tick || waited > (stuckAfter+2)*Tick {
			t.Errorf("the call failed after %v, want %v to %v", waited, stuckAfter*Tick, (stuckAfter+2)*Tick)
		}
	})
}
