package wire

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// Template writes and recognizes messages that differ only in the contents of some fields, and in the
// lengths around them. It is immutable.
type Template struct {
	parts []templatePart
	bytes int // approximate memory
}

// templatePart is some bytes and the field that follows them: its length, and a content or parts.
type templatePart struct {
	literal []byte
	token   int // the number of the content, or a constant below
	role    Role
	parts   []templatePart
}

const (
	tokenNone    = -1 // nothing follows the bytes
	tokenMessage = -2
)

// NewTemplate makes a Template from msg, whose fields are fields. number returns the number of the content
// that replaces a field's content, or false if the field keeps it. It is called only for contents that a
// [Skeleton] leaves out. NewTemplate returns false if msg has no Skeleton.
func NewTemplate(msg []byte, fields *Fields, number func(content []byte, role Role) (int, bool)) (*Template, bool) {
	t := new(Template)
	var ok bool
	t.parts, ok = t.message(msg, fields, number)
	return t, ok
}

// NewPattern makes a Template for [Template.Match] from msg. It returns false if msg has no Skeleton.
func NewPattern(msg []byte, fields *Fields) (*Template, bool) {
	names, few := new(Skeleton), true
	t, ok := NewTemplate(msg, fields, func(content []byte, role Role) (number int, ok bool) {
		if role == Name {
			number = names.name(content)
			few = few && number < maxNames
		}
		return number, true
	})
	return t, ok && few
}

func (t *Template) message(msg []byte, fields *Fields, number func([]byte, Role) (int, bool)) (parts []templatePart, ok bool) {
	kept := 0 // start of the bytes that are not in parts yet
	add := func(stop, token int, role Role, inner []templatePart) {
		const partSize = 64
		parts = append(parts, templatePart{bytes.Clone(msg[kept:stop]), token, role, inner})
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
			inner, ok = t.message(content, &layout.Fields, number)
			if !ok {
				return nil, false
			}
		} else if !layout.Role.leavesOut(content) {
			continue
		} else if token, ok = number(content, layout.Role); !ok {
			continue
		}
		add(tag, token, layout.Role, inner)
		kept = f.stop
	}
	add(len(msg), tokenNone, Kept, nil)
	return parts, true
}

// Size returns the approximate memory of t.
func (t *Template) Size() int { return t.bytes }

// Write returns a new message with these contents.
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

// writeParts writes parts to the end of msg and returns where they begin. It writes the last part first,
// because a length is known once the bytes after it are written.
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

// writeLength writes a length before msg[at:] and returns where it begins.
func writeLength(msg []byte, at, length int) int {
	at -= sizeVarint(length)
	binary.PutUvarint(msg[at:], uint64(length))
	return at
}

// Match reports whether msg has the Skeleton of the message from which [NewPattern] made t. If so, it sets
// the Tokens of s, but not its Bytes. This is much cheaper than making the Skeleton.
func (t *Template) Match(msg []byte, s *Skeleton) bool {
	s.Bytes, s.Tokens, s.names = s.Bytes[:0], s.Tokens[:0], s.names[:0]
	return s.match(msg, t.parts)
}

func (s *Skeleton) match(msg []byte, parts []templatePart) bool {
	for i := range parts {
		p := &parts[i]
		n := len(p.literal)
		if len(msg) < n || string(msg[:n]) != string(p.literal) {
			return false
		}
		msg = msg[n:]
		if p.token == tokenNone {
			return len(msg) == 0
		}
		size, n := binary.Uvarint(msg)
		if n <= 0 || n != protowire.SizeVarint(size) || size > uint64(len(msg)-n) {
			return false
		}
		content := msg[n : n+int(size) : n+int(size)]
		msg = msg[n+int(size):]
		if p.token == tokenMessage {
			if !s.match(content, p.parts) {
				return false
			}
		} else if !s.matchToken(content, p) {
			return false
		}
	}
	return true
}

// matchToken adds a token if it has the role of p and, if it is a Name, equals the same other Names.
func (s *Skeleton) matchToken(content []byte, p *templatePart) bool {
	if !p.role.leavesOut(content) {
		return false
	}
	if p.role == Name {
		if p.token < len(s.names) {
			if !bytes.Equal(content, s.names[p.token]) {
				return false
			}
		} else if s.name(content) != p.token {
			return false
		}
	}
	s.Tokens = append(s.Tokens, Token{content, p.role, p.token})
	return true
}
