package writes

import (
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

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

// managedFields gives access to the managedFields of an object without converting them: those of an
// unstructured object are maps, which its accessor converts at every call.
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

// saved is the state of managedFields at one time.
type saved struct {
	typed []metav1.ManagedFieldsEntry
	raw   any // of an unstructured object
}

// save returns the present state.
func (m managedFields) save() saved {
	if m.metadata != nil {
		return saved{raw: m.metadata["managedFields"]}
	}
	return saved{typed: m.object.GetManagedFields()}
}

// restore sets managedFields to an earlier state.
func (m managedFields) restore(to saved) {
	switch {
	case m.metadata == nil:
		m.object.SetManagedFields(to.typed)
	case to.raw == nil:
		delete(m.metadata, "managedFields")
	default:
		m.metadata["managedFields"] = to.raw
	}
}

// empty reports whether there are none.
func (s saved) empty() bool { return len(s.typed) == 0 && s.raw == nil }

// copied returns s with the same entries in a list of its own.
func (s saved) copied() saved {
	if list, ok := s.raw.([]any); ok {
		s.raw = slices.Clone(list)
	}
	return s
}

// holds reports whether the entries of an unstructured object are those of other.
func (s saved) holds(other saved) bool {
	a, _ := s.raw.([]any)
	b, _ := other.raw.([]any)
	return slices.EqualFunc(a, b, func(x, y any) bool {
		m, isMap := x.(map[string]any)
		n, otherIsMap := y.(map[string]any)
		return isMap && otherIsMap && reflect.ValueOf(m).Pointer() == reflect.ValueOf(n).Pointer()
	})
}

// is reports whether both are the same slice. Code that changes managedFields replaces the slice or its
// entries.
func (s saved) is(other saved) bool {
	if s.raw != nil || other.raw != nil {
		a, isList := s.raw.([]any)
		b, otherIsList := other.raw.([]any)
		return isList && otherIsList && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
	}
	return len(s.typed) == len(other.typed) && (len(s.typed) == 0 || &s.typed[0] == &other.typed[0])
}
