package patches

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// Narrows reports whether Narrow may be used for objects of the type of sample. Those that hold a
// document of any shape, the data of a ControllerRevision for example, have to become maps as a
// whole: a document that went through a map is written otherwise than it came, with sorted keys
// and other numbers.
func Narrows(sample runtime.Object) bool {
	return !holdsDocument(reflect.TypeOf(sample), make(map[reflect.Type]bool))
}

// holdsDocument reports whether values of t may hold a document, unless a type in seen does.
func holdsDocument(t reflect.Type, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return holdsDocument(t.Elem(), seen)
	case reflect.Struct:
	default:
		return false
	}
	if t == reflect.TypeFor[runtime.RawExtension]() {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	for i := range t.NumField() {
		if holdsDocument(t.Field(i).Type, seen) {
			return true
		}
	}
	return false
}

// maxNarrowed is how many bytes a patch may have to be decoded once more. Larger ones touch
// most of their object anyway.
const maxNarrowed = 256 << 10

// Narrow returns what upstream's handler of patches is to serve req with: scope and req
// themselves, or, if the patch is a merge patch, strategic or not, such that it costs what it
// touches. Of JSON merge patches, [merging] says how.
//
// For a strategic merge patch upstream makes a map of the whole object, merges the patch into
// that, and makes an object of the result. Of a pod whose status is patched, that is mostly its spec and the record of its
// managers. Here the map is made of an object that has only those fields that the patch names,
// at the top and in the structs below; the others are put back before the result is given its
// defaults. Where a patch has a directive, "$patch" for example, the fields beside it all go
// through the map, for it may concern any of them.
//
// The body is read by upstream alone: what it has read is what is looked at. The objects are of a
// type that [Narrows] allows.
func Narrow(scope *handlers.RequestScope, req *http.Request) (*handlers.RequestScope, *http.Request) {
	kind := typeOf(req)
	if kind != types.StrategicMergePatchType && kind != types.MergePatchType || req.Body == nil {
		return scope, req
	}
	own, read := *req, &copied{ReadCloser: req.Body}
	own.Body = read
	narrowed := *scope
	if kind == types.MergePatchType {
		narrowed.Serializer = &merging{NegotiatedSerializer: scope.Serializer, scope: scope, body: read}
		return &narrowed, &own
	}
	n := &narrowing{ObjectConvertor: scope.UnsafeConvertor, ObjectDefaulter: scope.Defaulter, version: scope.Kind.GroupVersion(), body: read}
	narrowed.UnsafeConvertor, narrowed.Defaulter = n, n
	return &narrowed, &own
}

// copied keeps what is read of a body, and of one that is too large to be looked at no more
// than shows that.
type copied struct {
	io.ReadCloser
	data bytes.Buffer
}

// Read implements io.Reader.
func (c *copied) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if c.data.Len() <= maxNarrowed {
		c.data.Write(p[:n])
	}
	return n, err
}

// narrowing stands in for the convertor and the defaulter of one request. Upstream applies a
// patch in this order, again whenever another write came between: it converts the stored
// object to the version of the patch, makes the map and the new object, and gives that its
// defaults. All of it happens on one goroutine.
type narrowing struct {
	runtime.ObjectConvertor
	runtime.ObjectDefaulter
	version schema.GroupVersion
	body    *copied

	decoded bool
	patch   map[string]any // nil if the object is not narrowed
	whole   runtime.Object // of the object that has been narrowed last, until it is put back
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (n *narrowing) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	n.whole = nil
	out, err := n.ObjectConvertor.ConvertToVersion(in, target)
	if err != nil || target != runtime.GroupVersioner(n.version) || !n.applies(out) {
		return out, err
	}
	n.whole = out.DeepCopyObject() // upstream's map shares no memory with the stored object
	narrowed := reflect.New(reflect.TypeOf(out).Elem())
	narrowed.Elem().Set(reflect.ValueOf(out).Elem())
	narrow(narrowed.Elem(), n.patch)
	return narrowed.Interface().(runtime.Object), nil
}

// applies says whether the patch is about to be applied to obj, and can be looked at. Samples
// of the kind, which upstream converts too, have no UID.
func (n *narrowing) applies(obj runtime.Object) bool {
	if !isStored(obj) || !isStruct(obj) {
		return false
	}
	if !n.decoded {
		n.decoded = true
		if data := n.body.data.Bytes(); len(data) <= maxNarrowed {
			n.patch = decodePatch(data)
		}
	}
	return n.patch != nil
}

// decodePatch returns a patch as a map, nil if it is none; upstream says so.
func decodePatch(data []byte) map[string]any {
	var patch map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &patch); err != nil {
		return nil
	}
	return patch
}

// isStored reports whether obj is stored. Samples of the kind, and what is to be created, have
// no UID.
func isStored(obj runtime.Object) bool {
	accessor, err := meta.Accessor(obj)
	return err == nil && accessor.GetUID() != ""
}

func isStruct(obj runtime.Object) bool {
	t := reflect.TypeOf(obj)
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// Default implements runtime.ObjectDefaulter.
func (n *narrowing) Default(obj runtime.Object) {
	if n.whole != nil && reflect.TypeOf(obj) == reflect.TypeOf(n.whole) {
		restore(reflect.ValueOf(obj).Elem(), reflect.ValueOf(n.whole).Elem(), n.patch)
		n.whole = nil
	}
	n.ObjectDefaulter.Default(obj)
}

// narrow makes those fields of a struct empty that patch does not touch.
func narrow(v reflect.Value, patch map[string]any) {
	each(v.Type(), patch, func(i int, touched bool, below map[string]any) {
		switch {
		case !touched:
			v.Field(i).SetZero()
		case below != nil:
			narrow(v.Field(i), below)
		}
	})
}

// restore gives to those fields of a struct that patch does not touch what they are in whole.
func restore(v, whole reflect.Value, patch map[string]any) {
	each(v.Type(), patch, func(i int, touched bool, below map[string]any) {
		switch {
		case !touched:
			v.Field(i).Set(whole.Field(i))
		case below != nil:
			restore(v.Field(i), whole.Field(i), below)
		}
	})
}

// each calls fn for the fields of a struct that have a name of their own in JSON, with whether
// patch touches them, and if they are structs of which it touches some fields, with what it
// says of these.
func each(t reflect.Type, patch map[string]any, fn func(i int, touched bool, below map[string]any)) {
	for key := range patch {
		if strings.HasPrefix(key, "$") {
			return
		}
	}
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		to, touched := patch[name]
		below, _ := to.(map[string]any)
		if below != nil && (t.Field(i).Type.Kind() != reflect.Struct || value.TypeReflectEntryOf(t.Field(i).Type).CanConvertToUnstructured()) {
			below = nil
		}
		fn(i, touched, below)
	}
}
