package transcode

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// stencil is a message, what was written for it, and which bytes of both may be others. For a
// message of the same length that differs from it in such bytes alone, the same is written but
// for them: the tags and lengths by which a walk would go are the same in both.
type stencil struct {
	root    *message
	used    bool // since the stencil was looked at for being replaced
	special bool // something in the message was not written as it is
	src     []byte
	out     []byte
	gaps    []gap // in the order of src
	// loose are the gaps in which some message has differed, in order. What lies between them is
	// compared as one.
	loose []int32
}

// gap is a part of a message whose bytes do not change what is written around it.
type gap struct {
	from, to int32 // in src
	at, stop int32 // in out
	kind     gapKind
}

type gapKind uint8

const (
	gapText     gapKind = iota // is plain and written as it is
	gapSpecial                 // a text that was escaped, with its quotes
	gapFields                  // JSON that is written as it is
	gapQuantity                // a text that is written as it is, because upstream writes it so
	gapTime
	gapMicroTime
)

const (
	// mostStencils is how many a walker keeps. Objects that are made alike differ in the lengths
	// of names, addresses and versions: each combination has one of its own.
	mostStencils = 64
	// largestStencil bounds the message of a stencil, and half of what is written for it, which
	// usually is half as much again.
	largestStencil = 16 << 10
	// mostTries is how many stencils a message is compared with: all those of its length may differ
	// from it in something else. Without trust it is the one that was of use, or was made, last.
	mostTries = 6
	// mostTrust is how many messages in a row may become stencils in vain. After that one of
	// doubtEvery does, until one is of use again.
	mostTrust  = 2 * mostStencils
	doubtEvery = 32
)

// stencils are those of a walker.
type stencils struct {
	all     []stencil
	last    int // the one that was of use, or was made, last
	hand    int // where to look for one to replace
	trust   int
	doubted int
	changed []int32 // gaps, of the message that is being compared
	touched byte    // what touch returned, so that it is not left out
}

// copied writes the whole message by a stencil, and reports whether there is one.
func (w *walker) copied(root *message) bool {
	s := &w.stencils
	if len(s.all) > 0 {
		s.touched += touch(w.src)
	}
	tries := mostTries
	if s.trust == 0 {
		tries = 1
	}
	for n := range s.all {
		i := s.last + n
		if i >= len(s.all) {
			i -= len(s.all)
		}
		c := &s.all[i]
		if len(c.src) != len(w.src) || c.root != root {
			continue
		}
		if (c.fits(w.src) || s.learn(c, w.src)) && w.fill(c) {
			c.used, s.last = true, i
			s.trust = min(s.trust+2, mostTrust)
			return true
		}
		if tries--; tries == 0 {
			break
		}
	}
	return false
}

// fits reports whether msg, which is as long as the message of c, differs from it in loose gaps alone.
func (c *stencil) fits(msg []byte) bool {
	at := int32(0)
	for _, i := range c.loose {
		g := &c.gaps[i]
		if !bytes.Equal(c.src[at:g.from], msg[at:g.from]) {
			return false
		}
		at = g.to
	}
	return bytes.Equal(c.src[at:], msg[at:])
}

// fill writes the message of w, which fits c, as a copy of what was written for that of c, with what
// is in its own loose gaps. It reports false, and writes nothing, if one of these takes more or less
// than that of c.
func (w *walker) fill(c *stencil) bool {
	start := w.n
	w.bytes(c.out)
	stop := w.n
	w.special = c.special
	for _, i := range c.loose {
		if !w.fillGap(&c.gaps[i], start) {
			w.n, w.special = start, false
			return false
		}
	}
	w.n = stop
	return true
}

// fillGap writes what is in a gap of the message, of which what is written begins at start.
func (w *walker) fillGap(g *gap, start int) bool {
	text, dst := w.src[g.from:g.to], w.dst[start+int(g.at):start+int(g.stop)]
	as := w.plain
	switch g.kind {
	case gapText:
		as = as || jsontext.IsPlain(w.src, int(g.from), int(g.to))
	case gapFields:
		as = as || plainObjects(text)
	case gapQuantity:
		as = as || canonicalQuantity(text)
	case gapSpecial:
		w.escaped = jsontext.AppendString(w.escaped[:0], text)
		copy(dst, w.escaped)
		return len(dst) == len(w.escaped)
	default:
		w.n = start + int(g.at)
		return w.time(int(g.from), int(g.to), g.kind == gapMicroTime) && w.n == start+int(g.stop)
	}
	copy(dst, text)
	return as
}

// lineSize is how many bytes memory is read by.
const lineSize = 64

// touch reads a byte of each line of msg, which in a long list comes from memory: one after the other,
// as fill looks at them, each would be waited for.
func touch(msg []byte) (sum byte) {
	for i := 0; i < len(msg); i += lineSize {
		sum += msg[i]
	}
	return sum
}

// learn makes the gaps loose in which msg, which is as long, differs from the message of c, and
// reports whether it differs nowhere else.
func (s *stencils) learn(c *stencil, msg []byte) bool {
	s.changed = s.changed[:0]
	for at, next := 0, 0; ; next++ {
		if at = differs(c.src, msg, at); at == len(msg) {
			break
		}
		for next < len(c.gaps) && int(c.gaps[next].to) <= at {
			next++
		}
		if next == len(c.gaps) || at < int(c.gaps[next].from) {
			return false
		}
		s.changed = append(s.changed, int32(next))
		at = int(c.gaps[next].to)
	}
	c.loose = append(c.loose, s.changed...)
	slices.Sort(c.loose)
	c.loose = slices.Compact(c.loose)
	return true
}

// differs returns the first index from at on where a and b, which are as long, differ; their
// length if there is none.
func differs(a, b []byte, at int) int {
	for _, step := range [...]int{512, 64} {
		for at+step <= len(a) && bytes.Equal(a[at:at+step], b[at:at+step]) {
			at += step
		}
	}
	word := binary.LittleEndian.Uint64
	for ; at+8 <= len(a); at += 8 {
		if x := word(a[at:]) ^ word(b[at:]); x != 0 {
			return at + bits.TrailingZeros64(x)/8
		}
	}
	for at < len(a) && a[at] == b[at] {
		at++
	}
	return at
}

// wants reports whether a message of which there is no stencil is to become one.
func (s *stencils) wants(msg []byte) bool {
	if len(msg) > largestStencil {
		return false
	}
	if s.trust > 0 {
		s.trust--
		return true
	}
	s.doubted++
	return s.doubted%doubtEvery == 0
}

// add makes a stencil of what was written for a message. It takes the gaps, and returns others that
// may be used again.
func (s *stencils) add(root *message, msg, out []byte, special bool, gaps []gap) []gap {
	if len(out) > 2*largestStencil {
		return gaps
	}
	slices.SortFunc(gaps, func(a, b gap) int { return int(a.from - b.from) })
	c := s.free()
	c.root, c.used, c.special = root, false, special
	c.src, c.out = append(c.src[:0], msg...), append(c.out[:0], out...)
	c.gaps, gaps, c.loose = gaps, c.gaps[:0], c.loose[:0]
	return gaps
}

// free returns a new stencil, or one that was of no use lately.
func (s *stencils) free() *stencil {
	if s.last = len(s.all); s.last < mostStencils {
		s.all = append(s.all, stencil{})
		return &s.all[s.last]
	}
	for {
		s.last = s.hand
		s.hand = (s.hand + 1) % len(s.all)
		c := &s.all[s.last]
		if !c.used {
			return c
		}
		c.used = false
	}
}

// gap notes that src[from:to] has become what was written from at on, if that is asked for.
func (w *walker) gap(from, to, at int, kind gapKind) {
	if w.noting {
		w.gaps = append(w.gaps, gap{int32(from), int32(to), int32(at - w.start), int32(w.n - w.start), kind})
	}
}
