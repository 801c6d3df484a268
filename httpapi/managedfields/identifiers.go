package managedfields

import (
	"bytes"
	"slices"
	"strings"
)

// identifiers numbers the IP addresses and UIDs that are keys of list items. Nearly every object has its own,
// but managedFields depend only on which of them are equal and how they sort. Keys and results of a [Cache]
// have numbers in place of identifiers, so one result serves writes with other identifiers.
type identifiers struct {
	texts       []string // by number
	keyComplete bool     // the key of the write is complete, and no other identifier gets a number
	refused     bool     // an identifier got no number: the write is not cached
}

// maxIdentifiers is the most that may be numbered: a number is one byte.
const maxIdentifiers = 32

// identifierMark precedes a number in FieldsV1. JSON has no such byte.
const identifierMark = 0

// holdsIdentifiers reports whether the key field of this name holds identifiers.
func holdsIdentifiers(name string) bool { return name == "ip" || name == "uid" }

// number returns the number of an identifier. It rejects text that JSON would escape.
func (ids *identifiers) number(text string) byte {
	if i := slices.Index(ids.texts, text); i >= 0 {
		return byte(i)
	}
	escaped := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != ':' && r != '-'
	}
	if ids.keyComplete || len(ids.texts) == maxIdentifiers || strings.ContainsFunc(text, escaped) {
		ids.refused = true
		return 0
	}
	ids.texts = append(ids.texts, text)
	return byte(len(ids.texts) - 1)
}

// complete appends the numbers in the order of their identifiers to key. After that, no identifier gets a
// number. It returns nil if ok is false, an identifier was refused, or the key is too long.
func (ids *identifiers) complete(key []byte, ok bool) []byte {
	ids.keyComplete = true
	sorted := slices.Sorted(slices.Values(ids.texts))
	for _, text := range sorted {
		key = append(key, byte(slices.Index(ids.texts, text)))
	}
	key = append(key, byte(len(sorted)))
	if !ok || ids.refused || len(key) > maxKey {
		return nil
	}
	return key
}

// appendNumbered appends FieldsV1 with numbers in place of identifiers.
func (ids *identifiers) appendNumbered(dst, fields []byte) []byte {
	if bytes.IndexByte(fields, identifierMark) >= 0 {
		ids.refused = true
		return dst
	}
	for {
		start := -1
		// A field name such as k:{"ip":"192.0.2.1"}, escaped as a JSON string.
		for _, prefix := range [...]string{`"k:{\"ip\":\"`, `"k:{\"uid\":\"`} {
			if i := bytes.Index(fields, []byte(prefix)); i >= 0 && (start < 0 || i+len(prefix) < start) {
				start = i + len(prefix)
			}
		}
		if start < 0 {
			return append(dst, fields...)
		}
		text, rest, ok := bytes.Cut(fields[start:], []byte(`\`))
		if !ok || !bytes.HasPrefix(rest, []byte(`"}"`)) {
			ids.refused = true
			return dst
		}
		dst = append(append(dst, fields[:start]...), identifierMark, ids.number(string(text)))
		fields = fields[start+len(text):]
	}
}

// insert undoes appendNumbered. The result is a copy.
func (ids *identifiers) insert(numbered []byte) []byte {
	size := len(numbered)
	for _, text := range ids.texts {
		size += len(text)
	}
	fields := make([]byte, 0, size)
	for {
		i := bytes.IndexByte(numbered, identifierMark)
		if i < 0 {
			return append(fields, numbered...)
		}
		fields = append(append(fields, numbered[:i]...), ids.texts[numbered[i+1]]...)
		numbered = numbered[i+2:]
	}
}
