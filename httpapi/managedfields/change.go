package managedfields

import (
	"encoding/binary"
	"reflect"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// appendChange appends how after differs from before, two values of type s. It omits equal parts of structs,
// maps and lists with keys. Pairs with the same change add, modify and remove the same fields. ok is false if
// the change cannot be described. Numbers of ids replace identifiers.
//
// Changes are compared and never parsed, like outlines:
//
//	change     = "*" change | new | fields | map | items | both
//	new        = ( "=" | "m" (modified) ) leaf leaf
//	fields     = "{" { index difference } endOfFields
//	map        = "[" leaf leaf { "," key difference } "]"
//	items      = "(" leaf leaf { "," key difference } ")"
//	both       = "-" outline "+" outline
//	difference = "+" outline (added) | "-" outline (removed) | "~" change
func (s *schemaType) appendChange(dst []byte, before, after reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	for before.Kind() == reflect.Pointer {
		if before.IsNil() || after.IsNil() {
			return s.appendBoth(dst, before, after, ids)
		}
		before, after, dst = before.Elem(), after.Elem(), append(dst, '*')
	}
	switch s.kind {
	case kindScalar:
		return appendLeafChange(dst, before, after)
	case kindConverted:
		return s.appendConvertedChange(dst, before, after)
	case kindStruct:
		return s.appendFieldChanges(dst, before, after, ids)
	case kindMap:
		return s.appendMapChanges(dst, before, after, ids)
	case kindSet:
		return s.appendBoth(dst, before, after, ids)
	case kindItems:
		return s.appendItemChanges(dst, before, after, ids)
	}
	return dst, false
}

// appendBoth appends the outlines of both values.
func (s *schemaType) appendBoth(dst []byte, before, after reflect.Value, ids *identifiers) ([]byte, bool) {
	dst, ok := s.appendOutline(append(dst, '-'), before, ids)
	if !ok {
		return dst, false
	}
	return s.appendOutline(append(dst, '+'), after, ids)
}

// appendDifference appends how a field, map value or list item of type s differs. One of before and after may be
// absent: the zero reflect.Value.
func (s *schemaType) appendDifference(dst []byte, before, after reflect.Value, ids *identifiers) ([]byte, bool) {
	switch {
	case !before.IsValid():
		return s.appendOutline(append(dst, '+'), after, ids)
	case !after.IsValid():
		return s.appendOutline(append(dst, '-'), before, ids)
	}
	return s.appendChange(append(dst, '~'), before, after, ids)
}

// appendLeafChange describes values that are compared as a whole. The field manager compares lists and maps:
// to it, an empty list inside equals a missing one.
func appendLeafChange(dst []byte, before, after reflect.Value) ([]byte, bool) {
	mark := byte('m')
	switch before.Kind() {
	case reflect.Slice, reflect.Map:
		if !before.CanAddr() || !after.CanAddr() {
			return dst, false
		}
		old, oldErr := value.NewValueReflect(before.Addr().Interface())
		now, nowErr := value.NewValueReflect(after.Addr().Interface())
		if oldErr != nil || nowErr != nil {
			return dst, false
		}
		if value.Equals(old, now) {
			mark = '='
		}
	}
	return appendLeaf(appendLeaf(append(dst, mark), before), after), true
}

// appendConvertedChange describes values with their own JSON encoding, which differ if their encodings do.
func (s *schemaType) appendConvertedChange(dst []byte, before, after reflect.Value) ([]byte, bool) {
	old, oldOK := convert(before)
	now, nowOK := convert(after)
	if !oldOK || !nowOK {
		return dst, false
	}
	mark := byte('m')
	if old == now {
		mark = '='
	}
	dst, _ = s.appendConverted(append(dst, mark), before)
	return s.appendConverted(dst, after)
}

func (s *schemaType) appendFieldChanges(dst []byte, before, after reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = append(dst, '{')
	for i := range s.fields {
		f := &s.fields[i]
		old, now := f.entry.GetFrom(before), f.entry.GetFrom(after)
		if equal(old, now) {
			continue
		}
		switch without, with := f.entry.CanOmit(old), f.entry.CanOmit(now); {
		case without && with:
			continue
		case !f.declared:
			return dst, false
		case without:
			old = reflect.Value{}
		case with:
			now = reflect.Value{}
		}
		if dst, ok = f.appendDifference(binary.AppendUvarint(dst, uint64(i)), old, now, ids); !ok {
			return dst, false
		}
	}
	return append(dst, endOfFields...), true
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

func (s *schemaType) appendMapChanges(dst []byte, before, after reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = appendLeaf(appendLeaf(append(dst, '['), before), after)
	keys := appendKeys(appendKeys(make([]string, 0, before.Len()+after.Len()), before), after)
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		at := reflect.ValueOf(key).Convert(before.Type().Key())
		old, now := before.MapIndex(at), after.MapIndex(at)
		if old.IsValid() && now.IsValid() && equal(old, now) {
			continue
		}
		if dst, ok = s.items.appendDifference(appendText(append(dst, ','), key), old, now, ids); !ok {
			return dst, false
		}
	}
	return append(dst, ']'), true
}

// appendItemChanges describes lists whose items have keys.
func (s *schemaType) appendItemChanges(dst []byte, before, after reflect.Value, ids *identifiers) (_ []byte, ok bool) {
	dst = appendLeaf(appendLeaf(append(dst, '('), before), after)
	oldIndex, oldOK := s.indexByKey(before, ids)
	newIndex, newOK := s.indexByKey(after, ids)
	if !oldOK || !newOK {
		return dst, false
	}
	for i := range after.Len() {
		old, now := reflect.Value{}, after.Index(i)
		key, _ := s.itemKey(now, ids)
		if at, found := oldIndex[key]; found {
			if old = before.Index(at); equal(old, now) {
				continue
			}
		}
		if dst, ok = s.items.appendDifference(appendText(append(dst, ','), key), old, now, ids); !ok {
			return dst, false
		}
	}
	for i := range before.Len() {
		old := before.Index(i)
		key, _ := s.itemKey(old, ids)
		if _, kept := newIndex[key]; kept {
			continue
		}
		if dst, ok = s.items.appendDifference(appendText(append(dst, ','), key), old, reflect.Value{}, ids); !ok {
			return dst, false
		}
	}
	return append(dst, ')'), true
}

// indexByKey returns the index of each item of a list. It fails if a key is missing or repeated.
func (s *schemaType) indexByKey(list reflect.Value, ids *identifiers) (map[string]int, bool) {
	index := make(map[string]int, list.Len())
	for i := range list.Len() {
		key, ok := s.itemKey(list.Index(i), ids)
		if _, twice := index[key]; twice || !ok {
			return nil, false
		}
		index[key] = i
	}
	return index, true
}

// itemKey returns the key of an item. It fails if a key field is omitted, because the default of the schema would
// be the key.
func (s *schemaType) itemKey(item reflect.Value, ids *identifiers) (string, bool) {
	var space [64]byte
	key := space[:0]
	for _, entry := range s.keys {
		field := entry.GetFrom(item)
		if entry.CanOmit(field) || field.Kind() == reflect.Pointer && field.IsNil() {
			return "", false
		}
		key = s.appendKeyField(key, entry, field, ids)
	}
	return string(key), true
}
