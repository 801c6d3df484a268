package encoding_test

import (
	"bytes"
	"math/rand"
	"reflect"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestCachedObjectsAreRestored checks that a write that starts from the cache gets the same object as from upstream's
// storage codec, including maps that defaults leave empty. Otherwise an immutable ConfigMap without data could not be
// updated.
func TestCachedObjectsAreRestored(t *testing.T) {
	server := registrytest.New(t, nil)
	seen := 0
	for _, r := range server.Registry.Resources() {
		if r.Cache == nil || r.Codec().Decorate != nil {
			continue
		}
		if r.GroupResource.Resource == "customresourcedefinitions" { // stored as JSON, which has empty lists
			continue
		}
		seen++
		for seed := range int64(proctest.Iterations(12)) {
			obj := r.Codec().New()
			if seed > 0 { // the first one has nothing but defaults
				registrytest.Fill(obj, rand.NewSource(seed))
			}
			var value []byte
			want, got := r.Codec().New(), r.Codec().New()
			for range 2 { // random content may not be representable in a version of the API
				var err error
				if value, err = r.Codec().EncodeStored(obj); err != nil {
					t.Fatalf("%s: %v", r.GroupResource, err)
				}
				if err := r.Codec().DecodeUpstream(bytes.Clone(value), want, 7); err != nil {
					t.Fatalf("%s: %v", r.GroupResource, err)
				}
				obj = want.DeepCopyObject()
			}
			cached := r.Codec().DecodeUnknown("a", value, 7)
			if err := cached.Err(); err != nil {
				t.Fatalf("%s: %v", r.GroupResource, err)
			}
			if err := r.Codec().Restore(cached.Body(), got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: from the cache:\n%#v, error %v\nfrom the store:\n%#v", r.GroupResource, got, err, want)
				break
			}
		}
	}
	if seen < 50 {
		t.Errorf("tested %d resources, want more", seen)
	}
}
