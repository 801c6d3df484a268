package storage

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/cache"
)

// Stored encodes obj as it would be stored.
func (r *Resource) Stored(obj runtime.Object) ([]byte, error) { return r.codec.EncodeStored(obj) }

// Object makes the cache's object of a stored value.
func (r *Resource) Object(rest string, value []byte, revision int64) *cache.Object {
	return r.codec.DecodeValue(context.Background(), r.layout.root+rest, rest, value, revision)
}

// Budget returns the budget of the resource's encodings.
func (r *Resource) Budget() *cache.Budget { return r.codec.Schema.Budget() }
