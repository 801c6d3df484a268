package managedfields

import (
	"encoding/binary"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// shape writes down all of an object that decides which fields it has: which ones are not left
// out, which of them differ from those of an empty object, the keys of maps, and what items of
// lists are known by. Two objects of one shape have the same fields; names, images and other
// values are no part of it.
//
// A shape is of one Go type and its schema. The shapes of types refer to those of the types of
// their fields, and so in a circle where types do.
type shape struct {
	kind   shapeKind
	fields []fieldShape // of a struct
	items  *shape       // of a list that is no leaf, or of a map that is not
	keys   []*value.FieldCacheEntry
	empty  any // what an empty value is converted to
}

type fieldShape struct {
	entry *value.FieldCacheEntry
	*shape
}

type shapeKind uint8

const (
	shapeUnknown   shapeKind = iota // objects that have it are left to upstream
	shapeScalar                     // of Go, or a list or a map that is compared as a whole
	shapeConverted                  // a scalar that is no scalar of Go, a quantity for example
	shapeStruct
	shapeMap
	shapeSet   // a list whose items are known by themselves
	shapeItems // a list whose items are known by keys
)

// shapes finds the shapes of Go types under a schema.
type shapes struct {
	schema *schema.Schema
	seen   map[surveyed]*shape
}

// shapeOf returns the shape of t, whose schema ref is.
func shapeOf(s *schema.Schema, t reflect.Type, ref schema.TypeRef) *shape {
	return (&shapes{schema: s, seen: make(map[surveyed]*shape)}).of(t, ref)
}

func (s *shapes) of(t reflect.Type, ref schema.TypeRef) *shape {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	at := surveyed{goType: t}
	if ref.NamedType != nil {
		at.named = *ref.NamedType
	}
	if known, ok := s.seen[at]; ok && at.named != "" {
		return known
	}
	found := &shape{}
	if at.named != "" {
		s.seen[at] = found
	}
	atom, ok := s.schema.Resolve(ref)
	if !ok {
		return found
	}
	switch {
	case atom.Scalar != nil && value.TypeReflectEntryOf(t).CanConvertToUnstructured():
		ofConverted(found, t)
	case atom.Scalar != nil:
		ofScalar(found, t, atom.Map == nil && atom.List == nil)
	case atom.Map != nil && atom.List == nil:
		s.ofMap(found, t, atom.Map)
	case atom.List != nil && atom.Map == nil:
		s.ofList(found, t, atom.List)
	}
	return found
}

// ofConverted is of a type that is encoded otherwise than by what it consists of. Where its
// schema does not say what it is, a quantity's for example, its values do.
func ofConverted(found *shape, t reflect.Type) {
	empty, err := value.TypeReflectEntryOf(t).ToUnstructured(reflect.New(t).Elem())
	if err == nil && (empty == nil || reflect.TypeOf(empty).Comparable()) {
		found.kind, found.empty = shapeConverted, empty
	}
}

// ofScalar is of a scalar of Go. only says that the schema allows nothing else.
func ofScalar(found *shape, t reflect.Type, only bool) {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Float32, reflect.Float64:
		found.kind = shapeScalar
	case reflect.Slice:
		if only && t.Elem().Kind() == reflect.Uint8 { // a text in base64
			found.kind = shapeScalar
		}
	}
}

func (s *shapes) ofMap(found *shape, t reflect.Type, m *schema.Map) {
	switch {
	case value.TypeReflectEntryOf(t).CanConvertToUnstructured():
	case t.Kind() == reflect.Struct:
		found.kind = shapeStruct
		for _, entry := range value.TypeReflectEntryOf(t).OrderedFields() {
			inner := &shape{}
			if declared, ok := m.FindField(entry.JsonName); ok {
				inner = s.of(entry.GetFrom(reflect.New(t).Elem()).Type(), declared.Type)
			}
			found.fields = append(found.fields, fieldShape{entry, inner})
		}
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && m.ElementRelationship == schema.Atomic:
		found.kind = shapeScalar
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		found.kind, found.items = shapeMap, s.of(t.Elem(), m.ElementType)
	}
}

func (s *shapes) ofList(found *shape, t reflect.Type, l *schema.List) {
	if t.Kind() != reflect.Slice || t.Elem().Kind() == reflect.Uint8 || value.TypeReflectEntryOf(t).CanConvertToUnstructured() {
		return
	}
	if l.ElementRelationship == schema.Atomic {
		found.kind = shapeScalar
		return
	}
	if len(l.Keys) == 0 {
		if t.Elem().Kind() == reflect.String && !value.TypeReflectEntryOf(t.Elem()).CanConvertToUnstructured() {
			found.kind = shapeSet
		}
		return
	}
	if t.Elem().Kind() != reflect.Struct {
		return
	}
	entries := value.TypeReflectEntryOf(t.Elem()).Fields()
	for _, name := range l.Keys {
		entry := entries[name]
		if entry == nil || !keyed(entry.GetFrom(reflect.New(t.Elem()).Elem()).Type()) {
			return
		}
		found.keys = append(found.keys, entry)
	}
	found.kind, found.items = shapeItems, s.of(t.Elem(), l.ElementType)
}

// keyed says whether a field of type t can be written down as a key.
func keyed(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64:
		return !value.TypeReflectEntryOf(t).CanConvertToUnstructured()
	}
	return false
}

// append appends the shape of v to dst, with numbers for tokens if t is not nil. The last result
// is false if it cannot be told.
func (s *shape) append(dst []byte, v reflect.Value, t *tokens) ([]byte, bool) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return append(dst, 'n'), true
		}
		v, dst = v.Elem(), append(dst, '*')
	}
	switch s.kind {
	case shapeScalar:
		return appendLeaf(dst, v), true
	case shapeConverted:
		return s.appendConverted(dst, v)
	case shapeStruct:
		return s.appendFields(dst, v, t)
	case shapeMap:
		return s.appendMap(dst, v, t)
	case shapeSet, shapeItems:
		return s.appendItems(dst, v, t)
	}
	return dst, false
}

// appendLeaf says how what is compared as a whole differs from nothing.
func appendLeaf(dst []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		switch {
		case v.IsNil():
			return append(dst, 'n')
		case v.Len() == 0:
			return append(dst, '0')
		}
		return append(dst, '1')
	}
	if v.IsZero() {
		return append(dst, '0')
	}
	return append(dst, '1')
}

// appendConverted says whether v is converted to nothing, to what an empty value is or to
// something else.
func (s *shape) appendConverted(dst []byte, v reflect.Value) ([]byte, bool) {
	switch t := v.Interface().(type) {
	case metav1.Time:
		return appendLeaf(dst, reflect.ValueOf(!t.IsZero())), true
	case metav1.MicroTime:
		return appendLeaf(dst, reflect.ValueOf(!t.IsZero())), true
	}
	converted, err := value.TypeReflectEntryOf(v.Type()).ToUnstructured(v)
	switch {
	case err != nil || converted != nil && !reflect.TypeOf(converted).Comparable():
		return dst, false
	case converted == nil:
		return append(dst, 'n'), true
	case converted == s.empty:
		return append(dst, '0'), true
	}
	return append(dst, '1'), true
}

func (s *shape) appendFields(dst []byte, v reflect.Value, t *tokens) (_ []byte, ok bool) {
	dst = append(dst, '{')
	for i := range s.fields {
		f := &s.fields[i]
		field := f.entry.GetFrom(v)
		if f.entry.CanOmit(field) {
			continue
		}
		if dst, ok = f.append(binary.AppendUvarint(dst, uint64(i)), field, t); !ok {
			return dst, false
		}
	}
	return append(dst, 0xff, 0xff, '}'), true
}

func (s *shape) appendMap(dst []byte, v reflect.Value, t *tokens) (_ []byte, ok bool) {
	if v.Len() == 0 {
		return appendLeaf(dst, v), true
	}
	keys := make([]string, 0, v.Len())
	for items := v.MapRange(); items.Next(); {
		keys = append(keys, items.Key().String())
	}
	slices.Sort(keys)
	dst = binary.AppendUvarint(append(dst, '['), uint64(len(keys)))
	for _, key := range keys {
		dst = appendText(dst, key)
		if dst, ok = s.items.append(dst, v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())), t); !ok {
			return dst, false
		}
	}
	return dst, true
}

func (s *shape) appendItems(dst []byte, v reflect.Value, t *tokens) (_ []byte, ok bool) {
	if v.Len() == 0 {
		return appendLeaf(dst, v), true
	}
	dst = binary.AppendUvarint(append(dst, '['), uint64(v.Len()))
	for i := range v.Len() {
		item := v.Index(i)
		if s.kind == shapeSet {
			dst = appendText(dst, item.String())
			continue
		}
		for _, key := range s.keys {
			dst = s.appendKey(dst, key, key.GetFrom(item), t)
		}
		if dst, ok = s.items.append(dst, item, t); !ok {
			return dst, false
		}
	}
	return dst, true
}

func (s *shape) appendKey(dst []byte, key *value.FieldCacheEntry, v reflect.Value, t *tokens) []byte {
	if t != nil && len(s.keys) == 1 && v.Kind() == reflect.String && isToken(key.JsonName) {
		return append(dst, 't', t.number(v.String()))
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return append(dst, 'n')
		}
		v, dst = v.Elem(), append(dst, '*')
	}
	switch v.Kind() {
	case reflect.String:
		return appendText(dst, v.String())
	case reflect.Bool:
		if v.Bool() {
			return append(dst, 't')
		}
		return append(dst, 'f')
	}
	return binary.AppendVarint(dst, v.Int())
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}
