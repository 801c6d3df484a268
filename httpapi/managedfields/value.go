package managedfields

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// object is the value of a whole object.
type object struct {
	structValue
	obj runtime.Object
}

// newObject returns the value of obj, a pointer to a struct.
func newObject(obj runtime.Object) (*object, error) {
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, fmt.Errorf("fields: %w", err)
	}
	return &object{structValue: structValue{Value: v, fields: reflect.ValueOf(obj).Elem()}, obj: obj}, nil
}

// structValue is upstream's value of a struct, which knows the struct.
type structValue struct {
	value.Value
	fields reflect.Value // the struct, addressable
}

// AsMap implements value.Value.
func (v *structValue) AsMap() value.Map { return v.AsMapUsing(value.HeapAllocator) }

// AsMapUsing implements value.Value.
func (v *structValue) AsMapUsing(a value.Allocator) value.Map {
	return &structMap{Map: v.Value.AsMapUsing(a), fields: v.fields}
}

// structMap is upstream's map of the fields of a struct, which passes over equal fields when
// it is zipped with a struct of the same type.
type structMap struct {
	value.Map
	fields reflect.Value
}

// Equals implements value.Map.
func (m *structMap) Equals(other value.Map) bool {
	return m.EqualsUsing(value.HeapAllocator, other)
}

// EqualsUsing implements value.Map. It does not zip: maps that are equal have no field that
// zipping would show.
func (m *structMap) EqualsUsing(a value.Allocator, other value.Map) bool {
	return m.Map.EqualsUsing(a, upstreams(other))
}

// Zip implements value.Map.
func (m *structMap) Zip(other value.Map, order value.MapTraverseOrder, fn func(key string, lhs, rhs value.Value) bool) bool {
	return m.ZipUsing(value.HeapAllocator, other, order, fn)
}

// ZipUsing implements value.Map. Beside another struct of the same type, and where the
// order does not matter, it leaves out fields that are equal: the caller is a comparison,
// for which they are of no account. The values that fn gets are valid until it returns.
func (m *structMap) ZipUsing(a value.Allocator, other value.Map, order value.MapTraverseOrder, fn func(key string, lhs, rhs value.Value) bool) bool {
	o, ok := other.(*structMap)
	if !ok || order != value.Unordered || m.fields.Type() != o.fields.Type() {
		return m.Map.ZipUsing(a, upstreams(other), order, fn)
	}
	for _, entry := range value.TypeReflectEntryOf(m.fields.Type()).OrderedFields() {
		l, r := entry.GetFrom(m.fields), entry.GetFrom(o.fields)
		inside := l.CanAddr() && r.CanAddr() // else of an inlined struct that is not there
		if inside && same(l, r) {
			continue
		}
		if !m.zipField(a, entry.JsonName, o, l, r, inside, fn) {
			return false
		}
	}
	return true
}

// zipField calls fn with the values of a field that is not equal in both structs, and nil for
// those that are left out.
func (m *structMap) zipField(a value.Allocator, name string, o *structMap, l, r reflect.Value, inside bool, fn func(key string, lhs, rhs value.Value) bool) bool {
	lhs, hasLeft := m.Map.GetUsing(a, name)
	if hasLeft {
		defer a.Free(lhs)
	}
	rhs, hasRight := o.Map.GetUsing(a, name)
	if hasRight {
		defer a.Free(rhs)
	}
	switch {
	case !hasLeft && !hasRight:
		return true
	case !hasLeft:
		return fn(name, nil, rhs)
	case !hasRight:
		return fn(name, lhs, nil)
	case inside:
		if l, r, ok := structs(l, r); ok && lhs.IsMap() && rhs.IsMap() {
			return fn(name, &structValue{lhs, l}, &structValue{rhs, r})
		}
	}
	return fn(name, lhs, rhs)
}

// upstreams returns the map of upstream's that m is around, or m itself.
func upstreams(m value.Map) value.Map {
	if own, ok := m.(*structMap); ok {
		return own.Map
	}
	return m
}

// same says whether two addressable fields of one type are deeply equal.
func same(l, r reflect.Value) bool {
	switch l.Kind() {
	case reflect.String:
		return l.String() == r.String()
	case reflect.Bool:
		return l.Bool() == r.Bool()
	case reflect.Int, reflect.Int32, reflect.Int64:
		return l.Int() == r.Int()
	case reflect.Pointer:
		if l.IsNil() || r.IsNil() {
			return l.IsNil() && r.IsNil()
		}
	case reflect.Slice, reflect.Map:
		if l.IsNil() != r.IsNil() || l.Len() != r.Len() {
			return false
		}
		if l.Len() == 0 {
			return true
		}
	}
	return reflect.DeepEqual(l.Addr().Interface(), r.Addr().Interface())
}

// structs returns the structs that l and r are, or point to. The last result is false if they
// are none, or are encoded otherwise than by their fields, as times and quantities are.
func structs(l, r reflect.Value) (reflect.Value, reflect.Value, bool) {
	if l.Kind() == reflect.Pointer && !l.IsNil() && !r.IsNil() {
		l, r = l.Elem(), r.Elem()
	}
	return l, r, l.Kind() == reflect.Struct && !value.TypeReflectEntryOf(l.Type()).CanConvertToUnstructured()
}
