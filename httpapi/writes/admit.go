package writes

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	grpccodes "google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/fieldmanager"

	"github.com/larder-io/larder/internal/invariants"
)

// admit runs mutating admission. If admission leaves invalid managedFields, admit restores the previous
// ones and warns the client (apiserver pkg/endpoints/handlers/fieldmanager/admission.go).
func (e *Endpoint) admit(ctx context.Context, a admission.Attributes) error {
	if e.mutating == nil || !e.mutating.Handles(a.GetOperation()) {
		return nil
	}
	managed, err := managedFieldsOf(a.GetObject())
	if err != nil {
		return e.mutating.Admit(ctx, a, e.Scope) // an object without metadata
	}
	before, kept := managed.get(), managed.copied()
	if err := e.mutating.Admit(ctx, a, e.Scope); err != nil {
		return err
	}
	if managed, err = managedFieldsOf(a.GetObject()); err != nil { // admission may replace the whole content
		return err
	}
	if reflect.DeepEqual(managed.get(), kept) { // fast, because they share memory
		// The field manager has just encoded them, so validation, which would decode them, cannot fail.
		if invariants.Enabled {
			err := managedfields.ValidateManagedFields(managed.object.GetManagedFields())
			invariants.Assertf(err == nil, "writes: managedFields of %s were made wrong: %v", managed.object.GetName(), err)
		}
		return nil
	}
	if err := managedfields.ValidateManagedFields(managed.object.GetManagedFields()); err != nil {
		if managed.metadata == nil {
			kept = before // like upstream, keep changes that admission made in this list
		}
		managed.set(kept)
		warn(ctx, fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err))
	}
	return nil
}

// Formats of the warnings for duplicate owner references, before and after admission.
const (
	duplicateOwners         = handlers.DuplicateOwnerReferencesWarningFormat
	duplicateOwnersAdmitted = handlers.DuplicateOwnerReferencesAfterMutatingAdmissionWarningFormat
)

// dedupOwners removes duplicate owner references from obj and warns the client.
func dedupOwners(ctx context.Context, obj runtime.Object, format string) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	owners := object.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var duplicates []string
	known := make(map[ownerKey]bool, len(owners))
	for _, owner := range owners {
		key := ownerKey{owner, flag(owner.Controller), flag(owner.BlockOwnerDeletion)}
		key.Controller, key.BlockOwnerDeletion = nil, nil
		if known[key] {
			duplicates = append(duplicates, string(owner.UID))
			continue
		}
		kept, known[key] = append(kept, owner), true
	}
	if len(duplicates) > 0 {
		warn(ctx, fmt.Sprintf(format, strings.Join(duplicates, ", ")))
		object.SetOwnerReferences(kept)
	}
}

// ownerKey identifies an owner reference: two are semantically equal if their keys are. Comparing all
// references with each other would take hours for a body of the maximum size.
type ownerKey struct {
	metav1.OwnerReference // without its pointers
	controller, blocks    byte
}

// flag returns different bytes for nil, false and true.
func flag(b *bool) byte {
	switch {
	case b == nil:
		return 0
	case *b:
		return 2
	}
	return 1
}

// isTooLarge reports whether err is etcd's refusal of a large object (apiserver
// pkg/endpoints/handlers/rest.go, isTooLargeError).
func isTooLarge(err error) bool {
	if err == nil {
		return false
	}
	if coded, ok := errors.AsType[interface {
		error
		Code() grpccodes.Code
	}](err); ok && coded.Code() == grpccodes.InvalidArgument && coded.Error() == "etcdserver: request is too large" {
		return true
	}
	status, ok := err.(interface{ GRPCStatus() *grpcstatus.Status })
	return ok && status.GRPCStatus().Code() == grpccodes.ResourceExhausted &&
		strings.Contains(status.GRPCStatus().Message(), "trying to send message larger than max")
}

// manage returns obj with the managedFields that it gets when manager replaces live with it. A create
// passes a nil live.
func (e *Endpoint) manage(live, obj runtime.Object, manager string) (runtime.Object, error) {
	switch {
	case live == nil && e.ManagedFields != nil:
		if err := e.ManagedFields.Create(obj, manager); err != nil {
			return nil, fmt.Errorf("failed to create new object (Create for %v): %w", e.Scope.Kind, err)
		}
		return obj, nil
	case live == nil:
		empty, err := e.Scope.Creater.New(e.Scope.Kind)
		if err != nil {
			return nil, fmt.Errorf("failed to create new object (Create for %v): %w", e.Scope.Kind, err)
		}
		return e.Manager.UpdateNoErrors(empty, obj, manager), nil
	case e.ManagedFields != nil:
		e.ManagedFields.Update(live, obj, manager)
		return obj, nil
	}
	return e.Manager.UpdateNoErrors(live, obj, manager), nil
}

// managedFields reads and writes the managedFields of an object without converting them. In an unstructured object
// they are maps, which its accessor converts at every call.
type managedFields struct {
	object   metav1.Object
	metadata map[string]any // of an unstructured object; nil for others
}

// managedFieldsOf returns an error if obj has no metadata.
func managedFieldsOf(obj runtime.Object) (managedFields, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return managedFields{}, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		metadata, _ := u.Object["metadata"].(map[string]any)
		return managedFields{object, metadata}, nil
	}
	return managedFields{object: object}, nil
}

// get returns the managedFields: of an unstructured object a []any, or nil if there are none.
func (m managedFields) get() any {
	if m.metadata != nil {
		return m.metadata["managedFields"]
	}
	return m.object.GetManagedFields()
}

// copied returns the managedFields in a list of their own.
func (m managedFields) copied() any {
	switch list := m.get().(type) {
	case []any:
		return slices.Clone(list)
	case []metav1.ManagedFieldsEntry:
		return slices.Clone(list)
	default:
		return list
	}
}

// set sets the managedFields to a result of get or copied. It removes them if the result is nil.
func (m managedFields) set(to any) {
	switch {
	case m.metadata == nil:
		list, _ := to.([]metav1.ManagedFieldsEntry)
		m.object.SetManagedFields(list)
	case to == nil:
		delete(m.metadata, "managedFields")
	default:
		m.metadata["managedFields"] = to
	}
}
