package admission

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	larder "github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/storage"
)

// storeTimeout limits a read of etcd, which happens while the registry's cache has not loaded.
const storeTimeout = 10 * time.Second

// store implements the methods of cache.Indexer that listers use, over the registry's cache of one resource. It
// decodes objects when they are read, and keeps objects that are read by name. Callers must not change objects, as
// with an informer. Objects are as new as the cache, and so at least as new as in an informer.
type store struct {
	cache.Indexer // nil: nothing is written, and there is one index

	view   *registry.View
	decode func(body []byte) (any, error)

	mu      sync.Mutex // guards what follows
	decoded map[string]decoded
}

// decoded is the decoded form of o.
type decoded struct {
	o    *larder.Object
	item any
}

// maxDecoded limits the objects of a resource that are kept decoded. Only large clusters bind pods to
// more nodes than that.
const maxDecoded = 256

// message is a type whose pointers decode protobuf.
type message[T any] interface {
	*T
	Unmarshal(body []byte) error
}

// newStore returns the store of a resource, whose objects are Ts.
func newStore[T any, P message[T]](r *registry.Registry, resource schema.GroupVersionResource) *store {
	return &store{
		view: r.Endpoint(resource, "").View,
		decode: func(body []byte) (any, error) {
			object := P(new(T))
			if err := object.Unmarshal(body); err != nil {
				return nil, err
			}
			return object, nil
		},
	}
}

// GetByKey implements cache.Store.
func (s *store) GetByKey(key string) (item any, exists bool, err error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, false, nil // as in an indexer: no object has this key
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	o, err := s.view.Resource.Get(ctx, storage.Scope{Namespace: namespace, Name: name}, "0")
	switch {
	case apistorage.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, s.failed(err)
	}
	item, err = s.remembered(key, o)
	return item, err == nil, err
}

// remembered returns o decoded. It decodes o once for all callers.
func (s *store) remembered(key string, o *larder.Object) (any, error) {
	s.mu.Lock()
	known, ok := s.decoded[key]
	s.mu.Unlock()
	if ok && known.o == o {
		return known.item, nil
	}
	item, err := s.object(o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decoded == nil || len(s.decoded) >= maxDecoded {
		s.decoded = make(map[string]decoded)
	}
	s.decoded[key] = decoded{o, item}
	return item, nil
}

// List implements cache.Store. Objects that cannot be read are left out, as the method
// has no error.
func (s *store) List() []any {
	items, err := s.list("", nil)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("admission: %w", err))
	}
	return items
}

// Index implements cache.Indexer for the index of namespaces.
func (s *store) Index(index string, object any) ([]any, error) {
	if index != cache.NamespaceIndex {
		return nil, fmt.Errorf("admission: no index %q", index)
	}
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	return s.list(m.GetNamespace(), nil)
}

// list returns the objects of a namespace that label selects; nil selects all.
func (s *store) list(namespace string, label labels.Selector) ([]any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	q := storage.ListRequest{Scope: storage.Scope{Namespace: namespace}, ResourceVersion: "0", Label: label}
	listing, err := s.view.Resource.List(ctx, q, nil)
	if err != nil {
		return nil, s.failed(err)
	}
	items := make([]any, 0, len(listing.Objects))
	for _, o := range listing.Objects {
		item, err := s.object(o)
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (s *store) object(o *larder.Object) (any, error) {
	body, err := s.view.Encoder(encoding.Protobuf, encoding.Full).Item(context.Background(), o)
	if err != nil {
		return nil, s.failed(err)
	}
	item, err := s.decode(body)
	if err != nil {
		return nil, s.failed(err)
	}
	return item, nil
}

func (s *store) failed(err error) error {
	return fmt.Errorf("admission: %s: %w", s.view.Resource.GroupResource, err)
}
