package table

import (
	"reflect"
	"time"
)

// timeFinder finds the times in objects of one type, so that they can be moved. It
// is immutable and looks at nothing that cannot hold one.
type timeFinder struct {
	holds map[reflect.Type]bool // whether a time can be reached from a value of the type
}

// newTimeFinder returns the finder for objects that root points to.
func newTimeFinder(root any) *timeFinder {
	parts := map[reflect.Type][]reflect.Type{}
	var visit func(reflect.Type)
	visit = func(t reflect.Type) {
		if _, ok := parts[t]; ok {
			return
		}
		parts[t] = partsOf(t)
		for _, part := range parts[t] {
			visit(part)
		}
	}
	visit(reflect.TypeOf(root))
	f := &timeFinder{holds: map[reflect.Type]bool{reflect.TypeFor[time.Time](): true}}
	for grew := true; grew; { // types refer to each other in circles
		grew = false
		for t, inside := range parts {
			for _, part := range inside {
				if !f.holds[t] && (f.holds[part] || part.Kind() == reflect.Interface) {
					f.holds[t], grew = true, true
				}
			}
		}
	}
	return f
}

// partsOf lists the types that values of t are made of.
func partsOf(t reflect.Type) []reflect.Type {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return []reflect.Type{t.Elem()}
	case reflect.Map:
		return []reflect.Type{t.Key(), t.Elem()}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return nil
		}
		var parts []reflect.Type
		for i := range t.NumField() {
			parts = append(parts, t.Field(i).Type)
		}
		return parts
	}
	return nil
}

// find appends the times in v, but for zero ones, to dst. It returns false if there
// may be some that cannot be moved: in maps, interfaces and unexported fields.
func (f *timeFinder) find(v reflect.Value, dst []*time.Time) ([]*time.Time, bool) {
	switch t := v.Type(); {
	case t.Kind() == reflect.Interface:
		return dst, v.IsNil()
	case !f.holds[t]:
		return dst, true
	case t == reflect.TypeFor[time.Time]():
		if !v.CanAddr() || !v.CanInterface() {
			return dst, false
		}
		if at := v.Addr().Interface().(*time.Time); !at.IsZero() {
			dst = append(dst, at)
		}
		return dst, true
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return dst, true
		}
		return f.find(v.Elem(), dst)
	case reflect.Slice, reflect.Array:
		return f.findEach(v.Len(), v.Index, dst)
	case reflect.Struct:
		return f.findEach(v.NumField(), v.Field, dst)
	default:
		return dst, v.Len() == 0 // a map
	}
}

// findEach is find for each of n parts.
func (f *timeFinder) findEach(n int, part func(int) reflect.Value, dst []*time.Time) ([]*time.Time, bool) {
	all := true
	for i := range n {
		var ok bool
		dst, ok = f.find(part(i), dst)
		all = all && ok
	}
	return dst, all
}
