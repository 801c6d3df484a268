package encoding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/internal/registry/encoding/encodingtest"
)

// TestKMSPluginThatHangs checks that a KMS plugin that hangs delays readers only for seconds and gets few requests,
// however many values are read. It is used again once it responds.
func TestKMSPluginThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := new(encodingtest.KMSPlugin)
		service.Hangs.Store(true)
		b, decrypts := withTimeouts(service)
		if !decrypts {
			t.Fatal("the plugin is taken for one that does not decrypt")
		}
		all := func() (failed int64) {
			var wait sync.WaitGroup
			var failures atomic.Int64
			for range DecryptWorkers {
				wait.Go(func() {
					for range 1000 {
						if _, _, err := b.TransformFromStorage(t.Context(), []byte(encodingtest.KeyPrefix+"x"), nil); err != nil {
							failures.Add(1)
						}
					}
				})
			}
			wait.Wait()
			return failures.Load()
		}
		begun := time.Now()
		if failed := all(); failed != DecryptWorkers*1000 || service.Requests.Load() > DecryptWorkers+hungAfter || time.Since(begun) > 3*decryptTimeout {
			t.Errorf("%d values failed after %d requests to the plugin, in %v", failed, service.Requests.Load(), time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		other, _ := withTimeouts(service)
		for range 10 { // callers that cancel their requests do not count against the plugin
			ctx, cancel := context.WithCancel(t.Context())
			go func() { time.Sleep(2 * hungTime); cancel() }()
			if _, _, err := other.TransformFromStorage(ctx, []byte(encodingtest.KeyPrefix+"x"), nil); !errors.Is(err, context.Canceled) {
				t.Errorf("a canceled request returned %v, want context.Canceled", err)
			}
		}
		if _, _, err := b.TransformFromStorage(ctx, []byte("plain"), nil); errors.Is(err, errHung) {
			t.Errorf("a value that is not encrypted: %v", err)
		}
		service.Hangs.Store(false)
		time.Sleep(decryptTimeout + hungPause)
		if _, _, err := b.TransformFromStorage(t.Context(), []byte(encodingtest.KeyPrefix+"x"), nil); err != nil {
			t.Errorf("a value after the plugin responds again: %v", err)
		}
		if failed := all(); failed > 0 {
			t.Errorf("%d values failed after the plugin responded again", failed)
		}
	})
}

// kmsPlugins are KMS plugins, by the prefix of the values that each encrypts.
type kmsPlugins map[string]*encodingtest.KMSPlugin

// TransformFromStorage implements value.Transformer.
func (k kmsPlugins) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	for prefix, service := range k {
		if bytes.HasPrefix(data, []byte(prefix)) {
			return service.TransformFromStorage(ctx, data, dataCtx)
		}
	}
	return nil, false, errors.New("no plugin has this prefix")
}

// TransformToStorage implements value.Transformer.
func (k kmsPlugins) TransformToStorage(context.Context, []byte, value.Context) ([]byte, error) {
	return nil, errors.New("encryption is not simulated")
}

// TestOneKMSPluginOfSeveralHangs checks that while one KMS plugin hangs, values of others are decrypted, and that names
// of unknown providers do not accumulate.
func TestOneKMSPluginOfSeveralHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung, other, local := "k8s:enc:kms:v2:hung:", "k8s:enc:kms:v2:hung2:", "k8s:enc:aescbc:v1:hung:"
		services := kmsPlugins{hung: new(encodingtest.KMSPlugin), other: new(encodingtest.KMSPlugin), local: new(encodingtest.KMSPlugin)}
		services[hung].Hangs.Store(true)
		transformer, _ := withTimeouts(services)
		decrypt := func(data string) error {
			_, _, err := transformer.TransformFromStorage(t.Context(), []byte(data), nil)
			return err
		}
		for range hungAfter {
			if err := decrypt(hung + "x"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a plugin that hangs: %v", err)
			}
		}
		if err := decrypt(hung + "y"); !errors.Is(err, errHung) {
			t.Errorf("a plugin that has hung often: %v", err)
		}
		for _, prefix := range []string{other, local} {
			if err := decrypt(prefix + "a value that is long enough to hold a name"); err != nil {
				t.Errorf("%s, whose plugin responds: %v", prefix, err)
			}
		}
		if err := decrypt(hung + "z"); !errors.Is(err, errHung) {
			t.Errorf("the plugin that hangs, after another has responded: %v", err)
		}
		for i := range 10 * maxProviders {
			if err := decrypt(fmt.Sprintf("k8s:enc:kms:v2:%d:x", i)); err == nil {
				t.Error("decrypted a value of an unknown provider")
			}
		}
		if err := decrypt("k8s:enc:" + strings.Repeat("x", 2*maxProviderName) + ":v2:n:x"); err == nil {
			t.Error("decrypted a value of an unknown provider")
		}
		if n := len(transformer.(*timeoutTransformer).providers); n > maxProviders+1 {
			t.Errorf("%d providers are cached", n)
		}
	})
}
