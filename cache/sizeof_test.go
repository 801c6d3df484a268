//go:build !invariants

package cache

import "unsafe"

// Sizes of types that exist once for each object or event. They are at the edge of an allocation class, so that
// another field costs 16 bytes more. An Object has 8 bytes left.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Object{})-88]
	_ = [1]struct{}{}[unsafe.Sizeof(Event{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(entry{})-24]
	_ = [1]struct{}{}[unsafe.Sizeof(hashed{})-16]
	_ = [1]struct{}{}[unsafe.Sizeof(cell{})-32]
	_ = [1]struct{}{}[unsafe.Sizeof(Snapshot{})-16]
)
