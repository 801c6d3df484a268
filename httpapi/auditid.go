package httpapi

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// newAuditID returns a random UUID. It names requests in logs and guards nothing.
func newAuditID() string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], rand.Uint64()&^0xf000|0x4000) // version 4
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&^(3<<62)|1<<63) // variant 10
	text := make([]byte, 0, 36)
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, id[(len(text)-i)/2:end])
	}
	return string(text)
}
