package identity

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"hash"
	"sync"
)

// Digester makes digests of credentials under a key of its own.
type Digester struct{ pool sync.Pool }

// NewDigester returns a Digester with a new key.
func NewDigester() *Digester {
	key := make([]byte, sha256.Size)
	rand.Read(key) // never fails
	return &Digester{pool: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

// Digest writes the digest of secret to dst; the digest of an empty secret is all zeros.
func (d *Digester) Digest(dst *[sha256.Size]byte, secret []byte) {
	if *dst = [sha256.Size]byte{}; len(secret) == 0 {
		return
	}
	h := d.pool.Get().(hash.Hash)
	h.Reset()
	h.Write(secret)
	h.Sum(dst[:0])
	d.pool.Put(h)
}
