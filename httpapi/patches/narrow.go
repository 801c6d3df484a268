package patches

import (
	"reflect"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

const (
	// maxNarrowed limits the size of a patch that is applied to a part of its object. Larger patches
	// touch most of the object anyway.
	maxNarrowed = 256 << 10

	// minMerged is the stored size from which a JSON merge patch is applied to a part of its object.
	// For smaller objects that saves nothing.
	minMerged = 1 << 10
)

// Most merge patches name few fields of their object: a patch of a pod's status does not name its spec.
// So a merge patch applies to a copy of the object with only the named fields, at the top and in the
// structs below. The other fields are restored before the result gets its defaults. If a directive such
// as "$patch" is among the fields, all fields stay: the directive may apply to any of them.

// Narrows reports whether merge patches may apply to a part of an object of the type of sample. They may
// not if the type holds arbitrary JSON, as a ControllerRevision does. Upstream converts that JSON to a map
// and back, which sorts its keys and rewrites its numbers.
func Narrows(sample runtime.Object) bool {
	return isStruct(sample) && !holdsDocument(reflect.TypeOf(sample), make(map[reflect.Type]bool))
}

// holdsDocument reports whether values of t may hold a document, unless a type in seen does.
func holdsDocument(t reflect.Type, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return holdsDocument(t.Elem(), seen)
	case reflect.Interface: // an unstructured object
		return true
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

func isStruct(obj runtime.Object) bool {
	t := reflect.TypeOf(obj)
	return t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// mayNarrow reports whether the patch, which is decoded, may apply to a part of obj.
func (p *Patch) mayNarrow(obj runtime.Object) bool {
	return p.Target.narrows && p.parsed != nil && len(p.Data) <= maxNarrowed && isStruct(obj)
}

// mergePart applies a JSON merge patch to a part of stored. It returns nil if the patch must apply to the
// whole object. That includes all failures, because upstream's errors contain the whole result.
func (p *Patch) mergePart(stored runtime.Object) runtime.Object {
	t, scope := p.Target, p.Target.scope
	version := scope.Kind.GroupVersion()
	whole, err := scope.UnsafeConvertor.ConvertToVersion(stored, version)
	if err != nil {
		return nil
	}
	if sized, ok := whole.(interface{ Size() int }); !ok || sized.Size() < minMerged || len(p.Data) > maxNarrowed {
		return nil
	}
	if !p.decoded && !isClean(p.Data) {
		return nil // duplicate fields need the strict decoder
	}
	if p.decode(); p.decodeErr != nil || len(p.strictErrs) > 0 || !p.mayNarrow(whole) {
		return nil
	}
	before, err := runtime.Encode(t.encoder, narrowedCopy(whole, p.parsed))
	if err != nil {
		return nil
	}
	after, err := jsonpatch.MergePatch(before, p.Data)
	if err != nil {
		return nil
	}
	patched, kind, err := p.decoder().raw.Decode(after, nil, nil)
	if err != nil || *kind != scope.Kind || reflect.TypeOf(patched) != reflect.TypeOf(whole) {
		return nil
	}
	if _, nested := patched.(runtime.NestedObjectDecoder); nested {
		return nil
	}
	restore(reflect.ValueOf(patched).Elem(), reflect.ValueOf(whole.DeepCopyObject()).Elem(), p.parsed)
	scope.Defaulter.Default(patched)
	merged, err := scope.UnsafeConvertor.ConvertToVersion(patched, scope.HubGroupVersion)
	if err != nil || reflect.TypeOf(merged) != reflect.TypeOf(stored) {
		return nil
	}
	return merged
}

// narrowedCopy returns a shallow copy of obj, a pointer to a struct, with only the fields that patch
// names.
func narrowedCopy(obj runtime.Object, patch map[string]any) runtime.Object {
	narrowed := reflect.New(reflect.TypeOf(obj).Elem())
	narrowed.Elem().Set(reflect.ValueOf(obj).Elem())
	narrow(narrowed.Elem(), patch)
	return narrowed.Interface().(runtime.Object)
}

// narrow clears the fields of a struct that patch does not name.
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

// restore sets the fields of a struct that patch does not name to their values in whole.
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

// each calls fn for every field of a struct that has a name in JSON. touched says whether patch names
// the field; below is the part of patch for a field that is a struct itself.
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
