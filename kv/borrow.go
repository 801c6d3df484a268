package kv

import (
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/larder-io/larder/internal/invariants"
)

// borrowed decodes the response to one range request into reusable memory. It is the codec of the call.
// gRPC's own codec copies the response as a whole, and then each value, into new memory, which must be zeroed
// first (E14).
type borrowed struct {
	pool   *sync.Pool // of *[]byte
	buffer *[]byte    // holds the values of items; nil if there is none
	items  []Item
}

// borrowedKey is the key of a *borrowed in a context.
type borrowedKey struct{}

var _ encoding.CodecV2 = (*borrowed)(nil)

// Name returns the name of gRPC's usual encoding.
func (b *borrowed) Name() string { return grpcproto.Name }

// Marshal encodes a request as gRPC does.
func (b *borrowed) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(grpcproto.Name).Marshal(v)
}

// Unmarshal reads the keys and values of a response into items, and the rest into v. gRPC calls it again after a retry.
func (b *borrowed) Unmarshal(data mem.BufferSlice, v any) error {
	response, ok := v.(*etcdserverpb.RangeResponse)
	if !ok {
		return encoding.GetCodecV2(grpcproto.Name).Unmarshal(data, v)
	}
	b.release()
	b.items = nil
	b.buffer = b.take(data.Len())
	data.CopyTo(*b.buffer)
	proto.Reset(response)
	if err := b.parse(*b.buffer, response); err != nil {
		return fmt.Errorf("kv: malformed response of etcd: %w", err)
	}
	return nil
}

// take returns a buffer of n bytes.
func (b *borrowed) take(n int) *[]byte {
	const unit = 1 << 20 // sizes are rounded up to it, so that more responses can use a buffer
	if n < unit/4 {
		own := make([]byte, n)
		return &own
	}
	buffer, ok := b.pool.Get().(*[]byte)
	if !ok || cap(*buffer) < n {
		own := make([]byte, (n+unit-1)/unit*unit)
		buffer = &own
	}
	*buffer = (*buffer)[:n]
	return buffer
}

// release returns the buffer to the pool.
func (b *borrowed) release() {
	if b.buffer == nil {
		return
	}
	if invariants.Enabled {
		invariants.Overwrite(*b.buffer)
	}
	if cap(*b.buffer) >= 1<<20 {
		b.pool.Put(b.buffer)
	}
	b.buffer = nil
}

// Fields of RangeResponse and of KeyValue (etcd api/etcdserverpb/rpc.proto, api/mvccpb/kv.proto).
const (
	fieldHeader = 1
	fieldItem   = 2
	fieldMore   = 3
	fieldCount  = 4

	fieldKey     = 1
	fieldCreated = 2
	fieldRevised = 3
	fieldValue   = 5
	fieldLease   = 6
)

// eachField calls visit with the number of each field of a message, and with its bytes or its varint.
// Fields of other kinds are skipped.
func eachField(data []byte, visit func(number protowire.Number, bytes []byte, varint uint64) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		var bytes []byte
		var varint uint64
		size := 0
		switch kind {
		case protowire.BytesType:
			bytes, size = protowire.ConsumeBytes(data[n:])
		case protowire.VarintType:
			varint, size = protowire.ConsumeVarint(data[n:])
		default:
			number, size = 0, protowire.ConsumeFieldValue(number, kind, data[n:])
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		data = data[n+size:]
		if err := visit(number, bytes, varint); err != nil {
			return err
		}
	}
	return nil
}

func (b *borrowed) parse(data []byte, response *etcdserverpb.RangeResponse) error {
	return eachField(data, func(number protowire.Number, bytes []byte, varint uint64) (err error) {
		switch number {
		case fieldHeader:
			response.Header = &etcdserverpb.ResponseHeader{}
			err = proto.Unmarshal(bytes, response.Header)
		case fieldItem:
			if b.items == nil {
				b.items = make([]Item, 0, 1+len(data)/max(len(bytes), 1)*9/8) // the others are about as large
			}
			var item Item
			item, err = parseItem(bytes)
			b.items = append(b.items, item)
		case fieldMore:
			response.More = varint != 0
		case fieldCount:
			response.Count = int64(varint)
		}
		return err
	})
}

// parseItem returns a KeyValue. Its value is a part of data.
func parseItem(data []byte) (item Item, err error) {
	err = eachField(data, func(number protowire.Number, bytes []byte, varint uint64) error {
		switch number {
		case fieldKey:
			item.Key = string(bytes)
		case fieldCreated:
			item.CreateRevision = int64(varint)
		case fieldRevised:
			item.Revision = int64(varint)
		case fieldValue:
			item.Value = bytes[:len(bytes):len(bytes)]
		case fieldLease:
			item.Lease = int64(varint)
		}
		return nil
	})
	return item, err
}
