package servedjson

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// maxDepth limits the depth of a walk. Deeper objects are decoded.
const maxDepth = 200

// walker walks data. Its methods start at w.at and advance it. They report false if data differs from what
// upstream would write.
type walker struct {
	data  []byte
	at    int
	depth int

	failed bool // an object or a list is malformed
}

// peek returns the next byte, 0 at the end.
func (w *walker) peek() byte {
	if w.at < len(w.data) {
		return w.data[w.at]
	}
	return 0
}

func (w *walker) skip(c byte) bool {
	if w.peek() != c {
		return false
	}
	w.at++
	return true
}

// begins reports whether text comes next.
func (w *walker) begins(text string) bool {
	return len(w.data)-w.at >= len(text) && string(w.data[w.at:w.at+len(text)]) == text
}

// literal skips text.
func (w *walker) literal(text string) bool {
	if !w.begins(text) {
		return false
	}
	w.at += len(text)
	return true
}

// members walks an object. member is called with each key, when w.at is where its value
// begins, and walks the value.
func (w *walker) members(member func(key []byte) bool) bool {
	var last []byte
	for more := w.open('}'); more; more = w.next('}') {
		key, ok := w.key()
		if !ok || last != nil && bytes.Compare(last, key) >= 0 || !member(key) {
			return false
		}
		last = key
	}
	return !w.failed
}

// key walks a key and the colon after it, and returns the unescaped key. encoding/json writes Go's escapes.
func (w *walker) key() ([]byte, bool) {
	from := w.at
	if !w.text() {
		return nil, false
	}
	key := w.data[from+1 : w.at-1]
	if bytes.IndexByte(key, '\\') >= 0 { // as in managed fields, of items of lists
		text, _ := strconv.Unquote(string(w.data[from:w.at])) // never fails for what encoding/json writes
		key = []byte(text)
	}
	return key, w.skip(':')
}

// value walks any value by n.
func (w *walker) value(n *node) bool {
	switch c := w.peek(); c {
	case '"':
		return w.text()
	case '{':
		return w.object(n)
	case '[':
		return w.list(n)
	case 't':
		return w.literal("true")
	case 'f':
		return w.literal("false")
	case 'n':
		return n.nullable && w.literal("null")
	default:
		return w.number()
	}
}

func (w *walker) object(n *node) bool {
	if w.depth++; w.depth > maxDepth {
		return false
	}
	defer func() { w.depth-- }()
	properties := n.properties
	ok := w.members(func(key []byte) bool {
		below, rest, ok := n.member(properties, key)
		properties = rest
		return ok && w.value(below)
	})
	return ok && complete(properties)
}

// member returns the node of the member called key, and the properties after it. Members come in order. member returns
// false if reading would prune the member, or add one before it.
func (n *node) member(properties []property, key []byte) (below *node, rest []property, ok bool) {
	for len(properties) > 0 && properties[0].name <= string(key) {
		p := properties[0]
		properties = properties[1:]
		if p.name == string(key) {
			return p.node, properties, true
		}
		if p.required {
			return nil, nil, false
		}
	}
	return n.others, properties, n.others != nil
}

// complete reports whether none of the properties would be added.
func complete(properties []property) bool {
	return !slices.ContainsFunc(properties, func(p property) bool { return p.required })
}

func (w *walker) list(n *node) bool {
	if w.depth++; w.depth > maxDepth {
		return false
	}
	defer func() { w.depth-- }()
	return w.items(func() bool { return w.value(n.items) })
}

// items walks a list. item walks each item.
func (w *walker) items(item func() bool) bool {
	for more := w.open(']'); more; more = w.next(']') {
		if !item() {
			return false
		}
	}
	return !w.failed
}

// open walks the start of an object or a list that ends with end, and reports whether it is not empty.
func (w *walker) open(end byte) bool {
	if !w.skip(end - 2) { // '{' and '}', '[' and ']'
		w.failed = true
		return false
	}
	return !w.skip(end)
}

// next walks the separator after a member or an item, and reports whether there is another.
func (w *walker) next(end byte) bool {
	if w.skip(',') {
		return true
	}
	w.failed = w.failed || !w.skip(end)
	return false
}

// text walks a string that is written as encoding/json writes it.
func (w *walker) text() bool {
	end := jsontext.StringEnd(w.data, w.at)
	if end < 0 {
		return false
	}
	w.at = end
	return true
}

// number walks a number that is written as encoding/json writes it: an int64, or else a
// float64.
func (w *walker) number() bool {
	n, whole := numberLen(w.data[w.at:])
	text := w.data[w.at : w.at+n]
	w.at += n
	if whole {
		return integer(text)
	}
	return float(text)
}

// numberLen returns the length of the number that s begins with, and whether it has neither a point nor an exponent.
func numberLen[T []byte | string](s T) (n int, whole bool) {
	whole = true
	for ; n < len(s); n++ {
		switch c := s[n]; {
		case c >= '0' && c <= '9' || c == '-':
		case c == '.' || c == 'e' || c == '+':
			whole = false
		default:
			return n, whole
		}
	}
	return n, whole
}

// integer reports whether text is an int64 as encoding/json writes it.
func integer(text []byte) bool {
	n, err := strconv.ParseInt(string(text), 10, 64)
	var room [20]byte
	return err == nil && bytes.Equal(strconv.AppendInt(room[:0], n, 10), text)
}

// float reports whether text, which has a point or an exponent, is a float64 as
// encoding/json writes it.
func float(text []byte) bool {
	f, err := strconv.ParseFloat(string(text), 64)
	var room [32]byte
	return err == nil && bytes.Equal(appendFloat(room[:0], f), text)
}
