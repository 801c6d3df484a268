//go:build !invariants

package invariants

// Seal is a checksum of bytes that are shared and must not change. In builds without the tag invariants it
// is empty. The zero Seal checks nothing.
type Seal struct{}

// SealOf returns the Seal of b.
func SealOf([]byte) Seal { return Seal{} }

// Check panics if b has changed since SealOf. what names b in the message.
func (Seal) Check([]byte, string) {}
