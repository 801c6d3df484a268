package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/larder-io/larder/internal/registry/encoding"
)

// keyService is a transformer that asks a key service, which may hang. It counts who asks.
type keyService struct {
	value.Transformer
	hangs       atomic.Bool
	asked, most atomic.Int64
	asking      atomic.Int64
}

const keyPrefix = "k8s:enc:kms:v2:test:"

// TransformFromStorage implements value.Transformer.
func (k *keyService) TransformFromStorage(ctx context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	k.asked.Add(1)
	k.most.Store(max(k.most.Load(), k.asking.Add(1)))
	defer k.asking.Add(-1)
	if k.hangs.Load() {
		<-ctx.Done()
		return nil, false, ctx.Err()
	}
	time.Sleep(100 * time.Millisecond)
	return data[min(len(data), len(keyPrefix)):], false, nil
}

// TestLoadWithoutKeys loads ten thousand values while the key service hangs: the cache is
// there within half a minute and says of each that it cannot be read. When the service
// answers again they heal, many at a time.
func TestLoadWithoutKeys(t *testing.T) {
	const n = 10_000
	synctest.Test(t, func(t *testing.T) {
		service := new(keyService)
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.codec.Transformer = service })
		values := make(map[string][]byte)
		for i := range n {
			values[fmt.Sprintf("/pods/a/%05d", i)] = fmt.Appendf(nil, `%s{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"%05d","namespace":"a"}}`, keyPrefix, i)
		}
		service.hangs.Store(true)
		revision := f.memory.PutAll(values)
		begun := time.Now()
		if err := f.resource.Cache.Wait(t.Context(), revision); err != nil || time.Since(begun) > time.Minute {
			t.Fatalf("applied after %v, %v", time.Since(begun), err)
		}
		f.resource.Reflector.Reload()
		begun = time.Now()
		if err := f.resource.Cache.Wait(t.Context(), revision); err != nil || time.Since(begun) > 30*time.Second {
			t.Fatalf("loaded after %v, %v", time.Since(begun), err)
		}
		if _, err := f.list(ListRequest{ResourceVersion: "0"}); err == nil {
			t.Error("a list of what cannot be read")
		}
		service.hangs.Store(false)
		service.most.Store(0)
		begun = time.Now()
		for {
			listing, err := f.list(ListRequest{ResourceVersion: "0"})
			if err == nil && len(listing.Objects) == n {
				break
			}
			if time.Since(begun) > 2*time.Minute {
				t.Fatalf("after %v: %v", time.Since(begun), err)
			}
			time.Sleep(time.Second)
		}
		if most := service.most.Load(); most <= encoding.DecryptWorkers/2 || most > 2*encoding.DecryptWorkers {
			t.Errorf("%d values were decrypted at once", most)
		}
	})
}
