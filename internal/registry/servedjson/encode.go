package servedjson

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// Encode encodes an object without a Go type as encoding/json does. ok is false if there are values of other types than
// decoding makes, or if the object is nested too deep. same says that decoding data gives the same object. It is false
// for a float64 without a fraction, which becomes an integer, and for text that is not UTF-8. size is the approximate
// length of data.
func Encode(object map[string]any, size int) (data []byte, same, ok bool) {
	e := encoder{same: true, dst: make([]byte, 0, size)}
	ok = object != nil && e.object(object)
	return e.dst, e.same, ok
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

func (e *encoder) text(s string) {
	e.same = e.same && utf8.ValidString(s)
	e.dst = jsontext.AppendString(e.dst, s)
}

// appendFloat appends f as encoding/json writes it.
func appendFloat(dst []byte, f float64) []byte {
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	if n := len(dst); format == 'e' && dst[n-3] == '-' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1] // e-09 is written as e-9
		dst = dst[:n-1]
	}
	return dst
}
