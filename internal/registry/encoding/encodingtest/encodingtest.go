// Package encodingtest has a simulated KMS plugin for tests of encryption at rest. Its methods may be called from any
// goroutine. They wait, so use them in testing/synctest bubbles.
package encodingtest

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
)

// KeyPrefix begins the values that a KMSPlugin encrypts; the rest is plain text.
const KeyPrefix = "k8s:enc:kms:v2:test:"

// keyTime is the latency of a KMSPlugin.
const keyTime = 100 * time.Millisecond

// KMSPlugin is a transformer that behaves like a KMS plugin.
type KMSPlugin struct {
	value.Transformer

	Hangs         atomic.Bool // while set, it does not respond until the caller's context ends
	Requests      atomic.Int64
	MaxConcurrent atomic.Int64 // highest number of concurrent requests

	concurrent atomic.Int64
}

// TransformFromStorage implements value.Transformer.
func (k *KMSPlugin) TransformFromStorage(ctx context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	k.Requests.Add(1)
	k.MaxConcurrent.Store(max(k.MaxConcurrent.Load(), k.concurrent.Add(1)))
	defer k.concurrent.Add(-1)
	if k.Hangs.Load() {
		<-ctx.Done()
		return nil, false, ctx.Err()
	}
	<-time.After(keyTime)
	return data[min(len(data), len(KeyPrefix)):], false, nil
}
