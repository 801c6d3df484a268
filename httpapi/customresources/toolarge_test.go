package customresources_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/kv"
)

// tooLarge is etcd's error for a request that is too large.
type tooLarge struct{}

func (tooLarge) Error() string    { return "etcdserver: request is too large" }
func (tooLarge) Code() codes.Code { return codes.InvalidArgument }

// narrowStore rejects values that contain tooMuch and the word "large", as etcd rejects large values.
type narrowStore struct {
	kv.Store
	tooMuch string
}

// Put implements kv.Store.
func (s narrowStore) Put(ctx context.Context, key string, value []byte, options kv.PutOptions) (kv.WriteResult, error) {
	if bytes.Contains(value, []byte(`"large"`)) && bytes.Contains(value, []byte(s.tooMuch)) {
		return kv.WriteResult{}, &kv.Error{Err: tooLarge{}}
	}
	return s.Store.Put(ctx, key, value, options)
}

// TestLargeObjectsAreStoredWithoutManagedFields checks that if the store rejects an object as too large, the same
// request writes it again without managedFields.
func TestLargeObjectsAreStoredWithoutManagedFields(t *testing.T) {
	s := newServer(t, func(c *registry.Config) { c.Store = narrowStore{c.Store, `"managedFields"`} })
	// Without embedded objects, the server knows that decoding does not change encoded objects.
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

// signing is an admission plugin that adds managedFields.
type signing struct{}

// Handles implements admission.Interface.
func (signing) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

// Admit implements admission.MutationInterface.
func (signing) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return err
	}
	object.SetManagedFields(append(object.GetManagedFields(), metav1.ManagedFieldsEntry{
		Manager: "admission", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "example.com/v1",
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:color":{}}}`),
	}))
	return nil
}

// TestLargeObjectsKeepManagedFieldsOfAdmission checks which managedFields set by admission are stored if an object is
// too large with those of the request: those of an update, as in kube-apiserver, but not those of a patch.
func TestLargeObjectsKeepManagedFieldsOfAdmission(t *testing.T) {
	s := newServerOf(t, func(c *customresources.Config) { c.Admission = signing{} }, func(c *registry.Config) {
		c.Store = narrowStore{c.Store, `"manager":"tester"`}
	})
	s.define(t, shelves)
	const path, query = shelvesV1 + "/small", "?fieldManager=tester"
	small := s.do(t, http.MethodPost, shelvesV1+query, "application/json",
		`{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"small"},"spec":{"color":"blue"}}`).body
	contains(t, small, `"manager":"tester"`, `"manager":"admission"`)
	updated := s.do(t, http.MethodPut, path+query, "application/json", strings.Replace(small, `"blue"`, `"large"`, 1)).body
	contains(t, updated, `"manager":"admission"`)
	lacks(t, updated, `"manager":"tester"`)
	patched := s.do(t, http.MethodPatch, path+query, "application/merge-patch+json", `{"spec":{"width":90}}`).body
	contains(t, patched, `"width":90`)
	lacks(t, patched, "managedFields")
}
