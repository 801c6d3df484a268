package storage

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/encoding"
)

// Written has the encoded results of a request's writes, so that the response need not encode them again. Its methods
// are safe for concurrent use.
//
// A write with the context of [Track] may return an object that was not decoded from the stored value. That object may
// lack what decoding would add or normalize, such as a default or an empty list. Code that needs the exact object
// calls [Written.ReplaceWithStored] first.
type Written struct {
	mu sync.Mutex // a leaf

	all []written
}

// written is a write that has succeeded. It has an offer or a from.
type written struct {
	codec    *encoding.Codec
	result   runtime.Object // as the write returned it
	data     []byte         // stored bytes to decode result from; nil if result is decoded
	revision int64
	offer    *cache.Offer  // of the object to the cache
	from     *cache.Object // result, except for its revision
}

// writtenKey is the key under which a context has its *Written.
type writtenKey struct{}

// Track returns a context for the writes of one request, and their Written. Do not track a request that writes
// many objects: the Written keeps all of them.
func Track(ctx context.Context) (context.Context, *Written) {
	w := new(Written)
	return context.WithValue(ctx, writtenKey{}, w), w
}

// writtenOf returns the Written of ctx, nil if it has none.
func writtenOf(ctx context.Context) *Written {
	w, _ := ctx.Value(writtenKey{}).(*Written)
	return w
}

// record records a write. w may be nil.
func (w *Written) record(done written) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, done)
}

// of returns the write that has returned result; the zero value if there is none.
func (w *Written) of(result runtime.Object) written {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, done := range w.all {
		if done.result == result {
			return done
		}
	}
	return written{}
}

// For returns the cached object of result, which a REST storage has returned for a write. Every encoding
// of the cached object equals upstream's encoding of result. For returns nil if
//
//   - result is not the object that storage.Interface returned, but a Status or a Scale, for example;
//   - nothing was written, as in a dry run;
//   - the cache must decode the stored value;
//   - a Decorator changes the objects of the resource after the storage has returned them.
//
// Invariant: the canonical encoding of result, after ReplaceWithStored, is the body of the object.
func (w *Written) For(result runtime.Object) *cache.Object {
	done := w.of(result)
	if done.result == nil {
		return nil
	}
	var o *cache.Object
	if done.offer != nil {
		o = done.offer.Object(done.revision)
	} else {
		o = done.codec.At(done.from, done.revision)
	}
	if invariants.Enabled && o != nil {
		obj, err := done.decoded()
		if err == nil {
			err = done.codec.Encodes(o, obj)
		}
		if err != nil {
			panic(fmt.Sprintf("registry: the response to a write of %s: %v", o.Key(), err))
		}
	}
	return o
}

// ReplaceWithStored makes result, which a REST storage has returned for a write, equal to the result of a read of the
// store.
func (w *Written) ReplaceWithStored(result runtime.Object) error {
	done := w.of(result)
	if done.data == nil {
		return nil
	}
	obj, err := done.decoded()
	if err != nil {
		return err
	}
	reflect.ValueOf(result).Elem().Set(reflect.ValueOf(obj).Elem())
	return nil
}

// decoded returns the result, decoded.
func (w *written) decoded() (runtime.Object, error) {
	if w.data == nil {
		return w.result, nil
	}
	obj := newLike(w.result)
	return obj, w.codec.DecodeStored(w.data, obj, w.revision)
}
