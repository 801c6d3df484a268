package managedfields

import (
	"encoding/binary"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// appendOutline appends the outline of v, a value of type s: which fields are set, which of them are empty,
// and the keys of maps and list items. Other values, such as an image, are not part of it. Objects with the
// same outline set the same fields. ok is false if v has no outline. Numbers of ids replace identifiers.
//
// Outlines are compared and never parsed. Outlines of one type are equal only if all of their parts are:
//
//	outline   = "n" (nil pointer) | "*" outline | leaf | fields | map | set | items
//	leaf      = "n" (null) | "0" (empty) | "1"
//	fields    = "{" { index outline } endOfFields
//	map       = leaf (no entries) | "[" count { key outline }
//	set       = leaf (no items) | "[" count { item }
//	items     = leaf (no items) | "[" count { keyField { keyField } outline }
func (s *schemaType) appendOutline(dst []byte, v reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return append(dst, 'n'), true
		}
		v, dst = v.Elem(), append(dst, '*')
	}
	switch s.kind {
	case kindScalar:
		return appendLeaf(dst, v), true
	case kindConverted:
		return s.appendConverted(dst, v)
	case kindStruct:
		return s.appendFields(dst, v, ids)
	case kindMap:
		return s.appendMap(dst, v, ids)
	case kindSet, kindItems:
		return s.appendItems(dst, v, ids)
	}
	return dst, false
}

// endOfFields begins with a number that no field index reaches.
const endOfFields = "\xff\xff}"

// appendLeaf appends 'n', '0' or '1' if v is null, empty or neither. The field manager compares v as a whole.
func appendLeaf(dst []byte, v reflect.Value) []byte {
	if v.Kind() != reflect.Slice && v.Kind() != reflect.Map {
		return appendSet(dst, !v.IsZero())
	}
	if v.IsNil() {
		return append(dst, 'n')
	}
	return appendSet(dst, v.Len() > 0)
}

// appendSet appends '0' or '1'.
func appendSet(dst []byte, set bool) []byte {
	if set {
		return append(dst, '1')
	}
	return append(dst, '0')
}

// appendConverted is appendLeaf for a value with its own JSON encoding, such as a quantity. The encoding decides
// whether the value is null or empty. A zero time is empty.
func (s *schemaType) appendConverted(dst []byte, v reflect.Value) ([]byte, bool) {
	switch t := v.Interface().(type) {
	case metav1.Time:
		return appendSet(dst, !t.IsZero()), true
	case metav1.MicroTime:
		return appendSet(dst, !t.IsZero()), true
	}
	encoded, ok := convert(v)
	switch {
	case !ok:
		return dst, false
	case encoded == nil:
		return append(dst, 'n'), true
	}
	return appendSet(dst, encoded != s.empty), true
}

// convert returns the JSON value of v, which has its own encoding. ok is false if there is none, or if it cannot
// be compared by ==.
func convert(v reflect.Value) (encoded any, ok bool) {
	encoded, err := value.TypeReflectEntryOf(v.Type()).ToUnstructured(v)
	return encoded, err == nil && (encoded == nil || reflect.TypeOf(encoded).Comparable())
}

func (s *schemaType) appendFields(dst []byte, v reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = append(dst, '{')
	for i := range s.fields {
		f := &s.fields[i]
		field := f.entry.GetFrom(v)
		if f.entry.CanOmit(field) {
			continue
		}
		if !f.declared {
			return dst, false
		}
		if dst, ok = f.appendOutline(binary.AppendUvarint(dst, uint64(i)), field, ids); !ok {
			return dst, false
		}
	}
	return append(dst, endOfFields...), true
}

func (s *schemaType) appendMap(dst []byte, v reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	if v.Len() == 0 {
		return appendLeaf(dst, v), true
	}
	keys := appendKeys(make([]string, 0, v.Len()), v)
	slices.Sort(keys)
	dst = binary.AppendUvarint(append(dst, '['), uint64(len(keys)))
	for _, key := range keys {
		dst = appendText(dst, key)
		if dst, ok = s.items.appendOutline(dst, v.MapIndex(reflect.ValueOf(key).Convert(v.Type().Key())), ids); !ok {
			return dst, false
		}
	}
	return dst, true
}

// appendKeys appends the keys of a map.
func appendKeys(keys []string, m reflect.Value) []string {
	for items := m.MapRange(); items.Next(); {
		keys = append(keys, items.Key().String())
	}
	return keys
}

func (s *schemaType) appendItems(dst []byte, v reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	if v.Len() == 0 {
		return appendLeaf(dst, v), true
	}
	dst = binary.AppendUvarint(append(dst, '['), uint64(v.Len()))
	for i := range v.Len() {
		item := v.Index(i)
		if s.kind == kindSet {
			dst = appendText(dst, item.String())
			continue
		}
		for _, key := range s.keys {
			dst = s.appendKeyField(dst, key, key.GetFrom(item), ids)
		}
		if dst, ok = s.items.appendOutline(dst, item, ids); !ok {
			return dst, false
		}
	}
	return dst, true
}

// appendKeyField appends v, a field of the key of a list item. A number in place of an identifier follows a 't'.
func (s *schemaType) appendKeyField(dst []byte, key *value.FieldCacheEntry, v reflect.Value, ids *identifiers) []byte {
	if len(s.keys) == 1 && v.Kind() == reflect.String && holdsIdentifiers(key.JsonName) {
		return append(dst, 't', ids.number(v.String()))
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
		return appendSet(dst, v.Bool())
	}
	return binary.AppendVarint(dst, v.Int())
}

func appendText(dst []byte, text string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}
