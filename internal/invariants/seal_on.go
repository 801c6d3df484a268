//go:build invariants

package invariants

import "hash/crc32"

// Seal is a checksum of bytes that are shared and must not change. In builds without the tag invariants it
// is empty. The zero Seal checks nothing.
type Seal struct {
	sum    uint32
	length int
	closed bool
}

// SealOf returns the Seal of b.
func SealOf(b []byte) Seal { return Seal{crc32.ChecksumIEEE(b), len(b), true} }

// Check panics if b has changed since SealOf. what names b in the message.
func (s Seal) Check(b []byte, what string) {
	if s.closed && (s.length != len(b) || s.sum != crc32.ChecksumIEEE(b)) {
		Assertf(false, "%s of %d bytes was written after it was published with %d", what, len(b), s.length)
	}
}
