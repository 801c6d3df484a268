package kv

import (
	"bytes"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// cut splits data into frames as gRPC does.
func cut(data []byte, size int) mem.BufferSlice {
	var parts mem.BufferSlice
	for len(data) > 0 {
		n := min(size, len(data))
		parts = append(parts, mem.SliceBuffer(bytes.Clone(data[:n])))
		data = data[n:]
	}
	return parts
}

// TestBorrowedResponsesEqualOthers checks that responses decoded into reused memory equal those of gRPC's codec, also
// after a retry.
func TestBorrowedResponsesEqualOthers(t *testing.T) {
	var pool sync.Pool
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Int64Range(0, 1<<40)
		item := rapid.Custom(func(t *rapid.T) *mvccpb.KeyValue {
			return &mvccpb.KeyValue{
				Key: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "key"), Value: bytes.Repeat([]byte("v"), rapid.SampledFrom([]int{0, 1, 300, 200_000}).Draw(t, "size")),
				CreateRevision: number.Draw(t, "created"), ModRevision: number.Draw(t, "revised"), Version: number.Draw(t, "version"), Lease: number.Draw(t, "lease"),
			}
		})
		b := &borrowed{pool: &pool}
		for range rapid.IntRange(1, 2).Draw(t, "attempts") {
			want := &etcdserverpb.RangeResponse{
				Header: &etcdserverpb.ResponseHeader{ClusterId: 7, Revision: number.Draw(t, "revision")},
				Kvs:    rapid.SliceOfN(item, 0, 10).Draw(t, "items"), More: rapid.Bool().Draw(t, "more"), Count: number.Draw(t, "count"),
			}
			data, err := proto.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			data = append(data, 0x7a, 2, 'n', 'o', 0x81, 0x01, 1, 2, 3, 4, 5, 6, 7, 8) // fields of a later version
			got := &etcdserverpb.RangeResponse{Count: 17}
			if err := b.Unmarshal(cut(data, rapid.IntRange(1, 1<<14).Draw(t, "frame")), got); err != nil {
				t.Fatal(err)
			}
			if got.Count != want.Count || got.More != want.More || !proto.Equal(got.Header, want.Header) || len(b.items) != len(want.Kvs) {
				t.Fatalf("got %d of %d items, more %t, header %v; want %d of %d, %t, %v",
					len(b.items), got.Count, got.More, got.Header, len(want.Kvs), want.Count, want.More, want.Header)
			}
			for i, w := range want.Kvs {
				if got, want := b.items[i], itemOf(w); got.Key != want.Key || !bytes.Equal(got.Value, want.Value) || got.Revision != want.Revision || got.CreateRevision != want.CreateRevision || got.Lease != want.Lease {
					t.Fatalf("item %d is %+v, want %+v", i, got, want)
				}
			}
			if err := b.Unmarshal(cut(data[:len(data)-1], len(data)), got); err == nil {
				t.Fatal("a truncated message gives no error")
			}
		}
		b.release()
	})
}

// TestBorrowedCodecDecodesOtherMessages checks that the codec handles requests and all other messages, too.
func TestBorrowedCodecDecodesOtherMessages(t *testing.T) {
	b := &borrowed{pool: new(sync.Pool)}
	want := &etcdserverpb.RangeRequest{Key: []byte("key"), Limit: 17}
	data, err := b.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &etcdserverpb.RangeRequest{}
	if err := b.Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, want %v: %v", got, want, err)
	}
	if b.Name() != encoding.GetCodecV2(grpcproto.Name).Name() {
		t.Errorf("the codec is called %q, want the name of gRPC's codec", b.Name())
	}
}
