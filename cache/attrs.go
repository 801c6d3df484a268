package cache

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Labels and field values are packed into strings: no maps, no pointers, and
// what a lookup returns is a substring.
//
//	labels  (uvarint length, key, uvarint length, value)*   sorted by key
//	fields  (uvarint length+1, value | 0)*                  in schema order; 0 = absent

// packLabels encodes a label set, appending to dst.
func packLabels(dst []byte, set map[string]string) []byte {
	keys := make([]string, 0, 16)
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		dst = appendText(dst, key)
		dst = appendText(dst, set[key])
	}
	return dst
}

func appendText(dst []byte, text string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}

// cutText splits the first length-prefixed text off packed. A malformed input,
// which packLabels never makes, returns ok false.
func cutText(packed string) (text, rest string, ok bool) {
	n, width := uvarint(packed)
	if width <= 0 || n > uint64(len(packed)-width) {
		return "", "", false
	}
	end := width + int(n)
	return packed[width:end], packed[end:], true
}

// uvarint is binary.Uvarint over a string.
func uvarint(s string) (value uint64, width int) {
	if len(s) > 0 && s[0] < 0x80 {
		return uint64(s[0]), 1
	}
	for i := 0; i < len(s) && i < binary.MaxVarintLen64; i++ {
		b := s[i]
		if b < 0x80 {
			if i == binary.MaxVarintLen64-1 && b > 1 {
				return 0, -1
			}
			return value | uint64(b)<<(7*i), i + 1
		}
		value |= uint64(b&0x7f) << (7 * i)
	}
	return 0, -1
}

// lookupLabel finds key in packed labels.
func lookupLabel(packed, key string) (value string, found bool) {
	for len(packed) > 0 {
		k, rest, ok := cutText(packed)
		if !ok {
			return "", false
		}
		v, rest, ok := cutText(rest)
		if !ok {
			return "", false
		}
		if k == key {
			return v, true
		}
		packed = rest
	}
	return "", false
}

// packFields encodes the values of set in the schema's order, appending to dst.
// The name and the namespace are left out where the key already says them.
func packFields(dst []byte, set fields.Set, o *Object) []byte {
	values := make([]string, 0, 16)
	present := make([]bool, 0, 16)
	for name, value := range set {
		if derived, ok := o.derivedField(name); ok && derived == value {
			continue
		}
		at := o.schema.learnField(name)
		for len(values) <= at {
			values, present = append(values, ""), append(present, false)
		}
		values[at], present[at] = value, true
	}
	for i, value := range values {
		if !present[i] {
			dst = append(dst, 0)
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(len(value))+1)
		dst = append(dst, value...)
	}
	return dst
}

// lookupField returns the value at place i of packed field values.
func lookupField(packed string, i int) (value string, found bool) {
	for ; len(packed) > 0; i-- {
		n, width := uvarint(packed)
		if width <= 0 {
			return "", false
		}
		packed = packed[width:]
		size := uint64(0)
		if n > 0 {
			size = n - 1
		}
		if size > uint64(len(packed)) {
			return "", false
		}
		if i == 0 {
			return packed[:size], n > 0
		}
		packed = packed[size:]
	}
	return "", false
}

// packSize encodes the size of a stored value, appending to dst. Four bytes suffice: no
// store takes a value of 4 GiB.
func packSize(dst []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(min(max(size, 0), math.MaxUint32)))
}

// unpackSize is the inverse of packSize.
func unpackSize(packed string) int64 {
	return int64(uint32(packed[0]) | uint32(packed[1])<<8 | uint32(packed[2])<<16 | uint32(packed[3])<<24)
}

// objectLabels and objectFields are an Object seen as its labels and fields:
// converting the pointer makes the interface without an allocation.
type (
	objectLabels Object
	objectFields Object
)

var (
	_ labels.Labels = (*objectLabels)(nil)
	_ fields.Fields = (*objectFields)(nil)
)

// Has reports whether the object carries the label.
func (l *objectLabels) Has(key string) bool { _, ok := lookupLabel(l.labels, key); return ok }

// Get is the label's value, or "".
func (l *objectLabels) Get(key string) string { v, _ := lookupLabel(l.labels, key); return v }

// Lookup is the label's value and whether it exists.
func (l *objectLabels) Lookup(key string) (string, bool) { return lookupLabel(l.labels, key) }

// Has reports whether the object has the field.
func (f *objectFields) Has(name string) bool { _, ok := (*Object)(f).lookupField(name); return ok }

// Get is the field's value, or "".
func (f *objectFields) Get(name string) string { return (*Object)(f).field(name) }

const (
	internerFirst = 64
	internerLast  = 4096
)

// interner shares equal strings among objects that are made near each other in
// time, such as the label sets of one workload's pods. A string takes the slot of its hash
// from the one before, so that no reference counts are needed and the table stays small.
type interner struct {
	table  atomic.Pointer[internTable]
	misses atomic.Uint32
}

type internTable struct {
	seed  maphash.Seed
	slots []atomic.Pointer[string]
}

// intern returns the text as a string, an older equal one if its slot still has it.
func (n *interner) intern(text []byte) string {
	if len(text) == 0 {
		return ""
	}
	t := n.table.Load()
	if t == nil {
		t = n.grow(nil)
	}
	slot := &t.slots[maphash.Bytes(t.seed, text)%uint64(len(t.slots))]
	if known := slot.Load(); known != nil && *known == string(text) {
		return *known
	}
	fresh := string(text)
	slot.Store(&fresh)
	if n.misses.Add(1) > uint32(len(t.slots)) && len(t.slots) < internerLast {
		n.grow(t)
	}
	return fresh
}

// grow replaces old by an empty table four times its size. Losing what it
// remembered costs a few duplicate strings.
func (n *interner) grow(old *internTable) *internTable {
	size := internerFirst
	if old != nil {
		size = 4 * len(old.slots)
	}
	t := &internTable{seed: maphash.MakeSeed(), slots: make([]atomic.Pointer[string], size)}
	n.misses.Store(0)
	if !n.table.CompareAndSwap(old, t) {
		return n.table.Load()
	}
	return t
}
