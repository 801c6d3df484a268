package managedfields

import (
	"reflect"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// exceptions finds what an object of a Go type can hold although its schema forbids it, and
// nothing else: items of lists that leave out all fields by which the list is keyed, null
// items, and fields of features that are switched off, which the schema does not name.
//
// The exceptions of a type refer to those of the types of its fields, and so in a circle where
// types do.
type exceptions struct {
	any        bool // there are some; else nothing needs to be looked at
	unknown    bool // the schema does not say what the type is
	undeclared []*value.FieldCacheEntry
	fields     []fieldExceptions
	items      *exceptions // of a list, or of a map that is no struct
	keyed      bool        // the list may hold no null items
	keys       []*value.FieldCacheEntry
}

type fieldExceptions struct {
	entry *value.FieldCacheEntry
	*exceptions
}

// survey finds the exceptions of Go types under a schema.
type survey struct {
	schema *schema.Schema
	seen   map[surveyed]*exceptions
}

type surveyed struct {
	goType reflect.Type
	named  string // "" for inlined types, which are in no circles
}

// exceptionsOf returns the exceptions of t, whose schema ref is.
func exceptionsOf(s *schema.Schema, t reflect.Type, ref schema.TypeRef) *exceptions {
	by := &survey{schema: s, seen: make(map[surveyed]*exceptions)}
	found := by.of(t, ref)
	for again := true; again; { // what refers to exceptions has some
		again = false
		for _, e := range by.seen {
			if !e.any && e.refers() {
				e.any, again = true, true
			}
		}
	}
	return found
}

// refers says whether e has exceptions of its own or refers to some.
func (e *exceptions) refers() bool {
	if e.unknown || len(e.undeclared) > 0 || len(e.keys) > 0 || e.keyed || e.items != nil && e.items.any {
		return true
	}
	for _, f := range e.fields {
		if f.any {
			return true
		}
	}
	return false
}

func (s *survey) of(t reflect.Type, ref schema.TypeRef) *exceptions {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	at := surveyed{goType: t}
	if ref.NamedType != nil {
		at.named = *ref.NamedType
	}
	if e, ok := s.seen[at]; ok && at.named != "" {
		return e
	}
	e := &exceptions{}
	if at.named == "" {
		at.named = string(rune(len(s.seen))) // inlined types are not shared
	}
	s.seen[at] = e
	atom, ok := s.schema.Resolve(ref)
	switch {
	case !ok:
		e.unknown = true
	case value.TypeReflectEntryOf(t).CanConvertToUnstructured():
		// A time or a quantity is a scalar, and a document is of any shape.
	case t.Kind() == reflect.Struct && atom.Map != nil:
		s.fields(e, t, atom.Map)
	case t.Kind() == reflect.Map && atom.Map != nil:
		e.items = s.of(t.Elem(), atom.Map.ElementType)
	case t.Kind() == reflect.Slice && atom.List != nil:
		s.list(e, t.Elem(), atom.List)
	}
	return e
}

func (s *survey) fields(e *exceptions, t reflect.Type, m *schema.Map) {
	open := m.ElementType != schema.TypeRef{}
	for _, entry := range value.TypeReflectEntryOf(t).OrderedFields() {
		ref := m.ElementType
		field, declared := m.FindField(entry.JsonName)
		if declared {
			ref = field.Type
		} else if !open {
			e.undeclared = append(e.undeclared, entry)
			continue
		}
		e.fields = append(e.fields, fieldExceptions{entry, s.of(entry.GetFrom(reflect.New(t).Elem()).Type(), ref)})
	}
}

func (s *survey) list(e *exceptions, item reflect.Type, l *schema.List) {
	e.items = s.of(item, l.ElementType)
	if l.ElementRelationship != schema.Associative {
		return
	}
	e.keyed = item.Kind() == reflect.Pointer
	for item.Kind() == reflect.Pointer {
		item = item.Elem()
	}
	atom, _ := s.schema.Resolve(l.ElementType)
	if item.Kind() != reflect.Struct || atom.Map == nil {
		return
	}
	var keys []*value.FieldCacheEntry
	zero := reflect.New(item).Elem()
	for _, name := range l.Keys {
		entry := value.TypeReflectEntryOf(item).Fields()[name]
		if field, _ := atom.Map.FindField(name); entry == nil || field.Default != nil || !entry.CanOmit(entry.GetFrom(zero)) {
			return // each item has this key
		}
		keys = append(keys, entry)
	}
	e.keys = keys
}

// in says whether v holds something that is an exception.
func (e *exceptions) in(v reflect.Value) bool {
	if !e.any {
		return false
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	if e.unknown {
		return true
	}
	switch v.Kind() {
	case reflect.Struct:
		return e.inStruct(v)
	case reflect.Slice:
		for i := range v.Len() {
			if e.inItem(v.Index(i)) {
				return true
			}
		}
	case reflect.Map:
		for items := v.MapRange(); items.Next(); {
			if e.items.in(items.Value()) {
				return true
			}
		}
	}
	return false
}

func (e *exceptions) inStruct(v reflect.Value) bool {
	for _, entry := range e.undeclared {
		if !entry.CanOmit(entry.GetFrom(v)) {
			return true
		}
	}
	for _, f := range e.fields {
		if f.any && f.in(f.entry.GetFrom(v)) {
			return true
		}
	}
	return false
}

func (e *exceptions) inItem(v reflect.Value) bool {
	if e.keyed && v.Kind() == reflect.Pointer && v.IsNil() {
		return true
	}
	if len(e.keys) > 0 {
		missing := 0
		for _, key := range e.keys {
			if key.CanOmit(key.GetFrom(v)) {
				missing++
			}
		}
		if missing == len(e.keys) {
			return true
		}
	}
	return e.items.in(v)
}
