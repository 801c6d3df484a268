package jsonpatch

import (
	"encoding/json"
	"slices"
	"strings"
)

// MergePatch applies a merge patch to a document. The result has no white space, the
// members of objects that the patch reaches into are sorted, and what is not replaced or
// removed is as it was written, but for what HTML would take for its own.
func MergePatch(doc, patch []byte) ([]byte, error) {
	if !json.Valid(doc) {
		return nil, ErrBadJSONDoc
	}
	if !json.Valid(patch) {
		return nil, ErrBadJSONPatch
	}
	to, by := newText(doc).root(), newText(patch).root()
	switch {
	case to == nil:
		return nil, ErrBadJSONDoc
	case by == nil:
		return nil, ErrBadJSONPatch
	}
	_, isObject := to.members()
	switch changes, ok := by.members(); {
	case ok && isObject:
		to.merge(changes)
	case ok:
		by.prune()
		to = by
	case by.isArray():
		by.prune()
		to = by
	default:
		return nil, ErrBadJSONPatch
	}
	return to.append(make([]byte, 0, len(doc)+len(patch))), nil
}

// value is a part of a text, or what has become of it. A nil value is null.
type value struct {
	in       *text
	from, to int32 // where it is in the text, without white space around
	number   int32 // of the container that it is, in the text

	opened bool
	object map[string]*value // of an opened object
	array  []*value          // of an opened array
}

func (v *value) isArray() bool { return v.in.data[v.from] == '[' }

// members opens an object. It reports false if v is something else.
func (v *value) members() (map[string]*value, bool) {
	if v.in.data[v.from] != '{' {
		return nil, false
	}
	if !v.opened {
		v.opened, v.object = true, make(map[string]*value)
		v.in.open(v, func(key string, member *value) { v.object[key] = member })
	}
	return v.object, true
}

// elements opens an array.
func (v *value) elements() []*value {
	if !v.opened {
		v.opened = true
		v.in.open(v, func(_ string, element *value) { v.array = append(v.array, element) })
	}
	return v.array
}

// prune removes the members of v that are null, at any depth.
func (v *value) prune() {
	if members, ok := v.members(); ok {
		for key, member := range members {
			if member == nil {
				delete(members, key)
			} else {
				member.prune()
			}
		}
		return
	}
	if !v.isArray() {
		return
	}
	for _, element := range v.elements() {
		if element != nil {
			element.prune()
		}
	}
}

// merge changes the members of the object v.
func (v *value) merge(changes map[string]*value) {
	members, _ := v.members()
	for key, change := range changes {
		if change == nil {
			delete(members, key)
			continue
		}
		member := members[key]
		if member != nil {
			if _, ok := member.members(); ok {
				if deeper, ok := change.members(); ok {
					member.merge(deeper)
				} else {
					members[key] = change // with what is null in it
				}
				continue
			}
		}
		change.prune()
		members[key] = change
	}
}

// append appends v as encoding/json writes it.
func (v *value) append(dst []byte) []byte {
	switch {
	case v == nil:
		return append(dst, "null"...)
	case !v.opened:
		return appendCompact(dst, v.in.data[v.from:v.to])
	case v.isArray():
		return v.appendArray(dst)
	}
	var few [16]string
	keys := few[:0]
	for key := range v.object {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, strings.Compare)
	dst = append(dst, '{')
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendKey(dst, key), ':')
		dst = v.object[key].append(dst)
	}
	return append(dst, '}')
}

func (v *value) appendArray(dst []byte) []byte {
	dst = append(dst, '[')
	for i, element := range v.array {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = element.append(dst)
	}
	return append(dst, ']')
}
