package kv

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// eventful is a member that has an event at every revision up to the last.
type eventful struct{ last int64 }

// Watch opens a stream.
func (m *eventful) Watch(ctx context.Context, _ ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	return &eventfulStream{ctx: ctx, member: m, from: make(chan int64, 1)}, nil
}

// eventfulStream sends one event at a time, from the requested revision on.
type eventfulStream struct {
	grpc.ClientStream
	ctx    context.Context
	member *eventful
	from   chan int64
	next   int64
}

// Send takes the request for a watch.
func (s *eventfulStream) Send(request *etcdserverpb.WatchRequest) error {
	if create := request.GetCreateRequest(); create != nil {
		s.from <- create.StartRevision
	}
	return nil
}

// Recv returns the next response.
func (s *eventfulStream) Recv() (*etcdserverpb.WatchResponse, error) {
	header := &etcdserverpb.ResponseHeader{MemberId: 1, Revision: s.member.last}
	if s.next == 0 {
		s.next = <-s.from
		return &etcdserverpb.WatchResponse{Header: header, Created: true}, nil
	}
	if s.next > s.member.last {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	event := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "/registry/%d", s.next), ModRevision: s.next}}
	s.next++
	return &etcdserverpb.WatchResponse{Header: header, Events: []*mvccpb.Event{event}}, nil
}

// TestUnsoundWhileReaderIsBehind checks a member whose progress turns out to be unreliable while its stream is not
// read: the watch continues with another stream, and no event is lost or delivered twice.
func TestUnsoundWhileReaderIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEtcd(EtcdConfig{StoreConfig: StoreConfig{Prefix: "/registry"}, Name: "external"})
		told := make(chan struct{})
		member := &eventful{last: 2 * watchBuffer}
		e.connection = &Connection{Watch: member, members: &members{
			endpoints: func() []string { return []string{"a"} },
			logger:    e.logger,
			status: func(context.Context, string) (*clientv3.StatusResponse, error) {
				<-told
				return &clientv3.StatusResponse{Header: &etcdserverpb.ResponseHeader{MemberId: 1}, Version: "3.5.12"}, nil
			},
		}}
		close(e.ready)
		ctx, cancel := context.WithCancel(t.Context())
		responses := e.Watch(ctx, "/registry/", 0)
		synctest.Wait() // the buffer is full
		close(told)
		synctest.Wait()
		for want := int64(1); want <= member.last; want++ {
			response := <-responses
			if response.Err != nil || len(response.Batches) != 1 || response.Batches[0].Revision != want {
				t.Fatalf("%+v, want revision %d", response, want)
			}
		}
		cancel()
		for range responses { // it ends
		}
	})
}
