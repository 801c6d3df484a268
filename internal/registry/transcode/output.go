package transcode

import "slices"

// slack is the room that is always left after the requested room. Literals and short texts are copied in
// blocks of this size, which is faster than copying their exact length.
const (
	slack = 64
	block = 32
)

// literal is a text of a plan.
type literal struct {
	text [slack]byte // its beginning
	n    int
	rest []byte // the part that does not fit in text
}

func literalOf(text []byte) literal {
	var l literal
	l.n = copy(l.text[:], text)
	l.rest = slices.Clone(text[l.n:])
	return l
}

// output is a buffer that grows. All of dst may be written; n bytes have been.
type output struct {
	dst []byte
	n   int
}

// room makes room for k bytes, and for slack beyond them.
func (o *output) room(k int) {
	if len(o.dst)-o.n < k+slack {
		o.grow(k + slack)
	}
}

func (o *output) grow(k int) {
	grown := slices.Grow(o.dst[:o.n], k)
	o.dst = grown[:cap(grown)]
}

// literal writes l. There must be slack; there is none afterwards.
func (o *output) literal(l *literal) {
	if l.n <= block {
		*(*[block]byte)(o.dst[o.n:]) = [block]byte(l.text[:])
	} else {
		*(*[slack]byte)(o.dst[o.n:]) = l.text
	}
	o.n += l.n
	if len(l.rest) > 0 {
		o.bytes(l.rest)
	}
}

// byte writes b. There must be room.
func (o *output) byte(b byte) {
	o.dst[o.n] = b
	o.n++
}

// bytes writes text and leaves slack.
func (o *output) bytes(text []byte) {
	o.room(len(text))
	o.n += copy(o.dst[o.n:], text)
}

// appended records that bytes were appended to those written so far.
func (o *output) appended(dst []byte) {
	o.n = len(dst)
	o.dst = dst[:cap(dst)]
	o.room(0)
}

// written are the bytes written so far.
func (o *output) written() []byte { return o.dst[:o.n] }
