package encoding

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

const (
	// decryptTimeout limits the decryption of one value. It is longer than the default timeout of a KMS plugin
	// (apiserver pkg/apis/apiserver/v1/defaults.go).
	decryptTimeout = 10 * time.Second
	// DecryptWorkers is the number of values of a resource that are decrypted in parallel. They mostly wait for a KMS
	// plugin.
	DecryptWorkers = 32

	// A KMS plugin counts as hanging if it has failed hungAfter times in succession, each time after hungTime or more.
	// It then gets one request at a time, with pauses of hungPause.
	hungTime  = time.Second
	hungAfter = 4
	hungPause = 5 * time.Second

	// maxProviders limits the key providers, and maxProviderName the length of their names. Without limits, an attacker
	// who can write to the store could exhaust memory with names.
	maxProviders    = 64
	maxProviderName = 512
)

// errHung says that a value was not decrypted because its KMS plugin hangs.
var errHung = errors.New("registry: the KMS plugin does not respond")

// encrypted is the prefix of every encrypted value (apiserver
// pkg/server/options/encryptionconfig/config.go).
var encrypted = []byte("k8s:enc:")

// timeoutTransformer is a transformer with timeouts. If a KMS plugin hangs, only the first values wait for it, and
// values of other providers are not delayed.
type timeoutTransformer struct {
	value.Transformer

	mu        sync.Mutex
	providers map[string]*keyProvider // by the prefix of the values that each has encrypted
}

// keyProvider is the state of one key provider, which is a KMS plugin or local.
type keyProvider struct {
	failures    atomic.Int32 // slow ones in succession
	pausedUntil atomic.Pointer[time.Time]
}

// withTimeouts returns t with timeouts, and whether it decrypts at all.
func withTimeouts(t value.Transformer) (value.Transformer, bool) {
	if t == nil {
		t = identity.NewEncryptCheckTransformer()
	}
	if reflect.TypeOf(t) == reflect.TypeOf(identity.NewEncryptCheckTransformer()) {
		return t, false
	}
	return &timeoutTransformer{Transformer: t, providers: make(map[string]*keyProvider)}, true
}

// TransformFromStorage implements value.Transformer.
func (b *timeoutTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if !bytes.HasPrefix(data, encrypted) {
		return b.Transformer.TransformFromStorage(ctx, data, dataCtx)
	}
	p := b.provider(providerOf(data))
	begun := time.Now()
	if !p.mayRequest(begun) {
		return nil, false, errHung
	}
	ctx, cancel := context.WithTimeout(ctx, decryptTimeout)
	defer cancel()
	out, stale, err := b.Transformer.TransformFromStorage(ctx, data, dataCtx)
	switch now := time.Now(); {
	case err == nil || now.Sub(begun) < hungTime && ctx.Err() == nil:
		p.failures.Store(0)
	case !errors.Is(ctx.Err(), context.Canceled): // not because the caller has left
		until := now.Add(hungPause)
		p.pausedUntil.Store(&until)
		p.failures.Add(1)
	}
	return out, stale, err
}

// providerOf returns the prefix of an encrypted value: encrypted, the provider's kind, its
// version and its name, each ended by a colon, "k8s:enc:kms:v2:NAME:" for example. It is
// empty if the value has no such prefix.
func providerOf(data []byte) []byte {
	data = data[:min(len(data), maxProviderName)]
	end := len(encrypted)
	for range 3 {
		i := bytes.IndexByte(data[end:], ':')
		if i < 0 {
			return nil
		}
		end += i + 1
	}
	return data[:end]
}

// provider returns the state of the provider of that name. Providers beyond maxProviders share one
// state.
func (b *timeoutTransformer) provider(name []byte) *keyProvider {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.providers[string(name)]
	if p != nil {
		return p
	}
	if len(b.providers) >= maxProviders {
		name = nil
		if p := b.providers[""]; p != nil {
			return p
		}
	}
	p = new(keyProvider)
	b.providers[string(name)] = p
	return p
}

// mayRequest reports whether the caller may send a request to the KMS plugin.
func (p *keyProvider) mayRequest(now time.Time) bool {
	if p.failures.Load() < hungAfter {
		return true
	}
	until, next := p.pausedUntil.Load(), now.Add(decryptTimeout+hungPause)
	return !now.Before(*until) && p.pausedUntil.CompareAndSwap(until, &next)
}
