package httpapi

import "math/rand/v2"

// newAuditID returns a random UUID. It names requests in logs and guards nothing.
func newAuditID() string {
	const digits = "0123456789abcdef"
	var id [36]byte
	hi, lo := rand.Uint64(), rand.Uint64()
	hi = hi&^0xf000 | 0x4000 // version 4
	lo = lo&^(3<<62) | 1<<63 // variant 10
	for i := len(id) - 1; i >= 0; i-- {
		switch i {
		case 8, 13, 18, 23:
			id[i] = '-'
			continue
		}
		word := &hi
		if i > 18 {
			word = &lo
		}
		id[i] = digits[*word&0xf]
		*word >>= 4
	}
	return string(id[:])
}
