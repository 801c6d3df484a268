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
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// converter is a managedfields.TypeConverter for objects of built-in Go types.
type converter struct {
	inner managedfields.TypeConverter
	types sync.Map // of schema.GroupVersionKind to *objectType
}

// objectType is what a value of one kind is checked and compared by.
type objectType struct {
	schema     *smdschema.Schema
	ref        smdschema.TypeRef
	exceptions *exceptions
}

// ObjectToTyped returns a value of obj, which the caller does not change as long as it uses
// the value. Maps, and objects that may not hold duplicates, are converted by upstream: they
// come from clients.
func (c *converter) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, isMap := obj.(runtime.Unstructured); isMap || !slices.Contains(opts, typed.AllowDuplicates) {
		return c.inner.ObjectToTyped(obj, opts...)
	}
	known, ok := c.types.Load(obj.GetObjectKind().GroupVersionKind())
	if !ok {
		return c.learn(obj, opts...)
	}
	t := known.(*objectType)
	if t.exceptions.in(reflect.ValueOf(obj)) {
		return c.inner.ObjectToTyped(obj, opts...)
	}
	v, err := newObject(obj)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 it is discouraged for the sake of values that nobody has checked; these need none
	return typed.AsTypedUnvalidated(v, t.schema, t.ref), nil
}

// learn converts the first object of a kind as upstream does, and remembers its type.
func (c *converter) learn(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	value, err := c.inner.ObjectToTyped(obj, opts...)
	if err != nil {
		return nil, err
	}
	c.types.Store(obj.GetObjectKind().GroupVersionKind(), &objectType{
		schema: value.Schema(), ref: value.TypeRef(),
		exceptions: exceptionsOf(value.Schema(), reflect.TypeOf(obj), value.TypeRef()),
	})
	return value, nil
}

// TypedToObject returns an object that knows its kind and that originConvertor
// can convert, or a map if the value is the result of a merge. Upstream asks only to
// compare the kind's version with another, most of the time.
func (c *converter) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	if own, ok := v.AsValue().(*object); ok {
		return &origin{own}, nil
	}
	return c.inner.TypedToObject(v)
}

// origin is the object that a value was made from. It becomes a map, as upstream has it, when
// it is converted: what is lost on the way to a map and back, an empty slice for example, is
// lost on the other side of a comparison too.
type origin struct{ value *object }

// GetObjectKind implements runtime.Object.
func (o *origin) GetObjectKind() schema.ObjectKind { return o.value.obj.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (o *origin) DeepCopyObject() runtime.Object { return o.value.obj.DeepCopyObject() }

// NewManager returns upstream's manager of the fields of one kind. The parameters are those of
// managedfields.NewDefaultFieldManager.
func NewManager(types managedfields.TypeConverter, convertor runtime.ObjectConvertor, defaulter runtime.ObjectDefaulter, creater runtime.ObjectCreater, kind schema.GroupVersionKind, hub schema.GroupVersion, subresource string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	return managedfields.NewDefaultFieldManager(&converter{inner: types}, originConvertor{convertor}, defaulter, creater, kind, hub, subresource, reset)
}

// originConvertor converts origins too.
type originConvertor struct{ runtime.ObjectConvertor }

// ConvertToVersion implements runtime.ObjectConvertor.
func (c originConvertor) ConvertToVersion(in runtime.Object, version runtime.GroupVersioner) (runtime.Object, error) {
	if o, ok := in.(*origin); ok {
		content, ok := o.value.Unstructured().(map[string]any)
		if !ok {
			return nil, fmt.Errorf("fields: %T is not encoded as a map", o.value.obj)
		}
		in = &unstructured.Unstructured{Object: content}
	}
	return c.ObjectConvertor.ConvertToVersion(in, version)
}
