package wire

import (
	"bytes"
	"encoding/binary"
)

// Layout says what a [Skeleton] makes of one field of a message. The zero Layout keeps the
// field as it is; so are fields without a Layout.
type Layout struct {
	Role Role
	// Slot, if not 0, has the content reported under this number.
	Slot int
	// Fields are the parts of a Message, by number.
	Fields Fields
}

// Fields are the Layouts of a message's fields; those of larger numbers, and nil
// ones, are kept.
type Fields [32]*Layout

// Role is how much of a field a Skeleton shows.
type Role uint8

// The roles of fields. All but Kept are of fields with a length.
const (
	// Kept fields are in the skeleton byte for byte.
	Kept Role = iota
	// Name stands for any text but the empty one: the skeleton shows only which of
	// the message's Names are the same.
	Name
	// Opaque stands for any bytes but none.
	Opaque
	// Time stands for any Timestamp of whole seconds after 1970, written as upstream
	// writes it.
	Time
	// Message is made of Fields.
	Message
)

// Found is the content of a field with a Slot.
type Found struct {
	Slot    int
	Content []byte
}

// Skeleton is a protobuf message without the contents of Names, Opaques and Times. Two
// messages with the same skeleton differ in nothing but those (Names by a renaming that
// keeps different ones different), and in the lengths around them: code that only copies
// them, and compares Names with each other, treats both messages alike. A Skeleton may be
// used again.
type Skeleton struct {
	// Bytes are the skeleton, and Found the contents with Slots in the order of the
	// message, of which they are parts. Both are valid until the next call of Make.
	Bytes []byte
	Found []Found

	names [][]byte // at most maxNames, each once
}

// maxNames bounds the work that a message can make: names are compared with each
// other.
const maxNames = 256

// Marks of the skeleton. None is a tag of a message, where the others stand.
const (
	markEnd   = 0 // of a message, in a tag's place
	markKept  = 0
	markToken = 1 // and up: the number of a name
)

// Make makes the skeleton of msg, whose fields are fields. It reports false for
// messages that are malformed, have very many names, or write lengths otherwise than
// upstream's encoders do.
func (s *Skeleton) Make(msg []byte, fields *Fields) bool {
	s.Bytes, s.Found, s.names = s.Bytes[:0], s.Found[:0], s.names[:0]
	return s.message(msg, fields)
}

func (s *Skeleton) message(msg []byte, fields *Fields) bool {
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return false
		}
		at = f.stop
		var layout *Layout
		if f.number < len(fields) {
			layout = fields[f.number]
		}
		if layout == nil {
			s.Bytes = append(s.Bytes, msg[f.start:f.stop]...)
			continue
		}
		if f.kind != wireLen || !s.part(msg, f, layout) {
			return false
		}
	}
	return true
}

// part adds a field with a Layout.
func (s *Skeleton) part(msg []byte, f field, layout *Layout) bool {
	content := msg[f.body:f.stop:f.stop]
	if layout.Slot != 0 {
		s.Found = append(s.Found, Found{layout.Slot, content})
	}
	tag := sizeVarint(f.number<<3 | f.kind)
	if f.body-f.start != tag+sizeVarint(len(content)) {
		return false
	}
	s.Bytes = append(s.Bytes, msg[f.start:f.start+tag]...)
	switch {
	case layout.Role == Message:
		if !s.message(content, &layout.Fields) {
			return false
		}
		s.Bytes = append(s.Bytes, markEnd)
	case layout.Role == Name && len(content) > 0:
		number := s.name(content)
		if number >= maxNames {
			return false
		}
		s.Bytes = binary.AppendUvarint(s.Bytes, uint64(markToken+number))
	case layout.Role == Opaque && len(content) > 0, layout.Role == Time && plainTime(content):
		s.Bytes = append(s.Bytes, markToken)
	default:
		s.Bytes = append(s.Bytes, markKept)
		s.Bytes = append(s.Bytes, msg[f.start+tag:f.stop]...)
	}
	return true
}

// name returns the number of a name: that of the first that is equal.
func (s *Skeleton) name(content []byte) int {
	for i, known := range s.names {
		if bytes.Equal(known, content) {
			return i
		}
	}
	s.names = append(s.names, content)
	return len(s.names) - 1
}

// plainTime reports whether content is a Timestamp of seconds only, after 1970 and
// before the year 10000, with both fields as upstream writes them.
func plainTime(content []byte) bool {
	const maxSeconds = 253402300799
	if len(content) < 4 || content[0] != 1<<3|wireVarint || content[len(content)-2] != 2<<3|wireVarint || content[len(content)-1] != 0 {
		return false
	}
	number := content[1 : len(content)-2]
	seconds, n := binary.Uvarint(number)
	return n == len(number) && n == sizeVarint64(seconds) && 0 < seconds && seconds <= maxSeconds
}
