package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// fakeCluster has an event at every revision up to the last. Its first streams reach a member that hangs. It may report
// progress to the last revision before it confirms a watch, or before it sends an event.
type fakeCluster struct {
	last    int64
	hanging int
	early   bool
	ahead   int64 // the revision of that event, 0 for none
	breaks  int64 // the revision of the event after which a stream breaks, 0 for none
	repeats bool  // sends each event twice
}

// Watch opens a stream.
func (e *fakeCluster) Watch(ctx context.Context, _ ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	host, hangs := byte(2), e.hanging > 0
	if hangs {
		host, e.hanging = 1, e.hanging-1
	}
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: 2379}})
	return &fakeStream{ctx: ctx, member: e, hangs: hangs, from: make(chan int64, 1)}, nil
}

// fakeStream sends one event at a time, from the requested revision on.
type fakeStream struct {
	grpc.ClientStream
	ctx    context.Context
	member *fakeCluster
	hangs  bool
	from   chan int64
	next   int64

	reported bool // the early progress
	repeated bool // the last event
}

// Context returns a context that has the address of the member.
func (s *fakeStream) Context() context.Context { return s.ctx }

// Send takes the request for a watch.
func (s *fakeStream) Send(request *etcdserverpb.WatchRequest) error {
	if create := request.GetCreateRequest(); create != nil {
		s.from <- create.StartRevision
	}
	return nil
}

// Recv returns the next response.
func (s *fakeStream) Recv() (*etcdserverpb.WatchResponse, error) {
	header := &etcdserverpb.ResponseHeader{MemberId: 1, Revision: s.member.last}
	if s.member.early && !s.reported {
		s.reported = true
		return &etcdserverpb.WatchResponse{Header: header, WatchId: clientv3.InvalidWatchID}, nil
	}
	if s.next == 0 && !s.hangs {
		s.next = <-s.from
		return &etcdserverpb.WatchResponse{Header: header, Created: true}, nil
	}
	if s.hangs || s.next > s.member.last {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	if s.next == s.member.ahead && !s.reported {
		s.reported = true
		return &etcdserverpb.WatchResponse{Header: header}, nil
	}
	if s.member.breaks > 0 && s.next > s.member.breaks {
		s.member.breaks = 0
		return nil, status.Error(codes.Unavailable, "broken")
	}
	event := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "/registry/%d", s.next), ModRevision: s.next}}
	if s.repeated = s.member.repeats && !s.repeated; !s.repeated {
		s.next++
	}
	return &etcdserverpb.WatchResponse{Header: header, Events: []*mvccpb.Event{event}}, nil
}

// openFake returns an open store of a fakeCluster. It logs to log.
func openFake(member *fakeCluster, log io.Writer) *Etcd {
	e := NewEtcd(EtcdConfig{StoreConfig: StoreConfig{Prefix: "/registry", Logger: slog.New(slog.NewTextHandler(log, nil))}, Name: "external"})
	e.connection = &Connection{Watch: member}
	close(e.ready)
	return e
}

// TestUnconfirmedWatchUsesAnotherMember checks that a watch leaves a member that does not confirm it, at first soon, and
// skips the member a few times. The log names the member.
func TestUnconfirmedWatchUsesAnotherMember(t *testing.T) {
	for hanging, want := range map[int]struct {
		took  time.Duration
		times int
	}{1: {confirmFirst, 1}, 1 + maxSkips: {confirmFirst, 1}, 2 + maxSkips: {3 * confirmFirst, 2}} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			e := openFake(&fakeCluster{last: 1, hanging: hanging}, &log)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			responses := e.Watch(ctx, "/registry/", 0)
			if response, ok := <-responses; !ok || response.Progress != 1 {
				t.Errorf("got %+v, %v; want progress to 1", response, ok)
			}
			if took := time.Since(began); took != want.took {
				t.Errorf("%d streams hang: the first response took %v, want %v", hanging, took, want.took)
			}
			time.Sleep(10 * confirmFirst) // a confirmed watch is not logged
			if n := strings.Count(log.String(), "etcd at 192.0.2.1:2379: watch not confirmed"); n != want.times {
				t.Errorf("%d streams hang: the log names the member %d times, want %d:\n%s", hanging, n, want.times, &log)
			}
			cancel()
			for range responses { // it ends
			}
		})
	}
}

// TestStalledWatchNamesTheMember checks that the last response of a watch that a Tail gives up names the member.
func TestStalledWatchNamesTheMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		responses := openFake(&fakeCluster{last: 1}, io.Discard).Watch(ctx, "/registry/", 0)
		<-responses
		synctest.Wait()
		cancel(errStalled)
		response := <-responses
		if err := response.Err; !errors.Is(err, errStalled) || !strings.Contains(err.Error(), "192.0.2.2:2379") {
			t.Errorf("got %+v, want errStalled with the address of the member", response)
		}
	})
}

// TestWatchDeliversEachEventOnce checks that no event is lost if etcd reports progress before it confirms the watch of a
// stream, and sends the events after the confirmation. An event that etcd repeats is delivered once.
func TestWatchDeliversEachEventOnce(t *testing.T) {
	for _, cluster := range []fakeCluster{{last: 3, early: true, breaks: 1}, {last: 3, repeats: true}} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			responses := openFake(&cluster, io.Discard).Watch(ctx, "/registry/", 0)
			for want := int64(1); want <= 3; want++ {
				response := <-responses
				if len(response.Batches) != 1 || response.Batches[0].Revision != want || response.Progress != want {
					t.Fatalf("got %+v, want one batch of revision %d", response, want)
				}
			}
			cancel()
			for range responses { // it ends
			}
		})
	}
}

// TestMisreportedProgressEndsTheWatch checks that a reader learns that it has missed events if etcd sends them after
// progress to a later revision.
func TestMisreportedProgressEndsTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		responses := openFake(&fakeCluster{last: 3, ahead: 2}, io.Discard).Watch(t.Context(), "/registry/", 0)
		for _, want := range []int64{1, 3} {
			if response := <-responses; response.Progress != want {
				t.Fatalf("got %+v, want progress to %d", response, want)
			}
		}
		if response := <-responses; !errors.Is(response.Err, ErrCompacted) {
			t.Errorf("got %+v, want ErrCompacted", response)
		}
	})
}

// TestUnreliableProgressWhileTheReaderIsBehind checks a member whose progress turns out to be unreliable while its
// stream is not read. The watch continues with another stream, and no event is lost or delivered twice.
func TestUnreliableProgressWhileTheReaderIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEtcd(EtcdConfig{StoreConfig: StoreConfig{Prefix: "/registry"}, Name: "external"})
		respond := make(chan struct{})
		member := &fakeCluster{last: 2 * watchBuffer}
		e.connection = &Connection{Watch: member, members: &members{
			endpoints: func() []string { return []string{"a"} },
			logger:    e.logger,
			status: func(context.Context, string) (*clientv3.StatusResponse, error) {
				<-respond
				return &clientv3.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: 1}, Version: "3.5.12"}, nil
			},
		}}
		close(e.ready)
		ctx, cancel := context.WithCancel(t.Context())
		responses := e.Watch(ctx, "/registry/", 0)
		synctest.Wait() // the buffer is full
		close(respond)
		synctest.Wait()
		for want := int64(1); want <= member.last; want++ {
			response := <-responses
			if response.Err != nil || len(response.Batches) != 1 || response.Batches[0].Revision != want {
				t.Fatalf("got %+v, want one batch of revision %d", response, want)
			}
		}
		cancel()
		for range responses { // it ends
		}
	})
}

// TestMemberWithoutAnAddressHasNoName checks a stream whose connection has no address, as through a proxy.
func TestMemberWithoutAnAddressHasNoName(t *testing.T) {
	ctx := peer.NewContext(t.Context(), &peer.Peer{})
	if got := memberOf(&fakeStream{ctx: ctx}); got != "" {
		t.Errorf("got member %q, want none", got)
	}
}
