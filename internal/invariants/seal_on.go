//go:build invariants

package invariants

import "hash/crc32"

// Seal is a checksum of bytes that were published: they are shared from then on, and
// written no more. In builds that do not check invariants it takes no room. The zero
// Seal is of nothing, and checks nothing.
type Seal struct {
	sum    uint32
	length int
	closed bool
}

// SealOf returns the seal of bytes that are about to be published.
func SealOf(b []byte) Seal { return Seal{crc32.ChecksumIEEE(b), len(b), true} }

// Check panics if b, which what names, is not what was sealed.
func (s Seal) Check(b []byte, what string) {
	if s.closed && (s.length != len(b) || s.sum != crc32.ChecksumIEEE(b)) {
		Assertf(false, "%s of %d bytes was written after it was published with %d", what, len(b), s.length)
	}
}
