package encoding

import (
	"bytes"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/larder-io/larder/internal/registry/wire"
)

// layout describes how a skeleton treats one field of a message.
type layout struct {
	role  role
	inner *layouts // of a messageField
}

// layouts are those of a message's fields, by number. Fields with larger numbers or without a layout are kept.
type layouts [32]*layout

// role says how a skeleton treats the content of a field. Only fields with a length have roles.
type role uint8

const (
	// literalField is in the skeleton byte for byte.
	literalField role = iota
	// nameToken is any text that is not empty. The skeleton has only which of the message's names are equal.
	nameToken
	// opaqueToken is any bytes that are not empty.
	opaqueToken
	// timeToken is any Timestamp of whole seconds after 1970, written as upstream writes it. microTimeToken is any
	// Timestamp of whole microseconds.
	timeToken
	microTimeToken
	// messageField is a message whose fields have layouts.
	messageField
)

// token is a content that a skeleton omits. Equal names have the same number.
type token struct {
	content []byte
	role    role
	number  int
}

// skeleton is a protobuf message without the contents of names, opaque fields and times. Two messages with the same
// skeleton differ only in these contents and in the lengths around them, and the same names are equal in both. So code
// that only copies contents and compares names treats both messages alike. A skeleton may be reused.
type skeleton struct {
	// bytes are the skeleton, and tokens the omitted contents, in the order of the message. Contents are parts of the
	// message. Both are valid until the next call of make.
	bytes  []byte
	tokens []token

	msg      []byte
	segments []segment // where tokens and nested messages are in msg, in order
	names    [][]byte  // at most maxNames, each once
}

// segment is a token, or the beginning or the end of a nested message. msg[start:stop] is the length and the content of
// a token, or the length at the beginning of a message.
type segment struct {
	kind        segmentKind
	start, stop int
}

type segmentKind uint8

const (
	segmentToken segmentKind = iota
	segmentMessage
	segmentMessageEnd
	segmentEnd // of the whole message
)

// maxNames limits the names of a message, because each is compared with the others.
const maxNames = 256

// Marks are the bytes of a skeleton that are not in the message.
const (
	markEnd     = 0 // ends a nested message; no tag of a field is 0
	markLiteral = 0 // follows the tag of a literal field that has a layout
	markToken   = 1 // follows the tag of an omitted field; for a name, its number is added
)

func (s *skeleton) reset() {
	s.bytes, s.tokens, s.segments, s.names = s.bytes[:0], s.tokens[:0], s.segments[:0], s.names[:0]
}

// make makes the skeleton of msg, whose fields have the layouts all. It returns false for messages that are malformed,
// have too many names, or do not write lengths as upstream's encoders do.
func (s *skeleton) make(msg []byte, all *layouts) bool {
	s.reset()
	s.msg = msg
	return s.message(0, len(msg), all)
}

// message adds the message msg[from:to].
func (s *skeleton) message(from, to int, all *layouts) bool {
	msg, kept := s.msg[from:to], 0 // the start of the bytes that are not in the skeleton yet
	for f, err := range wire.Fields(msg) {
		if err != nil {
			return false
		}
		if f.Number >= len(all) || all[f.Number] == nil {
			continue
		}
		s.bytes = append(s.bytes, msg[kept:f.Start]...)
		if kept = f.Stop; !s.field(from+f.Start, f, all[f.Number]) {
			return false
		}
	}
	s.bytes = append(s.bytes, msg[kept:]...)
	return true
}

// field adds the field with a layout that begins at msg[start].
func (s *skeleton) field(start int, f wire.Field, l *layout) bool {
	tag := start + protowire.SizeTag(protowire.Number(f.Number))
	stop := start + f.Stop - f.Start
	if f.Kind != protowire.BytesType || stop != tag+protowire.SizeBytes(len(f.Content)) {
		return false
	}
	s.bytes = append(s.bytes, s.msg[start:tag]...)
	switch {
	case l.role == messageField:
		body := stop - len(f.Content)
		s.segments = append(s.segments, segment{segmentMessage, tag, body})
		if !s.message(body, stop, l.inner) {
			return false
		}
		s.segments = append(s.segments, segment{segmentMessageEnd, stop, stop})
		s.bytes = append(s.bytes, markEnd)
		return true
	case !l.role.omits(f.Content):
		s.bytes = append(s.bytes, markLiteral)
		s.bytes = append(s.bytes, s.msg[tag:stop]...)
		return true
	}
	number := 0
	if l.role == nameToken {
		if number = s.name(f.Content); number >= maxNames {
			return false
		}
	}
	s.tokens = append(s.tokens, token{f.Content, l.role, number})
	s.segments = append(s.segments, segment{segmentToken, tag, stop})
	s.bytes = binary.AppendUvarint(s.bytes, uint64(markToken+number))
	return true
}

// omits reports whether the skeleton omits content in a field of this role.
func (r role) omits(content []byte) bool {
	switch r {
	case nameToken, opaqueToken:
		return len(content) > 0
	case timeToken:
		nanos, ok := plainTime(content)
		return ok && nanos == 0
	case microTimeToken:
		nanos, ok := plainTime(content)
		return ok && nanos%1000 == 0
	}
	return false
}

// name returns the number of a name. Equal names have the same number.
func (s *skeleton) name(content []byte) int {
	for i, known := range s.names {
		if bytes.Equal(known, content) {
			return i
		}
	}
	s.names = append(s.names, content)
	return len(s.names) - 1
}

// plainTime reports whether content is a Timestamp after 1970 and before the year 10000, with both fields as upstream
// writes them, and returns its nanoseconds.
func plainTime(content []byte) (nanos uint64, ok bool) {
	const maxSeconds, second = 253402300799, 1_000_000_000
	if len(content) < 4 || content[0] != 1<<3 {
		return 0, false
	}
	seconds, n := binary.Uvarint(content[1:])
	if n <= 0 || n != protowire.SizeVarint(seconds) || seconds == 0 || seconds > maxSeconds {
		return 0, false
	}
	rest := content[1+n:]
	if len(rest) < 2 || rest[0] != 2<<3 {
		return 0, false
	}
	nanos, n = binary.Uvarint(rest[1:])
	return nanos, n == len(rest)-1 && n == protowire.SizeVarint(nanos) && nanos < second
}
