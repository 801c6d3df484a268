package managedfields

import (
	"reflect"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// schemaType is a Go type together with its schema: how structured-merge-diff treats the type's values.
// It refers to the types of its fields and items, in cycles where the Go types have cycles. It is
// immutable once [schemaTypeOf] has returned it.
type schemaType struct {
	kind   typeKind
	fields []field     // of a struct
	items  *schemaType // of a list or a map
	keys   []*value.FieldCacheEntry
	empty  any // the result of converting the zero value of a converted scalar

	// The rest describes values that the schema forbids although the Go type allows them.
	exceptional bool // there may be such values, here or below
	// omittable are the keys of a list's items if an item may leave out all of them.
	omittable []*value.FieldCacheEntry
}

// field is a field of a struct. The type is nil if the schema forbids the field.
type field struct {
	*schemaType
	entry    *value.FieldCacheEntry
	declared bool // the schema names the field
}

// typeKind is the way in which the field manager compares values.
type typeKind uint8

const (
	kindUnknown   typeKind = iota // objects that have such a value are left to upstream
	kindScalar                    // a Go scalar, or a list or map that is compared as a whole
	kindConverted                 // a scalar that is not a Go scalar, such as a quantity
	kindStruct
	kindMap
	kindSet   // a list whose items are their own keys
	kindItems // a list whose items have key fields
)

// resolver builds the types that one schema defines.
type resolver struct {
	schema *schema.Schema
	named  map[namedType]*schemaType
	all    []*schemaType
}

type namedType struct {
	goType reflect.Type
	name   string
}

// schemaTypeOf returns the type of t whose schema is ref.
func schemaTypeOf(s *schema.Schema, t reflect.Type, ref schema.TypeRef) *schemaType {
	r := &resolver{schema: s, named: make(map[namedType]*schemaType)}
	found := r.of(t, ref)
	for again := true; again; { // a type is exceptional if one that it refers to is
		again = false
		for _, s := range r.all {
			if !s.exceptional && s.refersToExceptional() {
				s.exceptional, again = true, true
			}
		}
	}
	return found
}

func (s *schemaType) refersToExceptional() bool {
	if len(s.omittable) > 0 || s.items != nil && s.items.exceptional {
		return true
	}
	for _, f := range s.fields {
		if f.schemaType == nil || f.exceptional {
			return true
		}
	}
	return false
}

func (r *resolver) of(t reflect.Type, ref schema.TypeRef) *schemaType {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := &schemaType{}
	if ref.NamedType != nil {
		at := namedType{t, *ref.NamedType}
		if known, ok := r.named[at]; ok {
			return known
		}
		r.named[at] = s
	}
	r.all = append(r.all, s)
	atom, _ := r.schema.Resolve(ref)
	scalar := atom.Scalar != nil
	switch {
	case value.TypeReflectEntryOf(t).CanConvertToUnstructured():
		if scalar {
			s.kind = kindConverted
			s.empty, _ = convert(reflect.New(t).Elem())
		}
	case t.Kind() == reflect.Struct && atom.Map != nil:
		s.kind = kindStruct
		r.setFields(s, t, atom.Map)
	case t.Kind() == reflect.Map && atom.Map != nil:
		s.items = r.of(t.Elem(), atom.Map.ElementType)
		s.kind = kindMap
		if atom.Map.ElementRelationship == schema.Atomic {
			s.kind = kindScalar
		}
	case t.Kind() == reflect.Slice && atom.List != nil:
		r.setItems(s, t.Elem(), atom.List)
	case scalar:
		s.setScalar(t)
	}
	return s
}

// setScalar makes s a Go scalar.
func (s *schemaType) setScalar(t reflect.Type) {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Float32, reflect.Float64,
		reflect.Slice: // of bytes: text in base64
		s.kind = kindScalar
	}
}

func (r *resolver) setFields(s *schemaType, t reflect.Type, m *schema.Map) {
	open := m.ElementType != schema.TypeRef{}
	for _, entry := range value.TypeReflectEntryOf(t).OrderedFields() {
		f, ref := field{entry: entry}, m.ElementType
		declared, ok := m.FindField(entry.JsonName)
		if f.declared = ok; ok {
			ref = declared.Type
		}
		if ok || open {
			f.schemaType = r.of(entry.GetFrom(reflect.New(t).Elem()).Type(), ref)
		}
		s.fields = append(s.fields, f)
	}
}

func (r *resolver) setItems(s *schemaType, item reflect.Type, l *schema.List) {
	s.items = r.of(item, l.ElementType)
	switch {
	case l.ElementRelationship == schema.Associative:
		r.setKeys(s, item, l)
	case l.ElementRelationship == schema.Atomic:
		s.kind = kindScalar
	}
}

// setKeys sets the kind, the keys and the omittable keys of an associative list.
func (r *resolver) setKeys(s *schemaType, item reflect.Type, l *schema.List) {
	if len(l.Keys) == 0 {
		if item.Kind() == reflect.String && !value.TypeReflectEntryOf(item).CanConvertToUnstructured() {
			s.kind = kindSet
		}
		return
	}
	s.kind = kindItems
	atom, _ := r.schema.Resolve(l.ElementType)
	zero, omittable := reflect.New(item).Elem(), true
	for _, name := range l.Keys {
		entry := value.TypeReflectEntryOf(item).Fields()[name]
		declared, _ := atom.Map.FindField(name)
		omittable = omittable && declared.Default == nil && entry.CanOmit(entry.GetFrom(zero))
		s.keys = append(s.keys, entry)
	}
	if omittable {
		s.omittable = s.keys
	}
}

// hasException reports whether v holds something that the schema forbids: an item without any of its
// keys, or a field of a disabled feature.
func (s *schemaType) hasException(v reflect.Value) bool {
	if !s.exceptional {
		return false
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range s.fields {
			f := &s.fields[i]
			if f.schemaType == nil {
				if !f.entry.CanOmit(f.entry.GetFrom(v)) {
					return true
				}
			} else if f.exceptional && f.hasException(f.entry.GetFrom(v)) {
				return true
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if s.isException(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for items := v.MapRange(); items.Next(); {
			if s.items.hasException(items.Value()) {
				return true
			}
		}
	}
	return false
}

// isException reports whether an item of a list is an exception or holds one.
func (s *schemaType) isException(item reflect.Value) bool {
	missing := 0
	for _, key := range s.omittable {
		if key.CanOmit(key.GetFrom(item)) {
			missing++
		}
	}
	return missing > 0 && missing == len(s.omittable) || s.items.hasException(item)
}
