package transcode

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"sync"

	"github.com/larder-io/larder/internal/registry/jsontext"
)

// walker writes one message.
type walker struct {
	src []byte
	dst []byte // the output
	// slots are the fields of the messages that are being written: the value of a number, or the start and the end of
	// another field, 32 bits each.
	slots []uint64
	last  lastTime

	templates   templates
	recordsGaps bool // for a template
	start       int  // of the message in the output
	gaps        []gap
}

// walkers is a pool of walkers.
var walkers = sync.Pool{New: func() any {
	return &walker{slots: make([]uint64, 0, 256), templates: templates{trust: maxTrust}}
}}

// Append appends the JSON of msg. copied says that it was written by a template, which costs little more than copying
// the JSON. For a message that must be decoded Append returns dst unchanged and [ErrUnusual].
func (p *Plan) Append(dst, msg []byte) (out []byte, copied bool, err error) {
	w := walkers.Get().(*walker)
	defer walkers.Put(w)
	return w.append(p, dst, msg)
}

func (w *walker) append(p *Plan, dst, msg []byte) (_ []byte, copied bool, err error) {
	if uint64(len(msg)) > math.MaxInt32 {
		return dst, false, ErrUnusual
	}
	w.src, w.dst, w.slots = msg, dst, w.slots[:0]
	copied = w.byTemplate(p.root)
	ok := copied || w.walk(p.root)
	out := w.dst
	w.src, w.dst = nil, nil
	if !ok {
		return dst, false, ErrUnusual
	}
	return out, copied, nil
}

// walk writes the whole message, and makes a template of it if that may help.
func (w *walker) walk(root *message) bool {
	w.start, w.recordsGaps = len(w.dst), w.templates.wants(w.src)
	ok := w.message(root, 0, len(w.src))
	if w.recordsGaps && ok {
		w.gaps = w.templates.add(root, w.src, w.dst[w.start:], w.gaps)
	}
	w.recordsGaps, w.gaps = false, w.gaps[:0]
	return ok
}

// message writes the message between from and to.
func (w *walker) message(m *message, from, to int) bool {
	start := len(w.dst)
	w.dst = append(w.dst, m.head...)
	if !w.members(m, from, to) {
		return false
	}
	if len(w.dst) == start {
		w.dst = append(w.dst, '{', '}')
		return true
	}
	w.dst[start] = '{' // in place of the first comma
	w.dst = append(w.dst, '}')
	return true
}

// content reads the value of a field with that tag, whose content begins at body: a number, or the span of the bytes
// after a length. It returns where the value ends, -1 if it is malformed or of a type that upstream's messages do not
// have.
func content(src []byte, tag uint64, body int) (value uint64, stop int) {
	if tag&7 != wireVarint && tag&7 != wireLen || tag > math.MaxUint32 || body >= len(src) {
		return 0, -1
	}
	if value, stop = varint(src, body); stop < 0 || tag&7 == wireVarint {
		return value, stop
	}
	if value > uint64(len(src)-stop) {
		return 0, -1
	}
	return span(stop, stop+int(value)), stop + int(value)
}

// present reports whether a value is written as present.
func (e *entry) present(value uint64) bool {
	if e.wire == wireLen {
		return e.empty || begin(value) < end(value)
	}
	return e.empty || value != 0
}

// members finds all fields of a message, and writes them in the order of the JSON.
func (w *walker) members(m *message, from, to int) bool {
	base := len(w.slots)
	w.slots = slices.Grow(w.slots, len(m.fields))[:base+len(m.fields)]
	present, ok := w.scan(m.table, from, to, base)
	if !ok {
		return false
	}
	for todo := present | m.always; todo != 0; todo &= todo - 1 {
		i := bits.TrailingZeros64(todo)
		f := &m.fields[i]
		if present>>i&1 == 0 {
			w.dst = append(w.dst, f.absent...)
			continue
		}
		w.dst = append(w.dst, f.name...)
		var ok bool
		switch slot := w.slots[base+i]; f.cardinality {
		case list:
			ok = w.list(f, begin(slot), end(slot))
		case textMap:
			ok = w.textMap(f, begin(slot), end(slot))
		default:
			ok = w.value(f, slot)
		}
		if !ok {
			return false
		}
	}
	w.slots = w.slots[:base]
	return true
}

// scan records the positions of the fields of a message, and which are present. It does not use wire.Fields, which
// knows more kinds of fields than upstream's types have: scanning is a part of L1.
func (w *walker) scan(table []entry, at, to, base int) (present uint64, ok bool) {
	src, last := w.src[:to], 0
	for at < to {
		start := at
		tag, body := varint(src, at)
		number := int(tag >> 3)
		if number <= last { // or there is none
			return 0, false
		}
		last = number
		if number >= len(table) || table[number].slot == none {
			if _, at = content(src, tag, body); at < 0 {
				return 0, false
			}
			continue
		}
		e := &table[number]
		value, stop := content(src, tag, body)
		if stop < 0 || uint8(tag&7) != e.wire {
			return 0, false
		}
		at = stop
		switch {
		case e.repeated:
			if at = w.run(tag, at, to); at < 0 {
				return 0, false
			}
			w.slots[base+int(e.slot)] = span(start, at)
			present |= 1 << e.slot
		case e.slot == inlined:
			more, ok := w.scan(e.inline, begin(value), end(value), base)
			if !ok {
				return 0, false
			}
			present |= more
		case e.present(value):
			w.slots[base+int(e.slot)] = value
			present |= 1 << e.slot
		}
	}
	return present, true
}

// run returns the end of a run of fields with the same tag. The first one ends at at.
func (w *walker) run(tag uint64, at, to int) int {
	src := w.src[:to]
	for at < to {
		next, body := varint(src, at)
		if body < 0 {
			return -1
		}
		if next != tag {
			return at
		}
		if _, at = content(src, tag, body); at < 0 {
			return -1
		}
	}
	return at
}

func span(from, to int) uint64 { return uint64(from)<<32 | uint64(to) }
func begin(span uint64) int    { return int(span >> 32) }
func end(span uint64) int      { return int(span & math.MaxUint32) }

// varint reads the number at src[at] and returns where it ends, -1 if it is malformed.
func varint(src []byte, at int) (uint64, int) {
	if at < len(src) && src[at] < 0x80 {
		return uint64(src[at]), at + 1
	}
	return longVarint(src, at)
}

func longVarint(src []byte, at int) (uint64, int) {
	value, n := binary.Uvarint(src[at:])
	if n <= 0 {
		return 0, -1
	}
	return value, at + n
}

// list writes a run of fields with the same tag, as scan has found it.
func (w *walker) list(f *field, at, to int) bool {
	src := w.src[:to]
	w.dst = append(w.dst, '[')
	for first := true; at < to; first = false {
		tag, body := varint(src, at)
		value, stop := content(src, tag, body)
		if !first {
			w.dst = append(w.dst, ',')
		}
		if stop < 0 || !w.value(f, value) {
			return false
		}
		at = stop
	}
	w.dst = append(w.dst, ']')
	return true
}

// textMap writes a run of fields that are the entries of a map.
func (w *walker) textMap(f *field, at, to int) bool {
	w.dst = append(w.dst, '{')
	var last []byte
	for first := true; at < to; first = false {
		_, body := varint(w.src[:to], at)
		n, inner := varint(w.src[:to], body)
		at = inner + int(n)
		key, value, ok := w.mapEntry(f, inner, at)
		if !ok || !first && bytes.Compare(last, w.src[begin(key):end(key)]) >= 0 {
			return false
		}
		if !first {
			w.dst = append(w.dst, ',')
		}
		last = w.src[begin(key):end(key)]
		w.key(begin(key), end(key))
		w.dst = append(w.dst, ':')
		if !w.value(f, value) {
			return false
		}
	}
	w.dst = append(w.dst, '}')
	return true
}

// mapEntry finds the key and the value of an entry. A missing one is empty.
func (w *walker) mapEntry(f *field, at, to int) (key, value uint64, ok bool) {
	wire := uint64(wireLen)
	if f.kind == kindBool || f.kind == kindInt32 || f.kind == kindInt64 {
		wire = wireVarint
	} else {
		value = span(to, to)
	}
	for last := uint64(0); at < to; {
		tag, body := varint(w.src[:to], at)
		if body < 0 || tag>>3 <= last { // upstream's decoder would also decode the first of two values
			return 0, 0, false
		}
		last = tag >> 3
		found, stop := content(w.src[:to], tag, body)
		if stop < 0 {
			return 0, 0, false
		}
		switch at = stop; tag {
		case 1<<3 | wireLen:
			key = found
		case 2<<3 | wire:
			value = found
		default:
			return 0, 0, false
		}
	}
	return key, value, true
}

// value writes one value.
func (w *walker) value(f *field, slot uint64) bool {
	from, to := begin(slot), end(slot)
	switch f.kind {
	case kindString:
		w.text(from, to)
	case kindMessage:
		return w.message(f.of, from, to)
	case kindBool:
		w.dst = strconv.AppendBool(w.dst, slot != 0)
	case kindInt32:
		w.dst = strconv.AppendInt(w.dst, int64(int32(slot)), 10)
	case kindInt64:
		w.dst = strconv.AppendInt(w.dst, int64(slot), 10)
	case kindBytes:
		w.dst = append(base64.StdEncoding.AppendEncode(append(w.dst, '"'), w.src[from:to]), '"')
	case kindTime:
		at := len(w.dst)
		ok := w.time(from, to, false)
		w.gap(from, to, at, gapTime)
		return ok
	case kindMicroTime:
		at := len(w.dst)
		ok := w.time(from, to, true)
		w.gap(from, to, at, gapMicroTime)
		return ok
	case kindQuantity:
		return w.quantity(from, to)
	case kindIntOrString:
		return w.intOrString(from, to)
	case kindJSON:
		return w.embedded(from, to)
	default:
		return false
	}
	return true
}

// text writes the string between from and to.
func (w *walker) text(from, to int) {
	if !jsontext.IsPlain(w.src, from, to) {
		at := len(w.dst)
		w.dst = jsontext.AppendString(w.dst, w.src[from:to])
		w.gap(from, to, at, gapEscaped)
		return
	}
	w.quoted(from, to, gapText)
}

// key writes a key of a map as text does. A key is no gap, because the JSON is sorted by keys.
func (w *walker) key(from, to int) {
	recordsGaps := w.recordsGaps
	w.recordsGaps = false
	w.text(from, to)
	w.recordsGaps = recordsGaps
}

// quoted writes src[from:to] as a string.
func (w *walker) quoted(from, to int, kind gapKind) {
	w.dst = append(append(w.dst, '"'), w.src[from:to]...)
	w.gap(from, to, len(w.dst)-(to-from), kind)
	w.dst = append(w.dst, '"')
}
