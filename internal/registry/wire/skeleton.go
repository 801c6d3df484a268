package wire

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// Layout describes how a [Skeleton] treats one field of a message. Fields without a Layout are
// kept unchanged.
type Layout struct {
	Role Role
	// Fields are the parts of a Message, by number.
	Fields Fields
}

// Fields are the Layouts of a message's fields by number. Fields with larger numbers or nil Layouts are
// kept.
type Fields [32]*Layout

// Role is the part of a field that a Skeleton keeps. Only fields with a length have roles.
type Role uint8

// The roles of fields.
const (
	// Kept fields are in the skeleton byte for byte.
	Kept Role = iota
	// Name is any text that is not empty. The skeleton keeps only which of the message's Names are
	// the same.
	Name
	// Opaque is any bytes that are not empty.
	Opaque
	// Time is any Timestamp of whole seconds after 1970, written as upstream writes it. MicroTime is
	// any Timestamp of whole microseconds.
	Time
	MicroTime
	// Message is a message with Fields.
	Message
)

// Token is a content that a skeleton leaves out. Equal Names have the same Number.
type Token struct {
	Content []byte
	Role    Role
	Number  int
}

// Skeleton is a protobuf message without the contents of Names, Opaques and Times. Two messages with the
// same skeleton differ only in these contents, and in the lengths around them. The same Names are equal in
// both. So code that only copies contents, and compares Names with each other, treats both messages alike.
// A Skeleton may be reused.
type Skeleton struct {
	// Bytes are the skeleton, and Tokens the contents that it leaves out, in the order of the message.
	// Contents are parts of the message. Both are valid until the next call of Make.
	Bytes  []byte
	Tokens []Token

	names [][]byte // at most maxNames, each once
}

// maxNames limits the Names of a message, because each is compared with the others.
const maxNames = 256

// Marks are the bytes of a skeleton that are not in the message.
const (
	markEnd   = 0 // ends a nested message; no tag of a field is 0
	markKept  = 0 // follows the tag of a field with a Layout that is kept
	markToken = 1 // follows the tag of a field that is left out; for a Name, its Number is added
)

// Make makes the skeleton of msg, whose fields are fields. It returns false for messages that are malformed,
// have too many Names, or do not write lengths as upstream's encoders do.
func (s *Skeleton) Make(msg []byte, fields *Fields) bool {
	s.Bytes, s.Tokens, s.names = s.Bytes[:0], s.Tokens[:0], s.names[:0]
	return s.message(msg, fields)
}

func (s *Skeleton) message(msg []byte, fields *Fields) bool {
	kept := 0 // from where on fields without a Layout are not in the skeleton yet
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return false
		}
		layout := fields.of(f)
		if at = f.stop; layout == nil {
			continue
		}
		s.Bytes = append(s.Bytes, msg[kept:f.start]...)
		if kept = f.stop; f.kind != wireLen || !s.part(msg, f, layout) {
			return false
		}
	}
	s.Bytes = append(s.Bytes, msg[kept:]...)
	return true
}

// of returns the Layout of a field, or nil.
func (fields *Fields) of(f field) *Layout {
	if f.number >= len(fields) {
		return nil
	}
	return fields[f.number]
}

// part adds a field with a Layout.
func (s *Skeleton) part(msg []byte, f field, layout *Layout) bool {
	content := msg[f.body:f.stop:f.stop]
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
	case !layout.Role.leavesOut(content):
		s.Bytes = append(s.Bytes, markKept)
		s.Bytes = append(s.Bytes, msg[f.start+tag:f.stop]...)
	case layout.Role == Name:
		number := s.name(content)
		if number >= maxNames {
			return false
		}
		s.Tokens = append(s.Tokens, Token{content, Name, number})
		s.Bytes = binary.AppendUvarint(s.Bytes, uint64(markToken+number))
	default:
		s.Tokens = append(s.Tokens, Token{Content: content, Role: layout.Role})
		s.Bytes = append(s.Bytes, markToken)
	}
	return true
}

// leavesOut reports whether the skeleton leaves out content in a field of this role.
func (r Role) leavesOut(content []byte) bool {
	switch r {
	case Name, Opaque:
		return len(content) > 0
	case Time:
		nanos, ok := plainTime(content)
		return ok && nanos == 0
	case MicroTime:
		nanos, ok := plainTime(content)
		return ok && nanos%1000 == 0
	}
	return false
}

// name returns the number of a name. Equal names have the same number.
func (s *Skeleton) name(content []byte) int {
	for i, known := range s.names {
		if bytes.Equal(known, content) {
			return i
		}
	}
	s.names = append(s.names, content)
	return len(s.names) - 1
}

// plainTime reports whether content is a Timestamp after 1970 and before the year 10000, with
// both fields as upstream writes them, and returns its nanoseconds.
func plainTime(content []byte) (nanos uint64, ok bool) {
	const maxSeconds, second = 253402300799, 1_000_000_000
	if len(content) < 4 || content[0] != 1<<3|wireVarint {
		return 0, false
	}
	seconds, n := binary.Uvarint(content[1:])
	if n <= 0 || n != protowire.SizeVarint(seconds) || seconds == 0 || seconds > maxSeconds {
		return 0, false
	}
	rest := content[1+n:]
	if len(rest) < 2 || rest[0] != 2<<3|wireVarint {
		return 0, false
	}
	nanos, n = binary.Uvarint(rest[1:])
	return nanos, n == len(rest)-1 && n == protowire.SizeVarint(nanos) && nanos < second
}
