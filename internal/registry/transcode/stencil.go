package transcode

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// stencil is a plain message, what was written for it, and which bytes of both may be others. For a
// message of the same length that differs from it in such bytes alone, the same is written but
// for them: the tags and lengths by which a walk would go are the same in both.
type stencil struct {
	root *message
	used bool // since the stencil was looked at for being replaced
	src  []byte
	out  []byte
	gaps []gap // in the order of src
}

// gap is a part of a message whose bytes do not change what is written around it.
type gap struct {
	from, to int32 // in src
	at, stop int32 // in out
	kind     gapKind
}

type gapKind uint8

const (
	gapText gapKind = iota // is written as it is
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
}

// find returns the stencil of which msg differs in gaps alone, which are s.changed then; nil if
// there is none.
func (s *stencils) find(root *message, msg []byte) *stencil {
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
		if len(c.src) != len(msg) || c.root != root {
			continue
		}
		if s.compare(c, msg) {
			c.used, s.last = true, i
			s.trust = min(s.trust+2, mostTrust)
			return c
		}
		if tries--; tries == 0 {
			break
		}
	}
	return nil
}

// compare finds the gaps in which msg differs from the message of c, which is as long, and reports
// whether it differs nowhere else.
func (s *stencils) compare(c *stencil, msg []byte) bool {
	s.changed = s.changed[:0]
	for at, next := 0, 0; ; next++ {
		if at = differs(c.src, msg, at); at == len(msg) {
			return true
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
func (s *stencils) add(root *message, msg, out []byte, gaps []gap) []gap {
	if len(out) > 2*largestStencil {
		return gaps
	}
	slices.SortFunc(gaps, func(a, b gap) int { return int(a.from - b.from) })
	c := s.free()
	c.root, c.used = root, false
	c.src, c.out = append(c.src[:0], msg...), append(c.out[:0], out...)
	c.gaps, gaps = gaps, c.gaps[:0]
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

// fill writes what the message of w, which differs from that of c in the changed gaps alone, becomes.
func (w *walker) fill(c *stencil, changed []int32) bool {
	start := w.n
	w.bytes(c.out)
	stop := w.n
	for _, i := range changed {
		g := &c.gaps[i]
		if g.kind == gapText {
			copy(w.dst[start+int(g.at):start+int(g.stop)], w.src[g.from:g.to])
			continue
		}
		w.n = start + int(g.at)
		if !w.time(int(g.from), int(g.to), g.kind == gapMicroTime) || w.n != start+int(g.stop) {
			w.n = start
			return false
		}
	}
	w.n = stop
	return true
}

// gap notes that src[from:to] has become what was written from at on, if that is asked for.
func (w *walker) gap(from, to, at int, kind gapKind) {
	if w.noting {
		w.gaps = append(w.gaps, gap{int32(from), int32(to), int32(at - w.start), int32(w.n - w.start), kind})
	}
}
