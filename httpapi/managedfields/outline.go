package managedfields

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// appendOutline appends the outline of v to dst: which fields are present, which of them are not empty, the
// keys of maps and the keys of list items, such as the name of a container. Other values, such as an image,
// are not part of it. Two objects with the same outline have the same fields. If ids is not nil,
// identifiers are replaced by their numbers. The last result is false if v has no outline.
func (s *schemaType) appendOutline(dst []byte, v reflect.Value, ids *identifiers) ([]byte, bool) {
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

// endOfFields is no number of a field.
const endOfFields = "\xff\xff}"

// appendLeaf appends 'n', '0' or '1' if v is null, empty or neither. v is a leaf: the field manager does not look
// inside.
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

// appendConverted appends 'n', '0' or '1' if the JSON form of v is null, the empty value of its type, or another.
// A zero time counts as empty.
func (s *schemaType) appendConverted(dst []byte, v reflect.Value) ([]byte, bool) {
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
	keys := make([]string, 0, v.Len())
	for items := v.MapRange(); items.Next(); {
		keys = append(keys, items.Key().String())
	}
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
			dst = s.appendItemKey(dst, key, key.GetFrom(item), ids)
		}
		if dst, ok = s.items.appendOutline(dst, item, ids); !ok {
			return dst, false
		}
	}
	return dst, true
}

func (s *schemaType) appendItemKey(dst []byte, key *value.FieldCacheEntry, v reflect.Value, ids *identifiers) []byte {
	if ids != nil && len(s.keys) == 1 && v.Kind() == reflect.String && isIdentifier(key.JsonName) {
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

// identifiers numbers the item keys that nearly every object has for itself: IP addresses and UIDs.
// managedFields depend only on which of them are equal and how they sort. Cached results have the numbers in
// their place, so one result serves writes with other identifiers. A nil *identifiers replaces nothing.
type identifiers struct {
	texts   []string
	refused bool // an identifier that JSON would escape, or too many of them
}

// maxIdentifiers is the most that may be numbered: a number is one byte.
const maxIdentifiers = 32

// identifierMark precedes a number in fields. JSON has no such byte.
const identifierMark = 0

// isIdentifier reports whether a key field of this name holds identifiers.
func isIdentifier(name string) bool { return name == "ip" || name == "uid" }

func (ids *identifiers) len() int {
	if ids == nil {
		return 0
	}
	return len(ids.texts)
}

// number returns the number of an identifier.
func (ids *identifiers) number(text string) byte {
	if i := slices.Index(ids.texts, text); i >= 0 {
		return byte(i)
	}
	if len(ids.texts) == maxIdentifiers || strings.ContainsFunc(text, needsEscape) {
		ids.refused = true
		return 0
	}
	ids.texts = append(ids.texts, text)
	return byte(len(ids.texts) - 1)
}

func needsEscape(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != ':' && r != '-'
}

// appendOrder appends the order of the identifiers.
func (ids *identifiers) appendOrder(dst []byte) []byte {
	sorted := slices.Sorted(slices.Values(ids.texts))
	for _, text := range sorted {
		dst = append(dst, byte(slices.Index(ids.texts, text)))
	}
	return append(dst, byte(len(sorted)))
}

// identifierPrefixes returns what precedes an identifier in FieldsV1: the beginning of a field name such as
// k:{"ip":"192.0.2.1"}, which is JSON escaped in JSON.
func identifierPrefixes() [2]string { return [2]string{`"k:{\"ip\":\"`, `"k:{\"uid\":\"`} }

// appendNumbered appends fields with numbers in place of identifiers.
func (ids *identifiers) appendNumbered(dst, raw []byte) []byte {
	if ids == nil {
		return append(dst, raw...)
	}
	if bytes.IndexByte(raw, identifierMark) >= 0 {
		ids.refused = true
		return dst
	}
	for {
		start := -1
		for _, s := range identifierPrefixes() {
			if i := bytes.Index(raw, []byte(s)); i >= 0 && (start < 0 || i+len(s) < start) {
				start = i + len(s)
			}
		}
		if start < 0 {
			return append(dst, raw...)
		}
		text, rest, ok := bytes.Cut(raw[start:], []byte(`\`))
		if !ok || !bytes.HasPrefix(rest, []byte(`"}"`)) {
			ids.refused = true
			return dst
		}
		dst = append(append(dst, raw[:start]...), identifierMark, ids.number(string(text)))
		raw = raw[start+len(text):]
	}
}

// insert returns a copy of fields with identifiers in place of their numbers.
func (ids *identifiers) insert(numbered []byte) []byte {
	if ids == nil {
		return bytes.Clone(numbered)
	}
	size := len(numbered)
	for _, text := range ids.texts {
		size += len(text)
	}
	raw := make([]byte, 0, size)
	for {
		i := bytes.IndexByte(numbered, identifierMark)
		if i < 0 {
			return append(raw, numbered...)
		}
		raw = append(append(raw, numbered[:i]...), ids.texts[numbered[i+1]]...)
		numbered = numbered[i+2:]
	}
}

// appendChange appends a description of how r differs from l, two values of the type s. The description
// omits equal parts, gives the outline of parts that only one of them has, and marks parts that differ. Two
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
		key = s.appendItemKey(key, entry, field, ids)
	}
	return string(key), true
}
