package storage

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/encoding/encodingtest"
)

// TestLoadWithoutKeys loads ten thousand values while the KMS plugin hangs. Within half a minute the cache must be
// loaded, with an error for each value. When the service responds again the values must be decoded, many at a time.
func TestLoadWithoutKeys(t *testing.T) {
	const n = 10_000
	synctest.Test(t, func(t *testing.T) {
		service := new(encodingtest.KMSPlugin)
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.codec.Transformer = service })
		values := make(map[string][]byte)
		for i := range n {
			values[fmt.Sprintf("/pods/a/%05d", i)] = fmt.Appendf(nil, `%s{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"%05d","namespace":"a"}}`, encodingtest.KeyPrefix, i)
		}
		service.Hangs.Store(true)
		revision := f.memory.PutAll(values)
		begun := time.Now()
		if err := f.resource.Cache.Wait(t.Context(), revision); err != nil || time.Since(begun) > time.Minute {
			t.Fatalf("the cache applied the values after %v, error %v, want at most a minute", time.Since(begun), err)
		}
		f.resource.Reflector.Reload()
		begun = time.Now()
		if err := f.resource.Cache.Wait(t.Context(), revision); err != nil || time.Since(begun) > 30*time.Second {
			t.Fatalf("the cache loaded after %v, error %v, want at most 30s", time.Since(begun), err)
		}
		if _, err := f.list(ListRequest{ResourceVersion: "0"}); err == nil {
			t.Error("a list of values that cannot be decrypted succeeded, want an error")
		}
		service.Hangs.Store(false)
		service.MaxConcurrent.Store(0)
		begun = time.Now()
		for {
			listing, err := f.list(ListRequest{ResourceVersion: "0"})
			if err == nil && len(listing.Objects) == n {
				break
			}
			if time.Since(begun) > 2*time.Minute {
				t.Fatalf("got %d objects and error %v after %v, want %d", len(listing.Objects), err, time.Since(begun), n)
			}
			time.Sleep(time.Second)
		}
		if most := service.MaxConcurrent.Load(); most <= encoding.DecryptWorkers/2 || most > 2*encoding.DecryptWorkers {
			t.Errorf("got %d values decrypted at once, want more than %d and at most %d", most, encoding.DecryptWorkers/2, 2*encoding.DecryptWorkers)
		}
	})
}

// TestReadOfTheStoreDecryptsOnce checks that a read of one value from the store calls the KMS plugin once.
func TestReadOfTheStoreDecryptsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := new(encodingtest.KMSPlugin)
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.codec.Transformer = service })
		revision := f.memory.PutAll(map[string][]byte{
			"/pods/a/one": []byte(encodingtest.KeyPrefix + `{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"one","namespace":"a"}}`),
		})
		if err := f.resource.Cache.Wait(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
		service.Requests.Store(0)
		if _, err := f.resource.getStored(t.Context(), "a/one", 0); err != nil || service.Requests.Load() != 1 {
			t.Errorf("got %d calls of the plugin and error %v, want 1", service.Requests.Load(), err)
		}
	})
}
