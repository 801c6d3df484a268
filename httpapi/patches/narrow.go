package patches

import (
	"reflect"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

const (
	// maxNarrowed is how many bytes a patch may have to be applied to a part of its object. Larger
	// ones touch most of it anyway.
	maxNarrowed = 256 << 10

	// minMerged is how many bytes an object may have, as it is stored, to be merged as a whole:
	// that costs as much then.
	minMerged = 1 << 10
)

// A merge patch names few fields of its object most of the time: of a pod whose status is patched,
// not its spec and its managedFields. So it is applied to a copy of the object that has only those
// fields that the patch names, at the top and in the structs below; the others are put back before
// the result is given its defaults. Where a patch has a directive, "$patch" for example, the fields
// beside it are all kept, for it may concern any of them.

// Narrows reports whether objects of the type of sample may be narrowed. Those that hold a document
// of any shape, the data of a ControllerRevision for example, have to become maps as a whole: a
// document that went through a map is written otherwise than it came, with sorted keys and other
// numbers.
func Narrows(sample runtime.Object) bool {
	return isStruct(sample) && !holdsDocument(reflect.TypeOf(sample), make(map[reflect.Type]bool))
}

// holdsDocument reports whether values of t may hold a document, unless a type in seen does.
func holdsDocument(t reflect.Type, seen map[reflect.Type]bool) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return holdsDocument(t.Elem(), seen)
	case reflect.Interface: // of an object without a Go type
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

// mayNarrow reports whether the patch, which is decoded, may be applied to a part of obj.
func (p *Patch) mayNarrow(obj runtime.Object) bool {
	return p.Target.narrows && p.parsed != nil && len(p.Data) <= maxNarrowed && isStruct(obj)
}

// mergePart applies a JSON merge patch to a part of stored. It returns nil if the patch is to be
// applied to the whole: where anything is wrong, be it a field that is not known, the whole result is
// part of upstream's error.
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
		return nil // what has a member twice is for the strict reader
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

// narrowedCopy returns a copy of obj, a pointer to a struct, without what patch does not touch. It
// shares memory with obj.
func narrowedCopy(obj runtime.Object, patch map[string]any) runtime.Object {
	narrowed := reflect.New(reflect.TypeOf(obj).Elem())
	narrowed.Elem().Set(reflect.ValueOf(obj).Elem())
	narrow(narrowed.Elem(), patch)
	return narrowed.Interface().(runtime.Object)
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
