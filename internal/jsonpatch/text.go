package jsonpatch

import "encoding/json"

// text is valid JSON with what is needed to look into any part of it without reading
// the parts inside: where each container ends. Containers are numbered as they begin.
type text struct {
	data []byte
	ends []end
}

// end tells of a container where the byte behind it is, and the number of the next
// container behind it.
type end struct{ at, next int32 }

// newText reads data once. Texts of 2 GiB or more are none that a server takes.
func newText(data []byte) *text {
	t := &text{data: data}
	var open []int32
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = t.afterString(i) - 1
		case '{', '[':
			open = append(open, int32(len(t.ends)))
			t.ends = append(t.ends, end{})
		case '}', ']':
			last := len(open) - 1
			t.ends[open[last]] = end{at: int32(i + 1), next: int32(len(t.ends))}
			open = open[:last]
		}
	}
	return t
}

// root is the whole text as a value.
func (t *text) root() *value {
	v, _, _ := t.value(t.skipSpace(0), 0)
	return v
}

// open gives out what is directly in the container v.
func (t *text) open(v *value, give func(key string, member *value)) {
	isObject := t.data[v.from] == '{'
	number := v.number + 1
	at := t.skipSpace(int(v.from) + 1)
	for t.data[at] != '}' && t.data[at] != ']' {
		key := ""
		if isObject {
			after := t.afterString(at)
			key = decodeKey(t.data[at:after])
			at = t.skipSpace(t.skipSpace(after) + 1) // the colon
		}
		var member *value
		member, at, number = t.value(at, number)
		give(key, member)
		if at = t.skipSpace(at); t.data[at] == ',' {
			at = t.skipSpace(at + 1)
		}
	}
}

// value returns the value at a place, where it ends and the number of the next container
// there. number is that of the first container at the place or behind it.
func (t *text) value(at int, number int32) (v *value, after int, next int32) {
	switch t.data[at] {
	case 'n':
		return nil, at + len("null"), number
	case '{', '[':
		end := t.ends[number]
		return &value{in: t, from: int32(at), to: end.at, number: number}, int(end.at), end.next
	case '"':
		after = t.afterString(at)
	default:
		after = at
		for after < len(t.data) && isScalar(t.data[after]) {
			after++
		}
	}
	return &value{in: t, from: int32(at), to: int32(after)}, after, number
}

// isScalar reports whether c may be in a number, true or false.
func isScalar(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}

// afterString returns where the string that begins at a quote ends.
func (t *text) afterString(at int) int {
	for at++; t.data[at] != '"'; at++ {
		if t.data[at] == '\\' {
			at++
		}
	}
	return at + 1
}

func (t *text) skipSpace(at int) int {
	for at < len(t.data) && isSpace(t.data[at]) {
		at++
	}
	return at
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// isPlain reports whether c stands for itself in a string, whoever reads or writes it.
func isPlain(c byte) bool {
	return c >= ' ' && c < 0x7f && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

// decodeKey returns what a quoted string says.
func decodeKey(quoted []byte) string {
	for _, c := range quoted[1 : len(quoted)-1] {
		if !isPlain(c) {
			var key string
			_ = json.Unmarshal(quoted, &key) // it is valid
			return key
		}
	}
	return string(quoted[1 : len(quoted)-1])
}

// appendKey quotes a string as encoding/json does.
func appendKey(dst []byte, key string) []byte {
	for i := range len(key) {
		if !isPlain(key[i]) {
			quoted, _ := json.Marshal(key) // no string fails
			return append(dst, quoted...)
		}
	}
	dst = append(append(dst, '"'), key...)
	return append(dst, '"')
}

// appendCompact appends valid JSON without white space, and with those characters escaped
// that encoding/json escapes for HTML and JavaScript.
func appendCompact(dst, src []byte) []byte {
	const hex = "0123456789abcdef"
	start, quoted := 0, false
	for i := 0; i < len(src); i++ {
		c := src[i]
		if isPlain(c) && (c != ' ' || quoted) {
			continue
		}
		switch {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			i++
		case !quoted && isSpace(c):
			dst = append(dst, src[start:i]...)
			start = i + 1
		case c == '<', c == '>', c == '&':
			dst = append(dst, src[start:i]...)
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
			start = i + 1
		case c == 0xe2 && i+2 < len(src) && src[i+1] == 0x80 && src[i+2]&^1 == 0xa8:
			dst = append(dst, src[start:i]...)
			dst = append(dst, '\\', 'u', '2', '0', '2', hex[src[i+2]&0xf])
			i += 2
			start = i + 1
		}
	}
	return append(dst, src[start:]...)
}
