package transcode

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"sync"
)

// walker writes one message.
type walker struct {
	src []byte
	dst []byte
	// slots are the fields of the messages that are being written: the value of a field that
	// is a number, of another where it begins and ends, in the halves of one number.
	slots []uint64
}

// walkers is a pool of walkers.
var walkers = sync.Pool{New: func() any { return &walker{slots: make([]uint64, 0, 256)} }}

// Append appends the JSON of msg. For a message that must be decoded it returns dst as it
// was, and [ErrUnusual].
func (p *Plan) Append(dst, msg []byte) ([]byte, error) {
	if uint64(len(msg)) > math.MaxInt32 {
		return dst, ErrUnusual
	}
	w := walkers.Get().(*walker)
	w.src, w.dst, w.slots = msg, dst, w.slots[:0]
	ok := w.message(p.root, 0, len(msg))
	out := w.dst
	w.src, w.dst = nil, nil
	walkers.Put(w)
	if !ok {
		return dst, ErrUnusual
	}
	return out, nil
}

// message writes the message that lies between from and to.
func (w *walker) message(m *message, from, to int) bool {
	base := len(w.slots)
	for range m.fields {
		w.slots = append(w.slots, 0)
	}
	present, ok := w.scan(m.table, from, to, base)
	if !ok {
		return false
	}
	start := len(w.dst)
	w.dst = append(w.dst, m.head...)
	for todo := present | m.always; todo != 0; todo &= todo - 1 {
		i := bits.TrailingZeros64(todo)
		f := &m.fields[i]
		if present>>i&1 == 0 {
			w.dst = append(w.dst, f.absent...)
			continue
		}
		w.dst = append(w.dst, f.name...)
		if !w.field(f, w.slots[base+i]) {
			return false
		}
	}
	w.slots = w.slots[:base]
	if len(w.dst) == start {
		w.dst = append(w.dst, "{}"...)
		return true
	}
	w.dst[start] = '{' // in place of the first comma
	w.dst = append(w.dst, '}')
	return true
}

// scan notes where the fields of a message lie, and which are there.
func (w *walker) scan(table []entry, at, to, base int) (present uint64, ok bool) {
	last := 0
	for at < to {
		start := at
		tag, at2 := w.varint(at, to)
		if at2 < 0 || tag>>3 <= uint64(last) || tag > math.MaxUint32 {
			return 0, false
		}
		at, last = at2, int(tag>>3)
		if last >= len(table) || table[last].slot == none {
			if at = w.skip(int(tag&7), at, to); at < 0 {
				return 0, false
			}
			continue
		}
		e := &table[last]
		if uint8(tag&7) != e.wire {
			return 0, false
		}
		value, stop := w.varint(at, to)
		if stop < 0 {
			return 0, false
		}
		at = stop
		if e.wire == wireLen {
			if value > uint64(to-at) {
				return 0, false
			}
			stop = at + int(value)
			value, at = span(at, stop), stop
		}
		switch {
		case e.repeated:
			if at = w.run(tag, start, at, to); at < 0 {
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
		default:
			w.slots[base+int(e.slot)] = value
			if e.empty || e.wire == wireVarint && value != 0 || e.wire == wireLen && begin(value) < end(value) {
				present |= 1 << e.slot
			}
		}
	}
	return present, true
}

// run returns the end of a run of fields with the same tag. The first one lies between start
// and at.
func (w *walker) run(tag uint64, start, at, to int) int {
	for at < to {
		next, body := w.varint(at, to)
		if body < 0 {
			return -1
		}
		if next != tag {
			return at
		}
		if at = w.skip(int(tag&7), body, to); at < 0 {
			return -1
		}
	}
	return at
}

func span(from, to int) uint64 { return uint64(from)<<32 | uint64(to) }
func begin(span uint64) int    { return int(span >> 32) }
func end(span uint64) int      { return int(span & math.MaxUint32) }

// varint reads a number and returns where it ends, -1 if it is malformed.
func (w *walker) varint(at, to int) (uint64, int) {
	if at < to && w.src[at] < 0x80 {
		return uint64(w.src[at]), at + 1
	}
	value, n := binary.Uvarint(w.src[at:to])
	if n <= 0 {
		return 0, -1
	}
	return value, at + n
}

// skip returns where the content of a field ends, -1 if it is malformed.
func (w *walker) skip(wire, at, to int) int {
	switch wire {
	case wireVarint:
		_, at = w.varint(at, to)
		return at
	case wireLen:
		n, body := w.varint(at, to)
		if body < 0 || n > uint64(to-body) {
			return -1
		}
		return body + int(n)
	default:
		return -1 // upstream's types have none
	}
}

// field writes what a field holds.
func (w *walker) field(f *field, slot uint64) bool {
	switch f.shape {
	case list:
		return w.list(f, begin(slot), end(slot))
	case textMap:
		return w.textMap(f, begin(slot), end(slot))
	default:
		return w.value(f, slot)
	}
}

// list writes a run of fields.
func (w *walker) list(f *field, at, to int) bool {
	w.dst = append(w.dst, '[')
	for first := true; at < to; first = false {
		if !first {
			w.dst = append(w.dst, ',')
		}
		tag, body := w.varint(at, to)
		value, stop := w.varint(body, to)
		if tag&7 == wireLen {
			value, stop = span(stop, stop+int(value)), stop+int(value)
		}
		if !w.value(f, value) {
			return false
		}
		at = stop
	}
	w.dst = append(w.dst, ']')
	return true
}

// textMap writes a run of fields that are keys and values.
func (w *walker) textMap(f *field, at, to int) bool {
	w.dst = append(w.dst, '{')
	var last []byte
	for first := true; at < to; first = false {
		_, body := w.varint(at, to)
		n, body := w.varint(body, to)
		at = body + int(n)
		key, value, ok := w.mapEntry(f, body, at)
		if !ok || !first && bytes.Compare(last, key) >= 0 {
			return false
		}
		last = key
		if !first {
			w.dst = append(w.dst, ',')
		}
		w.dst = append(appendString(w.dst, key), ':')
		if !w.value(f, value) {
			return false
		}
	}
	w.dst = append(w.dst, '}')
	return true
}

// mapEntry finds the key and the value of an entry; what is missing is empty.
func (w *walker) mapEntry(f *field, at, to int) (key []byte, value uint64, ok bool) {
	wire := uint64(wireLen)
	if f.kind == kindBool || f.kind == kindInt32 || f.kind == kindInt64 {
		wire = wireVarint
	} else {
		value = span(to, to)
	}
	for last := uint64(0); at < to; {
		tag, body := w.varint(at, to)
		if body < 0 || tag>>3 <= last || tag>>3 > 2 {
			return nil, 0, false
		}
		last = tag >> 3
		if at = w.skip(int(tag&7), body, to); at < 0 {
			return nil, 0, false
		}
		switch number, inner := w.varint(body, to); {
		case tag == 1<<3|wireLen:
			key = w.src[inner:at]
		case tag != 2<<3|wire:
			return nil, 0, false
		case wire == wireLen:
			value = span(inner, at)
		default:
			value = number
		}
	}
	return key, value, true
}

// value writes one value.
func (w *walker) value(f *field, slot uint64) bool {
	from, to := begin(slot), end(slot)
	switch f.kind {
	case kindString:
		w.dst = appendString(w.dst, w.src[from:to])
	case kindMessage:
		return w.message(f.of, from, to)
	case kindBool:
		w.dst = strconv.AppendBool(w.dst, slot != 0)
	case kindInt32:
		w.dst = strconv.AppendInt(w.dst, int64(int32(slot)), 10)
	case kindInt64:
		w.dst = strconv.AppendInt(w.dst, int64(slot), 10)
	case kindBytes:
		w.dst = append(w.dst, '"')
		w.dst = base64.StdEncoding.AppendEncode(w.dst, w.src[from:to])
		w.dst = append(w.dst, '"')
	case kindWrapped:
		return w.wrapped(f.of, from, to)
	case kindTime:
		return w.time(from, to, false)
	case kindMicroTime:
		return w.time(from, to, true)
	case kindQuantity:
		return w.quantity(from, to)
	case kindIntOrString:
		return w.intOrString(from, to)
	case kindFields:
		return w.fieldSet(from, to)
	case kindRaw:
		return w.raw(from, to)
	default:
		return false
	}
	return true
}

// wrapped writes the list that a message holds.
func (w *walker) wrapped(m *message, from, to int) bool {
	base := len(w.slots)
	w.slots = append(w.slots, 0)
	present, ok := w.scan(m.table, from, to, base)
	slot := w.slots[base]
	w.slots = w.slots[:base]
	switch {
	case !ok:
		return false
	case present == 0:
		w.dst = append(w.dst, "[]"...)
		return true
	}
	return w.list(&m.fields[0], begin(slot), end(slot))
}
