package registry

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
)

// Known remembers of which cached objects the objects were made that the writes of one
// request gave to upstream's code: the present one that a change begins with, and the one
// that came of it. Whoever is to encode one of them, unchanged, may take the cached
// object's bytes instead. Methods may be called at the same time.
type Known struct{ present, result atomic.Pointer[knownObject] }

type knownObject struct {
	obj runtime.Object
	as  *cache.Object
}

type knownKey struct{}

// WithKnown returns a context whose writes are remembered, and what they are remembered in.
func WithKnown(ctx context.Context) (context.Context, *Known) {
	k := new(Known)
	return context.WithValue(ctx, knownKey{}, k), k
}

// Find returns the cached object that obj was made of, nil if that is not known. It goes by
// obj's identity.
func (k *Known) Find(obj runtime.Object) *cache.Object {
	for _, known := range [...]*knownObject{k.present.Load(), k.result.Load()} {
		if known != nil && known.obj == obj {
			return known.as
		}
	}
	return nil
}

// remember notes in ctx, if somebody wants to know, that obj is what as holds.
func (s *store) remember(ctx context.Context, place func(*Known) *atomic.Pointer[knownObject], obj runtime.Object, as *cache.Object) {
	if s.codec.decorate != nil || s.codec.untyped {
		return // the cached object may have more
	}
	if k, ok := ctx.Value(knownKey{}).(*Known); ok {
		place(k).Store(&knownObject{obj, as})
	}
}

func (k *Known) ofPresent() *atomic.Pointer[knownObject] { return &k.present }
func (k *Known) ofResult() *atomic.Pointer[knownObject]  { return &k.result }
