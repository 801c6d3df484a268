package encoding

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
)

// kind describes the objects of a Codec.
type kind struct {
	groupResource schema.GroupResource
	versioner     storage.Versioner
	encrypted     bool
	schema        *cache.Schema
	scheme        *runtime.Scheme
	canonical     schema.GroupVersionKind
	newFunc       func() runtime.Object
	newListFunc   func() runtime.Object
}

// GroupResource names the resource.
func (k *kind) GroupResource() schema.GroupResource { return k.groupResource }

// Schema returns the schema of the objects that the Codec makes for the cache.
func (k *kind) Schema() *cache.Schema { return k.schema }

// Versioner reads and writes resourceVersions.
func (k *kind) Versioner() storage.Versioner { return k.versioner }

// Scheme converts between versions; nil for custom resources.
func (k *kind) Scheme() *runtime.Scheme { return k.scheme }

// Canonical returns the kind of the canonical encoding.
func (k *kind) Canonical() schema.GroupVersionKind { return k.canonical }

// Records reports whether the stored values are records that are no API objects: they have
// no canonical encoding and are not cached.
func (k *kind) Records() bool { return k.newFunc == nil }

// Encrypted reports whether values may be encrypted. Then reading a value may wait for a key service.
func (k *kind) Encrypted() bool { return k.encrypted }

// New makes an empty object of the type that handlers and strategies use.
func (k *kind) New() runtime.Object { return k.newFunc() }

// NewList makes an empty list of such objects.
func (k *kind) NewList() runtime.Object { return k.newListFunc() }
