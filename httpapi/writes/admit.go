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
	"k8s.io/apiserver/pkg/warning"

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
		warning.AddWarning(ctx, "", fmt.Sprintf(fieldmanager.InvalidManagedFieldsAfterMutatingAdmissionWarningFormat, err))
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
	known := make(map[string]bool, len(owners))
	for _, owner := range owners {
		// References are semantically equal if their encodings are. Comparing all with each other would take hours for a
		// body of the maximum size.
		key, err := owner.Marshal()
		if err == nil && known[string(key)] {
			duplicates = append(duplicates, string(owner.UID))
			continue
		}
		kept, known[string(key)] = append(kept, owner), true
	}
	if len(duplicates) > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf(format, strings.Join(duplicates, ", ")))
		object.SetOwnerReferences(kept)
	}
}

// isTooLarge reports whether etcd has rejected an object because of its size (apiserver pkg/endpoints/handlers/rest.go,
// isTooLargeError).
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

// manage sets the managedFields that obj gets when it replaces live. A create passes a nil live.
func (w *Write) manage(live, obj runtime.Object, manager string) error {
	e := w.endpoint
	if live != nil {
		e.ManagedFields.Update(live, obj, manager)
		return nil
	}
	if err := e.ManagedFields.Create(obj, manager); err != nil {
		return fmt.Errorf("failed to create new object (Create for %v): %w", e.Scope.Kind, err)
	}
	return nil
}

// removeManagedFields removes the managedFields of obj, if it has metadata.
func removeManagedFields(obj runtime.Object) {
	if object, err := meta.Accessor(obj); err == nil {
		object.SetManagedFields(nil)
	}
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

// copied returns a copy of the list of managedFields.
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
