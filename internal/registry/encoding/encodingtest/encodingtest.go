// Package encodingtest has a key service that tests of encryption at rest ask. Its methods
// may be called from any goroutine; they wait by the clock, so they are for bubbles of
// testing/synctest.
package encodingtest

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
)

// KeyPrefix begins the values that a KeyService encrypts; the rest is plain text.
const KeyPrefix = "k8s:enc:kms:v2:test:"

// keyTime is how long a KeyService takes for an answer.
const keyTime = 100 * time.Millisecond

// KeyService is a transformer that asks a key service.
type KeyService struct {
	value.Transformer

	Hangs atomic.Bool  // it answers nothing until the caller's context ends
	Asked atomic.Int64 // values
	Most  atomic.Int64 // values at the same time

	asking atomic.Int64
}

// TransformFromStorage implements value.Transformer.
func (k *KeyService) TransformFromStorage(ctx context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	k.Asked.Add(1)
	k.Most.Store(max(k.Most.Load(), k.asking.Add(1)))
	defer k.asking.Add(-1)
	if k.Hangs.Load() {
		<-ctx.Done()
		return nil, false, ctx.Err()
	}
	<-time.After(keyTime)
	return data[min(len(data), len(KeyPrefix)):], false, nil
}
