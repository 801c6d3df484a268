package managedfields

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// converter is a managedfields.TypeConverter for objects of built-in Go types.
type converter struct {
	inner managedfields.TypeConverter
	types sync.Map // of schema.GroupVersionKind to *objectType
}

// objectType is the type of the objects of one kind.
type objectType struct {
	*schemaType
	goType reflect.Type
	schema *smdschema.Schema
	ref    smdschema.TypeRef
}

// ObjectToTyped returns a value that refers to obj. The caller does not change obj while it uses the
// value. Upstream converts maps, and objects that may not hold duplicates: they come from clients.
func (c *converter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, isMap := obj.(runtime.Unstructured); isMap || !slices.Contains(opts, typed.AllowDuplicates) {
		return c.inner.ObjectToTyped(obj, opts...)
	}
	t := c.known(obj.GetObjectKind().GroupVersionKind())
	if t == nil {
		return c.learn(obj, opts...)
	}
	if t.hasException(reflect.ValueOf(obj)) {
		return c.inner.ObjectToTyped(obj, opts...)
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, fmt.Errorf("managedfields: %w", err)
	}
	//lint:ignore SA1019 deprecated for values that need validation; these need none
	return typed.AsTypedUnvalidated(&object{v, obj}, t.schema, t.ref), nil
}

// known returns the type of a kind's objects, nil until one was converted.
func (c *converter) known(kind schema.GroupVersionKind) *objectType {
	t, ok := c.types.Load(kind)
	if !ok {
		return nil
	}
	return t.(*objectType)
}

// learn converts the first object of a kind as upstream does, and stores its type.
func (c *converter) learn(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	v, err := c.inner.ObjectToTyped(obj, opts...)
	if err != nil {
		return nil, err
	}
	t := reflect.TypeOf(obj)
	c.types.Store(obj.GetObjectKind().GroupVersionKind(), &objectType{schemaTypeOf(v.Schema(), t, v.TypeRef()), t, v.Schema(), v.TypeRef()})
	return v, nil
}

// TypedToObject returns a lazyMap, or a map if the value is the result of a merge. Upstream mostly asks
// only for the version of the kind.
func (c *converter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	if own, ok := v.AsValue().(*object); ok {
		return &lazyMap{own}, nil
	}
	return c.inner.TypedToObject(v)
}

// object is the value of a whole object.
type object struct {
	value.Value
	obj runtime.Object
}

// lazyMap is an object that becomes a map when it is converted, as upstream's values always do. Both
// sides of a comparison then lose the same details, such as the difference between an empty slice and nil.
type lazyMap struct{ value *object }

func (l *lazyMap) GetObjectKind() schema.ObjectKind { return l.value.obj.GetObjectKind() }

func (l *lazyMap) DeepCopyObject() runtime.Object { return l.value.obj.DeepCopyObject() }

// lazyConvertor also converts a lazyMap.
type lazyConvertor struct{ runtime.ObjectConvertor }

func (c lazyConvertor) ConvertToVersion(in runtime.Object, version runtime.GroupVersioner) (runtime.Object, error) {
	if o, ok := in.(*lazyMap); ok {
		content, ok := o.value.Unstructured().(map[string]any)
		if !ok {
			return nil, fmt.Errorf("managedfields: %T is not encoded as a map", o.value.obj)
		}
		in = &unstructured.Unstructured{Object: content}
	}
	return c.ObjectConvertor.ConvertToVersion(in, version)
}
