package servedjson

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Encoded is the JSON of an object without a Go type.
type Encoded struct {
	// Data is what encoding/json writes.
	Data []byte
	// Same says that decoding Data makes the same values again: there is no number with a
	// fraction of 0, which becomes an integer, and no text that is not UTF-8.
	Same bool
}

// Encode encodes an object as encoding/json does. It returns false if there are values of
// other types than decoding makes, or if the object is nested too deep. size is about how long
// Data will be.
func Encode(object map[string]any, size int) (Encoded, bool) {
	e := encoder{same: true, dst: make([]byte, 0, size)}
	if object == nil || !e.object(object) {
		return Encoded{}, false
	}
	return Encoded{Data: e.dst, Same: e.same}, true
}

type member struct {
	key   string
	value any
}

// encoder appends values to dst. Its methods report false for values that it does not know.
type encoder struct {
	dst   []byte
	room  []member // of the objects that are being written
	depth int
	same  bool
}

func (e *encoder) object(m map[string]any) bool {
	if e.depth++; e.depth > maxDepth {
		return false
	}
	first := len(e.room)
	for key, value := range m {
		e.room = append(e.room, member{key, value})
	}
	members := e.room[first:]
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	e.dst = append(e.dst, '{')
	for i := range members {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		e.text(members[i].key)
		e.dst = append(e.dst, ':')
		if !e.value(members[i].value) {
			return false
		}
	}
	e.dst = append(e.dst, '}')
	clear(members)
	e.room = e.room[:first]
	e.depth--
	return true
}

func (e *encoder) list(l []any) bool {
	if e.depth++; e.depth > maxDepth {
		return false
	}
	e.dst = append(e.dst, '[')
	for i, item := range l {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		if !e.value(item) {
			return false
		}
	}
	e.dst = append(e.dst, ']')
	e.depth--
	return true
}

func (e *encoder) value(v any) bool {
	switch v := v.(type) {
	case string:
		e.text(v)
	case map[string]any:
		return v != nil && e.object(v)
	case []any:
		return v != nil && e.list(v)
	case int64:
		e.dst = strconv.AppendInt(e.dst, v, 10)
	case float64:
		return e.float(v)
	case bool:
		e.dst = strconv.AppendBool(e.dst, v)
	case nil:
		e.dst = append(e.dst, "null"...)
	default:
		return false
	}
	return true
}

func (e *encoder) float(f float64) bool {
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return false
	}
	from := len(e.dst)
	e.dst = appendFloat(e.dst, f)
	e.same = e.same && bytes.ContainsAny(e.dst[from:], ".e")
	return true
}

// text appends a string. What is written between two escapes is appended at once.
func (e *encoder) text(s string) {
	e.dst = append(e.dst, '"')
	from, at := 0, 0
	for at < len(s) {
		if at+8 <= len(s) && allPlain(uint64(s[at])|uint64(s[at+1])<<8|uint64(s[at+2])<<16|uint64(s[at+3])<<24|
			uint64(s[at+4])<<32|uint64(s[at+5])<<40|uint64(s[at+6])<<48|uint64(s[at+7])<<56) {
			at += 8
			continue
		}
		c := s[at]
		if isPlain(c) {
			at++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeRuneInString(s[at:])
			if (r != utf8.RuneError || size > 1) && r != '\u2028' && r != '\u2029' {
				at += size
				continue
			}
			e.same = e.same && r != utf8.RuneError
		}
		e.dst = appendEscape(append(e.dst, s[from:at]...), s[at:at+size])
		at += size
		from = at
	}
	e.dst = append(append(e.dst, s[from:]...), '"')
}

// appendEscape appends what encoding/json writes for a character that it escapes.
func appendEscape(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	switch c := s[0]; c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	default:
		switch {
		case c < utf8.RuneSelf:
			return append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		case len(s) == 3:
			return append(dst, '\\', 'u', '2', '0', '2', digits[s[2]&15])
		}
		return append(dst, `\ufffd`...)
	}
}

// appendFloat appends f as encoding/json writes it.
func appendFloat(dst []byte, f float64) []byte {
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	if n := len(dst); format == 'e' && n >= 4 && dst[n-4] == 'e' && dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1] // e-09 is written as e-9
		dst = dst[:n-1]
	}
	return dst
}
