package encoding

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// template writes and recognizes messages that differ only in the contents of some fields, and in the lengths around
// them. It is immutable.
type template struct {
	literals []byte // of all parts
	parts    []templatePart
}

// templatePart is some bytes, and the segment that follows them.
type templatePart struct {
	stop   int // of the bytes in literals; they begin where those of the part before end
	kind   segmentKind
	role   role
	number int // of the content of a token
}

// template makes a template of the message that s describes. number returns the number of the content that
// replaces the i-th token, or false if the token does not change.
func (s *skeleton) template(number func(i int, t token) (int, bool)) *template {
	t := &template{parts: make([]templatePart, 0, len(s.segments)+1)}
	kept, next := 0, 0 // the bytes that are not in literals yet, and the next token
	for _, c := range append(s.segments, segment{segmentEnd, len(s.msg), len(s.msg)}) {
		p := templatePart{kind: c.kind}
		if c.kind == segmentToken {
			i := next
			next++
			n, ok := number(i, s.tokens[i])
			if !ok {
				continue
			}
			p.role, p.number = s.tokens[i].role, n
		}
		t.literals = append(t.literals, s.msg[kept:c.start]...)
		kept, p.stop = c.stop, len(t.literals)
		t.parts = append(t.parts, p)
	}
	return t
}

// size returns the approximate memory of t.
func (t *template) size() int {
	const partSize = 32
	return len(t.literals) + partSize*len(t.parts)
}

// literal returns the bytes of the i-th part.
func (t *template) literal(i int) []byte {
	if i == 0 {
		return t.literals[:t.parts[0].stop]
	}
	return t.literals[t.parts[i-1].stop:t.parts[i].stop]
}

// write returns a new message with these contents.
func (t *template) write(contents [][]byte) []byte {
	msg := make([]byte, t.measure(contents))
	var room [16]int
	at, stops := len(msg), room[:0] // ends of the messages around msg[:at]
	for i := len(t.parts) - 1; i >= 0; i-- {
		switch p := &t.parts[i]; p.kind {
		case segmentMessageEnd:
			stops = append(stops, at)
		case segmentMessage: // its length is known once the bytes after it are written
			last := len(stops) - 1
			at = writeLength(msg, at, stops[last]-at)
			stops = stops[:last]
		case segmentToken:
			content := contents[p.number]
			at -= len(content)
			copy(msg[at:], content)
			at = writeLength(msg, at, len(content))
		}
		literal := t.literal(i)
		at -= len(literal)
		copy(msg[at:], literal)
	}
	return msg
}

// measure returns the length of the message with these contents.
func (t *template) measure(contents [][]byte) int {
	var room [16]int
	size, stops := 0, room[:0] // of the bytes behind the messages around the part
	for i := len(t.parts) - 1; i >= 0; i-- {
		switch p := &t.parts[i]; p.kind {
		case segmentMessageEnd:
			stops = append(stops, size)
		case segmentMessage:
			last := len(stops) - 1
			size += protowire.SizeVarint(uint64(size - stops[last]))
			stops = stops[:last]
		case segmentToken:
			size += protowire.SizeBytes(len(contents[p.number]))
		}
		size += len(t.literal(i))
	}
	return size
}

// writeLength writes a length before msg[at:] and returns where it begins.
func writeLength(msg []byte, at, length int) int {
	at -= protowire.SizeVarint(uint64(length))
	binary.PutUvarint(msg[at:], uint64(length))
	return at
}

// match reports whether msg has the skeleton from which t was made. If so, it sets the tokens of s, but not its bytes.
// This is much cheaper than making the skeleton.
func (t *template) match(msg []byte, s *skeleton) bool {
	s.reset()
	var room [16][]byte
	outer := room[:0] // the bytes behind the messages around msg
	for i := range t.parts {
		p, literal := &t.parts[i], t.literal(i)
		if len(msg) < len(literal) || string(msg[:len(literal)]) != string(literal) {
			return false
		}
		msg = msg[len(literal):]
		if p.kind == segmentMessageEnd || p.kind == segmentEnd {
			if len(msg) > 0 {
				return false
			}
			if last := len(outer) - 1; last >= 0 {
				msg, outer = outer[last], outer[:last]
			}
			continue
		}
		size, n := binary.Uvarint(msg)
		if n <= 0 || n != protowire.SizeVarint(size) || size > uint64(len(msg)-n) {
			return false
		}
		stop := n + int(size)
		content, rest := msg[n:stop:stop], msg[stop:]
		if p.kind == segmentMessage {
			outer, msg = append(outer, rest), content
			continue
		}
		if msg = rest; !s.matchToken(content, p) {
			return false
		}
	}
	return true
}

// matchToken adds a token if it has the role of p and, if it is a name, equals the same other names.
func (s *skeleton) matchToken(content []byte, p *templatePart) bool {
	if !p.role.omits(content) {
		return false
	}
	if p.role == nameToken {
		if p.number < len(s.names) {
			if !bytes.Equal(content, s.names[p.number]) {
				return false
			}
		} else if s.name(content) != p.number {
			return false
		}
	}
	s.tokens = append(s.tokens, token{content, p.role, p.number})
	return true
}
