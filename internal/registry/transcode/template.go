package transcode

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// template is a message, its JSON, and the gaps: the parts of the message that may differ. A message of the
// same length that differs only in gaps has the same tags and lengths. So its JSON differs only in gaps, too.
type template struct {
	root *message
	used bool // since the last call of free
	src  []byte
	out  []byte
	gaps []gap // in the order of src
	// varying are the gaps in which some message has differed, in order. Only they are replaced. fits compares the
	// bytes between them at once.
	varying []int32
}

// gap is a part of a message on which the JSON around it does not depend.
type gap struct {
	from, to int32 // in src
	at, stop int32 // in out
	kind     gapKind
}

type gapKind uint8

const (
	gapText     gapKind = iota // a plain string
	gapEscaped                 // a string that was escaped, with its quotes
	gapJSON                    // JSON that is copied
	gapQuantity                // the text of a quantity that upstream does not change
	gapTime
	gapMicroTime
)

const (
	// maxTemplates is the number of templates of a walker. Objects of one workload differ in the lengths
	// of names, addresses and versions; each combination needs a template.
	maxTemplates = 64
	// maxTemplateSize limits the message of a template. Its JSON may be twice as long.
	maxTemplateSize = 16 << 10
	// maxTries limits the templates with which a message is compared. After maxTrust unused templates, it is compared
	// only with the template that was used or made last.
	maxTries = 6
	// maxTrust limits the consecutive messages that become templates while none is used. After that, only one message
	// in retryEvery becomes a template, until one is used.
	maxTrust   = 2 * maxTemplates
	retryEvery = 32
)

// templates are the templates of a walker.
type templates struct {
	all        []template
	last       int // the one that was used or made last
	hand       int // where free looks next
	trust      int
	doubted    int
	changed    []int32 // gaps in which the compared message differs
	prefetched byte    // results of prefetch, so that the compiler keeps it
}

// byTemplate writes the whole message by a template and reports whether it could.
func (w *walker) byTemplate(root *message) bool {
	s := &w.templates
	if len(s.all) > 0 {
		s.prefetched += prefetch(w.src)
	}
	tries := maxTries
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
			s.trust = min(s.trust+2, maxTrust)
			return true
		}
		if tries--; tries == 0 {
			break
		}
	}
	return false
}

// fits reports whether msg, which has the length of t.src, differs from it only in varying gaps.
func (t *template) fits(msg []byte) bool {
	at := int32(0)
	for _, i := range t.varying {
		g := &t.gaps[i]
		if !bytes.Equal(t.src[at:g.from], msg[at:g.from]) {
			return false
		}
		at = g.to
	}
	return bytes.Equal(t.src[at:], msg[at:])
}

// fill writes the message of w, which fits c: a copy of c.out with the message's own gaps. If the JSON of a
// gap has another length than in c.out, fill writes nothing and returns false.
func (w *walker) fill(c *template) bool {
	start := len(w.dst)
	w.dst = append(w.dst, c.out...)
	for _, i := range c.varying {
		if !w.fillGap(&c.gaps[i], start) {
			w.dst = w.dst[:start]
			return false
		}
	}
	return true
}

// fillGap writes a gap of the message, whose JSON begins at start. The JSON of times and escaped strings is first
// written behind the message's.
func (w *walker) fillGap(g *gap, start int) (ok bool) {
	text, stop := w.src[g.from:g.to], len(w.dst)
	switch g.kind {
	case gapText:
		ok = jsontext.IsPlain(w.src, int(g.from), int(g.to))
	case gapJSON:
		ok = plainObjects(text)
	case gapQuantity:
		ok = canonicalQuantity(text)
	case gapEscaped:
		w.dst, ok = jsontext.AppendString(w.dst, text), true
		text = w.dst[stop:]
	default:
		ok = w.time(int(g.from), int(g.to), g.kind == gapMicroTime)
		text = w.dst[stop:]
	}
	w.dst = w.dst[:stop]
	copy(w.dst[start+int(g.at):start+int(g.stop)], text)
	return ok && len(text) == int(g.stop-g.at)
}

// lineSize is the size of a cache line.
const lineSize = 64

// prefetch reads a byte of each cache line of msg, so that the processor fetches the lines concurrently. The
// messages of a long list are not in its caches (L21).
func prefetch(msg []byte) (sum byte) {
	for i := 0; i < len(msg); i += lineSize {
		sum += msg[i]
	}
	return sum
}

// learn adds to the varying gaps of c those in which msg, which has the same length, differs. It returns false if
// msg also differs elsewhere.
func (t *templates) learn(c *template, msg []byte) bool {
	t.changed = t.changed[:0]
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
		t.changed = append(t.changed, int32(next))
		at = int(c.gaps[next].to)
	}
	c.varying = append(c.varying, t.changed...)
	slices.Sort(c.varying)
	c.varying = slices.Compact(c.varying)
	return true
}

// differs returns the first index from at on at which a and b, which have the same length, differ. It
// returns the length if there is none.
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

// wants reports whether to make a template of msg, which fits none.
func (t *templates) wants(msg []byte) bool {
	if len(msg) > maxTemplateSize {
		return false
	}
	if t.trust > 0 {
		t.trust--
		return true
	}
	t.doubted++
	return t.doubted%retryEvery == 0
}

// add makes a template of a message and its JSON. It keeps gaps and returns a slice for reuse.
func (t *templates) add(root *message, msg, out []byte, gaps []gap) []gap {
	if len(out) > 2*maxTemplateSize {
		return gaps
	}
	slices.SortFunc(gaps, func(a, b gap) int { return int(a.from - b.from) })
	c := t.free()
	c.root, c.used = root, false
	c.src, c.out = append(c.src[:0], msg...), append(c.out[:0], out...)
	c.gaps, gaps, c.varying = gaps, c.gaps[:0], c.varying[:0]
	return gaps
}

// free returns a new template, or one that was not used recently.
func (t *templates) free() *template {
	if t.last = len(t.all); t.last < maxTemplates {
		t.all = append(t.all, template{})
		return &t.all[t.last]
	}
	for {
		t.last = t.hand
		t.hand = (t.hand + 1) % len(t.all)
		c := &t.all[t.last]
		if !c.used {
			return c
		}
		c.used = false
	}
}

// gap records that the output from at on is the JSON of src[from:to], if a template is being made.
func (w *walker) gap(from, to, at int, kind gapKind) {
	if w.recordsGaps {
		w.gaps = append(w.gaps, gap{int32(from), int32(to), int32(at - w.start), int32(len(w.dst) - w.start), kind})
	}
}
