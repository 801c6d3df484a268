package cache

import (
	"encoding/binary"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Labels and field values are packed into strings. A lookup returns a substring.
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

// cutText splits off the first text that appendText has written to packed.
func cutText(packed string) (text, rest string) {
	n, width := binary.Uvarint([]byte(packed))
	end := width + int(n)
	return packed[width:end], packed[end:]
}

func lookupLabel(packed, key string) (value string, found bool) {
	for len(packed) > 0 {
		k, rest := cutText(packed)
		v, rest := cutText(rest)
		if k == key {
			return v, true
		}
		packed = rest
	}
	return "", false
}

// packFields encodes the values of set in the schema's order, appending to dst.
// It omits the name and the namespace if they equal those in the key.
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

// lookupField returns the value at index i of packed field values.
func lookupField(packed string, i int) (value string, found bool) {
	for ; len(packed) > 0; i-- {
		n, width := binary.Uvarint([]byte(packed))
		end := width + int(max(n, 1)) - 1
		if i == 0 {
			return packed[width:end], n > 0
		}
		packed = packed[end:]
	}
	return "", false
}

// packSize appends the size of a stored value to dst, in four bytes: no store takes a value of 4 GiB.
func packSize(dst []byte, size int) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(min(max(size, 0), math.MaxUint32)))
}

// objectLabels and objectFields implement labels.Labels and fields.Fields for an Object. Converting the pointer does
// not allocate.
type (
	objectLabels Object
	objectFields Object
)

var (
	_ labels.Labels = (*objectLabels)(nil)
	_ fields.Fields = (*objectFields)(nil)
)

// Has reports whether the object carries the label.
func (l *objectLabels) Has(key string) bool { _, ok := (*Object)(l).label(key); return ok }

// Get returns the label's value, or "".
func (l *objectLabels) Get(key string) string { v, _ := (*Object)(l).label(key); return v }

// Lookup returns the label's value and whether it exists.
func (l *objectLabels) Lookup(key string) (string, bool) { return (*Object)(l).label(key) }

// Has reports whether the object has the field.
func (f *objectFields) Has(name string) bool { _, ok := (*Object)(f).lookupField(name); return ok }

// Get returns the field's value, or "".
func (f *objectFields) Get(name string) string { return (*Object)(f).field(name) }
