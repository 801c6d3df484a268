package storage

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/encoding"
)

// Written knows the encoded form of the object that the last write under a context returned, so
// that the answer to the write need not encode the object again. All its methods are safe for
// concurrent use.
type Written struct {
	mu sync.Mutex // a leaf

	last written
}

// written is a write that has succeeded. It has an offer or a from.
type written struct {
	codec    *encoding.Codec
	result   runtime.Object // as the write returned it
	revision int64
	offer    *cache.Offer  // by which the cache takes the object
	from     *cache.Object // result but for its revision
}

// writtenKey is the key under which a context has its *Written.
type writtenKey struct{}

// Track returns a context for the writes of one request, and what they tell of the last of them.
func Track(ctx context.Context) (context.Context, *Written) {
	w := new(Written)
	return context.WithValue(ctx, writtenKey{}, w), w
}

// writtenOf returns what ctx tracks writes by; nil if it does not.
func writtenOf(ctx context.Context) *Written {
	w, _ := ctx.Value(writtenKey{}).(*Written)
	return w
}

// note remembers a write. w may be nil.
func (w *Written) note(last written) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = last
}

// For returns the cache's object of result, which a REST storage has returned for a write: every
// encoding of one is what upstream would encode the other to. It returns nil if that is not known:
// result is not what the storage returned (but a Status or a Scale, for example), nothing was
// written (a dry run), or the cache must decode the stored value to know what it holds.
//
// Only a Decorator changes an object after the storage has returned it, in place, and the
// storage tells nothing of an object that a Decorator would change.
//
// Invariant: the canonical encoding of result is the body of the object.
func (w *Written) For(result runtime.Object) *cache.Object {
	w.mu.Lock()
	last := w.last
	w.mu.Unlock()
	if last.result == nil || last.result != result {
		return nil
	}
	var o *cache.Object
	if last.offer != nil {
		o = last.offer.Object(last.revision)
	} else {
		o = last.codec.At(last.from, last.revision)
	}
	if invariants.Enabled && o != nil {
		if err := last.codec.Encodes(o, result); err != nil {
			panic(fmt.Sprintf("registry: the answer to a write of %s: %v", o.Key(), err))
		}
	}
	return o
}
