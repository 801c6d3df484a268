package customresources_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
)

// tooLarge is etcd's error for a request that is too large.
type tooLarge struct{}

func (tooLarge) Error() string    { return "etcdserver: request is too large" }
func (tooLarge) Code() codes.Code { return codes.InvalidArgument }

// narrowStore rejects values that have managedFields and the word "large", like etcd rejects large values.
type narrowStore struct{ kv.Store }

// Put implements kv.Store.
func (s narrowStore) Put(ctx context.Context, key string, value []byte, options kv.PutOptions) (kv.Result, error) {
	if bytes.Contains(value, []byte(`"large"`)) && bytes.Contains(value, []byte(`"managedFields"`)) {
		return kv.Result{}, &kv.Error{Err: tooLarge{}}
	}
	return s.Store.Put(ctx, key, value, options)
}

// TestLargeObjectsAreStoredWithoutManagedFields checks that an object that the store rejects as too large is written
// again without managedFields, within the same request.
func TestLargeObjectsAreStoredWithoutManagedFields(t *testing.T) {
	s := newServer(t, func(c *registry.Config) { c.Store = narrowStore{c.Store} })
	// Without embedded objects the server knows that encoded objects do not change when they are decoded.
	s.define(t, strings.Replace(shelves, "inner: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}", "inner: {type: object}", 1))
	shelf := func(name, color string) string {
		return `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"` + name + `"},"spec":{"color":"` + color + `"}}`
	}
	s.do(t, http.MethodPost, shelvesV1, "application/json", shelf("small", "blue"))
	created := s.do(t, http.MethodPost, shelvesV1, "application/json", shelf("large", "large"))
	lacks(t, created.body, "managedFields")
	patched := s.do(t, http.MethodPatch, shelvesV1+"/small", "application/merge-patch+json", `{"spec":{"color":"large"}}`)
	lacks(t, patched.body, "managedFields")
}
