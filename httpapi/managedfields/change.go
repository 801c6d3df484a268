package managedfields

import (
	"encoding/binary"
	"reflect"
	"slices"

	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// appendChange appends to dst what decides which fields differ between l and r, two values of
// one type and both of the shape s: nothing of what is equal, the shapes of what one of them
// lacks, and of the rest that it is not equal. Two pairs of one change have the same fields
// added, modified and removed. The last result is false if it cannot be told.
func (s *shape) appendChange(dst []byte, l, r reflect.Value, t *tokens) ([]byte, bool) {
	for l.Kind() == reflect.Pointer {
		if l.IsNil() || r.IsNil() {
			return s.appendBoth(dst, l, r, t)
		}
		l, r, dst = l.Elem(), r.Elem(), append(dst, '*')
	}
	switch s.kind {
	case shapeScalar:
		return appendLeafChange(dst, l, r)
	case shapeConverted:
		return s.appendConvertedChange(dst, l, r)
	case shapeStruct:
		return s.appendFieldChanges(dst, l, r, t)
	case shapeMap:
		return s.appendMapChanges(dst, l, r, t)
	case shapeSet:
		return s.appendBoth(dst, l, r, t)
	case shapeItems:
		return s.appendItemChanges(dst, l, r, t)
	}
	return dst, false
}

// appendBoth is for values that have nothing in common, or of which all is written down.
func (s *shape) appendBoth(dst []byte, l, r reflect.Value, t *tokens) ([]byte, bool) {
	dst, ok := s.append(append(dst, '-'), l, t)
	if !ok {
		return dst, false
	}
	return s.append(append(dst, '+'), r, t)
}

// appendLeafChange is of what is compared as a whole. Lists and maps that are not deeply equal
// may be equal all the same, with an empty list inside where the other has none.
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

// appendConvertedChange is of times and quantities, which differ if what they are encoded as
// does.
func (s *shape) appendConvertedChange(dst []byte, l, r reflect.Value) ([]byte, bool) {
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

func (s *shape) appendFieldChanges(dst []byte, l, r reflect.Value, t *tokens) (_ []byte, ok bool) {
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
		case without:
			dst, ok = f.append(append(binary.AppendUvarint(dst, uint64(i)), '+'), after, t)
		case with:
			dst, ok = f.append(append(binary.AppendUvarint(dst, uint64(i)), '-'), before, t)
		default:
			dst, ok = f.appendChange(append(binary.AppendUvarint(dst, uint64(i)), '~'), before, after, t)
		}
		if !ok {
			return dst, false
		}
	}
	return append(dst, 0xff, 0xff, '}'), true
}

// equal says whether two values of one type are deeply equal.
func equal(l, r reflect.Value) bool {
	if l.CanAddr() && r.CanAddr() {
		return same(l, r)
	}
	return reflect.DeepEqual(l.Interface(), r.Interface())
}

func (s *shape) appendMapChanges(dst []byte, l, r reflect.Value, t *tokens) (_ []byte, ok bool) {
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
			dst, ok = s.items.append(appendText(append(dst, '+'), key), after, t)
		case !after.IsValid():
			dst, ok = s.items.append(appendText(append(dst, '-'), key), before, t)
		case equal(before, after):
			continue
		default:
			dst, ok = s.items.appendChange(appendText(append(dst, '~'), key), before, after, t)
		}
		if !ok {
			return dst, false
		}
	}
	return append(dst, ']'), true
}

// appendItemChanges is of lists whose items are known by keys, of which none may be left out or
// come twice.
func (s *shape) appendItemChanges(dst []byte, l, r reflect.Value, t *tokens) (_ []byte, ok bool) {
	dst = appendLeaf(appendLeaf(append(dst, '('), l), r)
	before, ok := s.itemsByKey(l, t)
	if !ok {
		return dst, false
	}
	after, ok := s.itemsByKey(r, t)
	if !ok {
		return dst, false
	}
	for i := range r.Len() {
		item := r.Index(i)
		key, _ := s.itemKey(item, t)
		at, found := before[key]
		switch {
		case !found:
			dst, ok = s.items.append(appendText(append(dst, '+'), key), item, t)
		case equal(l.Index(at), item):
			continue
		default:
			dst, ok = s.items.appendChange(appendText(append(dst, '~'), key), l.Index(at), item, t)
		}
		if !ok {
			return dst, false
		}
	}
	for i := range l.Len() {
		item := l.Index(i)
		key, _ := s.itemKey(item, t)
		if _, found := after[key]; found {
			continue
		}
		if dst, ok = s.items.append(appendText(append(dst, '-'), key), item, t); !ok {
			return dst, false
		}
	}
	return append(dst, ')'), true
}

// itemsByKey returns where the items of a list are.
func (s *shape) itemsByKey(list reflect.Value, t *tokens) (map[string]int, bool) {
	found := make(map[string]int, list.Len())
	for i := range list.Len() {
		key, ok := s.itemKey(list.Index(i), t)
		if _, twice := found[key]; twice || !ok {
			return nil, false
		}
		found[key] = i
	}
	return found, true
}

// itemKey returns what an item is known by. A key that is left out has the default of the schema.
func (s *shape) itemKey(item reflect.Value, t *tokens) (string, bool) {
	var space [64]byte
	key := space[:0]
	for _, entry := range s.keys {
		field := entry.GetFrom(item)
		if entry.CanOmit(field) || field.Kind() == reflect.Pointer && field.IsNil() {
			return "", false
		}
		key = s.appendKey(key, entry, field, t)
	}
	return string(key), true
}
