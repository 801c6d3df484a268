package wire

import "encoding/binary"

// Template writes messages that differ in nothing but the contents of some of their fields,
// and in the lengths around them. It is immutable.
type Template struct {
	parts []templatePart
	bytes int // about how much memory it takes
}

// templatePart is some bytes, and a field after them: its length and a content or parts.
type templatePart struct {
	literal []byte
	token   int // the number of the content; or one of those below
	parts   []templatePart
}

const (
	tokenNone    = -1 // nothing follows the bytes
	tokenMessage = -2
)

// NewTemplate makes a Template of msg, whose fields are fields. tokenOf returns the number of
// the content that a field has in place of its own, or reports false for one that stays as it
// is; it is asked only about contents that a [Skeleton] would leave out. It reports false for
// a message that has no Skeleton.
func NewTemplate(msg []byte, fields *Fields, tokenOf func(content []byte) (int, bool)) (*Template, bool) {
	t := new(Template)
	var ok bool
	t.parts, ok = t.message(msg, fields, tokenOf)
	return t, ok
}

func (t *Template) message(msg []byte, fields *Fields, tokenOf func([]byte) (int, bool)) (parts []templatePart, ok bool) {
	kept := 0 // from where on bytes are not in parts yet
	add := func(stop, token int, inner []templatePart) {
		const partSize = 56
		parts = append(parts, templatePart{append([]byte(nil), msg[kept:stop]...), token, inner})
		t.bytes += partSize + stop - kept
	}
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return nil, false
		}
		layout := fields.of(f)
		if at = f.stop; layout == nil {
			continue
		}
		content := msg[f.body:f.stop]
		tag := f.start + sizeVarint(f.number<<3|f.kind)
		if f.kind != wireLen || f.body != tag+sizeVarint(len(content)) {
			return nil, false
		}
		token, inner := tokenMessage, []templatePart(nil)
		if layout.Role == Message {
			inner, ok = t.message(content, &layout.Fields, tokenOf)
			if !ok {
				return nil, false
			}
		} else if !layout.Role.leavesOut(content) {
			continue
		} else if token, ok = tokenOf(content); !ok {
			continue
		}
		add(tag, token, inner)
		kept = f.stop
	}
	add(len(msg), tokenNone, nil)
	return parts, true
}

// Size is about how much memory t takes.
func (t *Template) Size() int { return t.bytes }

// Write returns a message with these contents, in a slice of its own.
func (t *Template) Write(contents [][]byte) []byte {
	msg := make([]byte, sizeOfParts(t.parts, contents))
	writeParts(msg, t.parts, contents)
	return msg
}

func sizeOfParts(parts []templatePart, contents [][]byte) int {
	size := 0
	for i := range parts {
		p := &parts[i]
		size += len(p.literal)
		switch p.token {
		case tokenNone:
		case tokenMessage:
			n := sizeOfParts(p.parts, contents)
			size += sizeVarint(n) + n
		default:
			n := len(contents[p.token])
			size += sizeVarint(n) + n
		}
	}
	return size
}

// writeParts writes parts to the end of msg, the last first, because a length is known once
// what it stands before has been written. It returns where they begin.
func writeParts(msg []byte, parts []templatePart, contents [][]byte) int {
	at := len(msg)
	for i := len(parts) - 1; i >= 0; i-- {
		p := &parts[i]
		stop := at
		switch p.token {
		case tokenNone:
		case tokenMessage:
			at = writeParts(msg[:at], p.parts, contents)
			at = writeLength(msg, at, stop-at)
		default:
			content := contents[p.token]
			at -= len(content)
			copy(msg[at:], content)
			at = writeLength(msg, at, len(content))
		}
		at -= len(p.literal)
		copy(msg[at:], p.literal)
	}
	return at
}

// writeLength writes a length before msg[at:], and returns where it begins.
func writeLength(msg []byte, at, length int) int {
	at -= sizeVarint(length)
	binary.PutUvarint(msg[at:], uint64(length))
	return at
}
