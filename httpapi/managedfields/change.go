package managedfields

import (
	"encoding/binary"
	"reflect"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// appendChange appends a description of how r differs from l, two values of the type. The description
// omits equal parts, has the outline of parts that only one value has, and marks parts that differ. Two
// pairs with the same description have the same fields added, modified and removed. The last result is
// false if the values cannot be described.
func (s *schemaType) appendChange(dst []byte, l, r reflect.Value, ids *identifiers) ([]byte, bool) {
	for l.Kind() == reflect.Pointer {
		if l.IsNil() || r.IsNil() {
			return s.appendBoth(dst, l, r, ids)
		}
		l, r, dst = l.Elem(), r.Elem(), append(dst, '*')
	}
	switch s.kind {
	case kindScalar:
		return appendLeafChange(dst, l, r)
	case kindConverted:
		return s.appendConvertedChange(dst, l, r)
	case kindStruct:
		return s.appendFieldChanges(dst, l, r, ids)
	case kindMap:
		return s.appendMapChanges(dst, l, r, ids)
	case kindSet:
		return s.appendBoth(dst, l, r, ids)
	case kindItems:
		return s.appendItemChanges(dst, l, r, ids)
	}
	return dst, false
}

// appendBoth appends the outlines of both values.
func (s *schemaType) appendBoth(dst []byte, l, r reflect.Value, ids *identifiers) ([]byte, bool) {
	dst, ok := s.appendOutline(append(dst, '-'), l, ids)
	if !ok {
		return dst, false
	}
	return s.appendOutline(append(dst, '+'), r, ids)
}

// appendLeafChange describes values that are compared as a whole. Lists and maps that are not deeply
// equal may still be equal to the field manager: an empty list inside equals a missing one.
func appendLeafChange(dst []byte, l, r reflect.Value) ([]byte, bool) {
	changed := byte('m')
	switch l.Kind() {
	case reflect.Slice, reflect.Map:
		if !l.CanAddr() || !r.CanAddr() {
			return dst, false
		}
		before, err := value.NewValueReflect(l.Addr().Interface())
		if err != nil {
			return dst, false
		}
		after, err := value.NewValueReflect(r.Addr().Interface())
		if err != nil {
			return dst, false
		}
		if value.Equals(before, after) {
			changed = '='
		}
	}
	return appendLeaf(appendLeaf(append(dst, changed), l), r), true
}

// appendConvertedChange describes times and quantities, which differ if their encodings do.
func (s *schemaType) appendConvertedChange(dst []byte, l, r reflect.Value) ([]byte, bool) {
	before, err := value.TypeReflectEntryOf(l.Type()).ToUnstructured(l)
	if err != nil || before != nil && !reflect.TypeOf(before).Comparable() {
		return dst, false
	}
	after, err := value.TypeReflectEntryOf(r.Type()).ToUnstructured(r)
	if err != nil || after != nil && !reflect.TypeOf(after).Comparable() {
		return dst, false
	}
	changed := byte('m')
	if before == after {
		changed = '='
	}
	dst, ok := s.appendConverted(append(dst, changed), l)
	if !ok {
		return dst, false
	}
	return s.appendConverted(dst, r)
}

func (s *schemaType) appendFieldChanges(dst []byte, l, r reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = append(dst, '{')
	for i := range s.fields {
		f := &s.fields[i]
		before, after := f.entry.GetFrom(l), f.entry.GetFrom(r)
		if equal(before, after) {
			continue
		}
		switch without, with := f.entry.CanOmit(before), f.entry.CanOmit(after); {
		case without && with:
			continue
		case !f.declared:
			return dst, false
		case without:
			dst, ok = f.appendOutline(append(binary.AppendUvarint(dst, uint64(i)), '+'), after, ids)
		case with:
			dst, ok = f.appendOutline(append(binary.AppendUvarint(dst, uint64(i)), '-'), before, ids)
		default:
			dst, ok = f.appendChange(append(binary.AppendUvarint(dst, uint64(i)), '~'), before, after, ids)
		}
		if !ok {
			return dst, false
		}
	}
	return append(dst, 0xff, 0xff, '}'), true
}

// equal reports whether two values of one type are deeply equal.
func equal(l, r reflect.Value) bool {
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
	if l.CanAddr() && r.CanAddr() { // Interface would copy a struct
		return reflect.DeepEqual(l.Addr().Interface(), r.Addr().Interface())
	}
	return reflect.DeepEqual(l.Interface(), r.Interface())
}

func (s *schemaType) appendMapChanges(dst []byte, l, r reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = appendLeaf(appendLeaf(append(dst, '['), l), r)
	keys := make([]string, 0, l.Len()+r.Len())
	for _, m := range []reflect.Value{l, r} {
		for items := m.MapRange(); items.Next(); {
			keys = append(keys, items.Key().String())
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		at := reflect.ValueOf(key).Convert(l.Type().Key())
		before, after := l.MapIndex(at), r.MapIndex(at)
		switch {
		case !before.IsValid():
			dst, ok = s.items.appendOutline(appendText(append(dst, '+'), key), after, ids)
		case !after.IsValid():
			dst, ok = s.items.appendOutline(appendText(append(dst, '-'), key), before, ids)
		case equal(before, after):
			continue
		default:
			dst, ok = s.items.appendChange(appendText(append(dst, '~'), key), before, after, ids)
		}
		if !ok {
			return dst, false
		}
	}
	return append(dst, ']'), true
}

// appendItemChanges describes lists whose items have keys. It fails if a key is missing or repeated.
func (s *schemaType) appendItemChanges(dst []byte, l, r reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = appendLeaf(appendLeaf(append(dst, '('), l), r)
	before, ok := s.itemsByKey(l, ids)
	if !ok {
		return dst, false
	}
	after, ok := s.itemsByKey(r, ids)
	if !ok {
		return dst, false
	}
	for i := range r.Len() {
		item := r.Index(i)
		key, _ := s.itemKey(item, ids)
		at, found := before[key]
		switch {
		case !found:
			dst, ok = s.items.appendOutline(appendText(append(dst, '+'), key), item, ids)
		case equal(l.Index(at), item):
			continue
		default:
			dst, ok = s.items.appendChange(appendText(append(dst, '~'), key), l.Index(at), item, ids)
		}
		if !ok {
			return dst, false
		}
	}
	for i := range l.Len() {
		item := l.Index(i)
		key, _ := s.itemKey(item, ids)
		if _, found := after[key]; found {
			continue
		}
		if dst, ok = s.items.appendOutline(appendText(append(dst, '-'), key), item, ids); !ok {
			return dst, false
		}
	}
	return append(dst, ')'), true
}

// itemsByKey returns the indexes of the items of a list, by key.
func (s *schemaType) itemsByKey(list reflect.Value, ids *identifiers) (map[string]int, bool) {
	found := make(map[string]int, list.Len())
	for i := range list.Len() {
		key, ok := s.itemKey(list.Index(i), ids)
		if _, twice := found[key]; twice || !ok {
			return nil, false
		}
		found[key] = i
	}
	return found, true
}

// itemKey returns the key of an item. It fails if a key field is omitted: its value is then the default
// of the schema.
func (s *schemaType) itemKey(item reflect.Value, ids *identifiers) (string, bool) {
	var space [64]byte
	key := space[:0]
	for _, entry := range s.keys {
		field := entry.GetFrom(item)
		if entry.CanOmit(field) || field.Kind() == reflect.Pointer && field.IsNil() {
			return "", false
		}
		key = s.appendItemKey(key, entry, field, ids)
	}
	return string(key), true
}
