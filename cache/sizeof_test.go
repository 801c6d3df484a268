//go:build !invariants

package cache

import "unsafe"

// Sizes of what exists once per object or event, at the edge of an allocation
// class: another field costs 16 bytes more.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Object{})-96]
	_ = [1]struct{}{}[unsafe.Sizeof(Event{})-64]
	_ = [1]struct{}{}[unsafe.Sizeof(entry{})-24]
	_ = [1]struct{}{}[unsafe.Sizeof(hashed{})-16]
	_ = [1]struct{}{}[unsafe.Sizeof(cell{})-32]
	_ = [1]struct{}{}[unsafe.Sizeof(Snapshot{})-16]
)
