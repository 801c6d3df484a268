package managedfields

import (
	"bytes"
	"slices"
	"strings"
)

// identifiers are the item keys that differ in nearly every object: IP addresses and UIDs. The
// managedFields of a write depend on which identifiers are equal and on their order, but not on their
// text. So cached results have numbers in place of identifiers, and fit writes with other identifiers.
// A nil *identifiers replaces nothing.
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

// identifierPrefixes precede identifiers in fields: JSON whose names are JSON again.
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
