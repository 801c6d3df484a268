package customresources_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"

	"github.com/larder-io/larder/httpapi/customresources"
	"github.com/larder-io/larder/internal/proctest"
)

// blockingAdmission is an admission plugin that blocks one operation on objects named slow.
type blockingAdmission struct {
	operation     admission.Operation
	entered, open chan struct{}
}

// Handles implements admission.Interface.
func (b blockingAdmission) Handles(operation admission.Operation) bool {
	return operation == b.operation
}

// Admit implements admission.MutationInterface.
func (b blockingAdmission) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetName() == "slow" {
		close(b.entered)
		<-b.open
	}
	return nil
}

// TestNothingIsCreatedAfterTheDeletion deletes a CRD while one of its objects is being created, with POST and with
// apply. The object must be deleted, too, so that a later CRD of that name does not have it.
func TestNothingIsCreatedAfterTheDeletion(t *testing.T) {
	const object = `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"slow","namespace":"ns"}}`
	for name, create := range map[string]call{
		"post":  {method: http.MethodPost, path: shelvesV1, kind: "application/json", body: object},
		"apply": {method: http.MethodPatch, path: shelvesV1 + "/slow?fieldManager=x", kind: "application/apply-patch+yaml", body: object},
	} {
		t.Run(name, func(t *testing.T) {
			plugin := blockingAdmission{admission.Create, make(chan struct{}), make(chan struct{})}
			s := newServerOf(t, func(c *customresources.Config) { c.Admission = plugin })
			s.define(t, shelves)
			created := make(chan response, 1)
			go func() { created <- s.send(t, create) }()
			<-plugin.entered

			client := s.crds.ApiextensionsV1().CustomResourceDefinitions()
			must(t, client.Delete(t.Context(), "shelves.example.com", deleteNow()))
			crd, err := s.extensions.CRDs().Lister().Get("shelves.example.com")
			must(t, err)
			var opened atomic.Bool
			calling, returned := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(returned)
				close(calling)
				if _, err := s.extensions.GetCustomResourceListerCollectionDeleter(crd); err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
				if !opened.Load() {
					t.Error("objects may be deleted while one is being created")
				}
			}()
			<-calling
			late := call{method: http.MethodPost, path: shelvesV1, kind: "application/json", body: strings.Replace(object, "slow", "late", 1)}
			proctest.Eventually(t, "creations are rejected", func() error {
				if a := s.send(t, late); a.code != http.StatusForbidden && a.code != http.StatusNotFound {
					return errors.New(a.String())
				}
				return nil
			})
			opened.Store(true)
			close(plugin.open)
			if a := <-created; a.code != http.StatusCreated {
				t.Errorf("the create request got %s, want 201", a)
			}
			<-returned
			proctest.Eventually(t, "the CRD is deleted", func() error {
				_, err := client.Get(t.Context(), "shelves.example.com", metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("get: error %v, want not found", err)
			})
			if left, err := s.store.Range(t.Context(), everythingBelow("/registry/example.com/shelves/")); err != nil || len(left.Items) > 0 {
				t.Errorf("%d objects are left, error %v", len(left.Items), err)
			}
		})
	}
}

// TestUpdatesDoNotDelayTheDeletion deletes a CRD while one of its objects is being patched.
func TestUpdatesDoNotDelayTheDeletion(t *testing.T) {
	plugin := blockingAdmission{admission.Update, make(chan struct{}), make(chan struct{})}
	s := newServerOf(t, func(c *customresources.Config) { c.Admission = plugin })
	s.define(t, shelves)
	s.do(t, http.MethodPost, shelvesV1, "application/json", `{"apiVersion":"example.com/v1","kind":"Shelf","metadata":{"name":"slow"}}`)
	patched := make(chan response, 1)
	go func() {
		patched <- s.send(t, call{method: http.MethodPatch, path: shelvesV1 + "/slow", kind: "application/merge-patch+json", body: `{"spec":{"width":1}}`})
	}()
	<-plugin.entered
	crds := s.crds.ApiextensionsV1().CustomResourceDefinitions()
	must(t, crds.Delete(t.Context(), "shelves.example.com", deleteNow()))
	proctest.Eventually(t, "the CRD is deleted", func() error {
		_, err := crds.Get(t.Context(), "shelves.example.com", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("get: error %v, want not found", err)
	})
	close(plugin.open)
	if a := <-patched; a.code != http.StatusNotFound && a.code != http.StatusConflict {
		t.Errorf("the patch got %s, want 404 or 409", a)
	}
}
