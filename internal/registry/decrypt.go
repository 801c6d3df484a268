package registry

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

const (
	// decryptTimeout is how long one value may take: longer than a key service is given
	// by default (apiserver pkg/apis/apiserver/v1/defaults.go).
	decryptTimeout = 10 * time.Second
	// decryptWorkers is how many values of a resource are decrypted at once: nearly all
	// of the time is waiting for a key service.
	decryptWorkers = 32

	// A key service that failed hungAfter times in a row, each after hungTime or more, is
	// left alone but for one question at a time, at least hungPause apart.
	hungTime  = time.Second
	hungAfter = 4
	hungPause = 5 * time.Second
)

// errHung says that a key service was not asked, because it has not answered lately.
var errHung = errors.New("registry: the key service does not answer")

// encrypted is what every value begins with that is not stored in the clear (apiserver
// pkg/server/options/encryptionconfig/config.go).
var encrypted = []byte("k8s:enc:")

// bounded is a transformer that nobody waits for without end. What holds the keys may
// hang; then each of many values would be waited for.
type bounded struct {
	value.Transformer

	failures atomic.Int32 // slow ones, since it answered last
	resting  atomic.Int64 // until when nobody asks, in nanoseconds since 1970
}

// bound returns t within bounds, and whether it decrypts at all.
func bound(t value.Transformer) (value.Transformer, bool) {
	if t == nil {
		t = identity.NewEncryptCheckTransformer()
	}
	if reflect.TypeOf(t) == reflect.TypeOf(identity.NewEncryptCheckTransformer()) {
		return t, false
	}
	return &bounded{Transformer: t}, true
}

// TransformFromStorage implements value.Transformer.
func (b *bounded) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if !bytes.HasPrefix(data, encrypted) {
		return b.Transformer.TransformFromStorage(ctx, data, dataCtx)
	}
	begun := time.Now()
	if !b.mayAsk(begun) {
		return nil, false, errHung
	}
	ctx, cancel := context.WithTimeout(ctx, decryptTimeout)
	defer cancel()
	out, stale, err := b.Transformer.TransformFromStorage(ctx, data, dataCtx)
	switch now := time.Now(); {
	case err == nil || now.Sub(begun) < hungTime && ctx.Err() == nil:
		b.failures.Store(0)
	case !errors.Is(ctx.Err(), context.Canceled): // else the caller has left
		b.resting.Store(now.Add(hungPause).UnixNano())
		b.failures.Add(1)
	}
	return out, stale, err
}

// mayAsk reports whether the caller may ask what holds the keys.
func (b *bounded) mayAsk(now time.Time) bool {
	if b.failures.Load() < hungAfter {
		return true
	}
	until := b.resting.Load()
	return until <= now.UnixNano() && b.resting.CompareAndSwap(until, now.Add(decryptTimeout+hungPause).UnixNano())
}
