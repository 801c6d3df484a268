package cache

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/s2"
)

// packFrom is the minimum size of packed bodies. Packing saves little for smaller bodies, which are more numerous and
// read often (C2).
const packFrom = 16 << 10

// optional holds the fields that few objects need, so that other objects are smaller.
type optional struct {
	err error // why the object is corrupt
	// head is the length of ObjectConfig.Head, with which Object.body begins; the packed body
	// follows. size is the length of the unpacked body. Both are 0 if the body is not packed.
	head, size int
}

// packing is a pool of buffers for packed bodies.
var packing = sync.Pool{New: func() any { return new([]byte) }}

// pack returns head followed by the packed body. It returns nil if that would hardly be
// smaller than the body.
func pack(head, body []byte) []byte {
	buffer := packing.Get().(*[]byte)
	defer packing.Put(buffer)
	if bound := s2.MaxEncodedLen(len(body)); cap(*buffer) < bound {
		*buffer = make([]byte, bound)
	}
	packed := s2.EncodeBetter((*buffer)[:cap(*buffer)], body)
	if len(head)+len(packed) > len(body)/4*3 {
		return nil
	}
	return append(append(make([]byte, 0, len(head)+len(packed)), head...), packed...)
}

// Packed reports whether the body is kept packed: each call of Body and AppendBody unpacks
// it.
func (o *Object) Packed() bool { return o.optional != nil && o.optional.size > 0 }

// Size returns the length of Body without unpacking it.
func (o *Object) Size() int {
	if o.Packed() {
		return o.optional.size
	}
	return len(o.body)
}

// Head returns ObjectConfig.Head if the body is packed, otherwise the body. It is shared
// and must not be written to.
func (o *Object) Head() []byte {
	o.seal.Check(o.body, "cache: the body of an object")
	if o.Packed() {
		return o.body[:o.optional.head:o.optional.head]
	}
	return o.body
}

// AppendBody appends the canonical encoding to dst.
func (o *Object) AppendBody(dst []byte) []byte {
	if !o.Packed() {
		return append(dst, o.Body()...)
	}
	o.seal.Check(o.body, "cache: the body of an object")
	at, end := len(dst), len(dst)+o.optional.size
	if cap(dst) < end {
		grown := make([]byte, at, end)
		copy(grown, dst)
		dst = grown
	}
	body, err := s2.Decode(dst[at:end:end], o.body[o.optional.head:])
	if err != nil || len(body) != o.optional.size {
		panic(fmt.Sprintf("cache: body of %d bytes of %q cannot be unpacked: %d bytes, %v", o.optional.size, o.Key(), len(body), err))
	}
	return dst[:end]
}
