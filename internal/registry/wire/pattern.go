package wire

import (
	"bytes"
	"encoding/binary"
)

// Pattern recognizes messages that have the same Skeleton as one message. Where most messages
// have, this takes a fraction of the time that it takes to make a Skeleton: what is between the
// tokens is compared as a whole. A Pattern is immutable.
type Pattern struct {
	steps []patternStep
	bytes int // of literals
}

// patternStep is some bytes, and what follows them.
type patternStep struct {
	literal []byte
	next    patternNext
	role    Role // of a token
	number  int  // of a Name
}

// patternNext is what follows the bytes of a step.
type patternNext uint8

const (
	patternEnd     patternNext = iota // the end of the message
	patternMessage                    // a message in it, with its length
	patternToken                      // a token, with its length
)

// maxPatternDepth bounds how deep messages are within each other.
const maxPatternDepth = 24

// NewPattern makes the Pattern of msg, whose fields are fields. It reports false for a message
// that has no Skeleton, or is very deep.
func NewPattern(msg []byte, fields *Fields) (*Pattern, bool) {
	p, names := new(Pattern), new(Skeleton)
	if !p.message(msg, fields, names, 0) {
		return nil, false
	}
	return p, true
}

// Size is about how much memory p takes.
func (p *Pattern) Size() int {
	const stepSize = 48
	return stepSize*len(p.steps) + p.bytes
}

func (p *Pattern) add(literal []byte, s patternStep) {
	s.literal = bytes.Clone(literal)
	p.steps = append(p.steps, s)
	p.bytes += len(literal)
}

func (p *Pattern) message(msg []byte, fields *Fields, names *Skeleton, depth int) bool {
	if depth >= maxPatternDepth {
		return false
	}
	kept := 0 // from where on bytes are in no step yet
	for at := 0; at < len(msg); {
		f, err := nextField(msg, at)
		if err != nil {
			return false
		}
		layout := fields.of(f)
		if at = f.stop; layout == nil {
			continue
		}
		content := msg[f.body:f.stop]
		tag := f.start + sizeVarint(f.number<<3|f.kind)
		switch {
		case f.kind != wireLen || f.body != tag+sizeVarint(len(content)):
			return false
		case layout.Role == Message:
			p.add(msg[kept:tag], patternStep{next: patternMessage})
			if !p.message(content, &layout.Fields, names, depth+1) {
				return false
			}
		case !layout.Role.leavesOut(content):
			continue
		default:
			s := patternStep{next: patternToken, role: layout.Role}
			if s.role == Name {
				if s.number = names.name(content); s.number >= maxNames {
					return false
				}
			}
			p.add(msg[kept:tag], s)
		}
		kept = f.stop
	}
	p.add(msg[kept:], patternStep{next: patternEnd})
	return true
}

// Match reports whether msg has the Skeleton that p was made of. Then s has its Tokens, but no
// Bytes.
func (p *Pattern) Match(msg []byte, s *Skeleton) bool {
	s.Bytes, s.Tokens, s.names = s.Bytes[:0], s.Tokens[:0], s.names[:0]
	var outer [maxPatternDepth]int // where the messages end that the present one is in
	depth, at, end := 0, 0, len(msg)
	for i := range p.steps {
		step := &p.steps[i]
		n := len(step.literal)
		if end-at < n || string(msg[at:at+n]) != string(step.literal) {
			return false
		}
		at += n
		if step.next == patternEnd {
			if at != end {
				return false
			}
			if depth > 0 {
				depth--
				end = outer[depth]
			}
			continue
		}
		size, n := binary.Uvarint(msg[at:end])
		if n <= 0 || n != sizeVarint64(size) || size > uint64(end-at-n) {
			return false
		}
		at += n
		if step.next == patternMessage {
			outer[depth] = end
			depth++
			end = at + int(size)
			continue
		}
		stop := at + int(size)
		if !s.matchToken(msg[at:stop:stop], step) {
			return false
		}
		at = stop
	}
	return true
}

// matchToken adds a token, if it is one of that role, and if it is a Name, one that is equal to
// another exactly where that of the pattern is.
func (s *Skeleton) matchToken(content []byte, step *patternStep) bool {
	if !step.role.leavesOut(content) {
		return false
	}
	if step.role == Name {
		if step.number < len(s.names) {
			if !bytes.Equal(content, s.names[step.number]) {
				return false
			}
		} else if s.name(content) != step.number {
			return false
		}
	}
	s.Tokens = append(s.Tokens, Token{content, step.role, step.number})
	return true
}
