package encoding_test

import (
	"bytes"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestStoredValuesMatchUpstream checks that values of all resources, whole and damaged, decode as by upstream's storage
// codec: to the same objects or errors.
func TestStoredValuesMatchUpstream(t *testing.T) {
	server := registrytest.New(t, nil)
	seen, own := 0, 0
	for _, r := range server.Registry.Resources() {
		if r.Cache == nil {
			continue
		}
		seen++
		if checkStored(t, r) {
			own++
		} else {
			t.Logf("%s is left to upstream", r.GroupResource)
		}
	}
	if seen < 50 || own < seen-2 {
		t.Errorf("of %d resources %d are decoded without upstream's codec", seen, own)
	}
}

// checkStored reports whether values of r are decoded without upstream's codec.
func checkStored(t *testing.T, r *registry.Resource) bool {
	t.Helper()
	random := rand.New(rand.NewSource(11))
	own := false
	for seed := range int64(proctest.Fewer(12)) {
		obj := r.Codec().New()
		if seed > 0 { // the first one has nothing but defaults
			registrytest.Fill(obj, rand.NewSource(seed))
		}
		value, err := r.Codec().EncodeStored(obj)
		if err != nil {
			t.Fatalf("%s: %v", r.GroupResource, err)
		}
		own = r.Codec().DecodesCanonical(value)
		compareDecoded(t, r, value)
		if own { // lengths that overflow
			for _, length := range []string{"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
				for _, end := range []string{"", "\x1a\x00\"\x00"} {
					compareDecoded(t, r, slices.Concat(envelopeOf(value), []byte(length+end)))
				}
			}
		}
		for range 40 {
			compareDecoded(t, r, damaged(random, value))
		}
	}
	return own
}

// envelopeOf is a value up to the length of its message.
func envelopeOf(value []byte) []byte {
	const start = 6 // the magic number, the tag of the kind, and its length
	return bytes.Clone(value[:start+int(value[start-1])+1])
}

// damaged returns a value with one byte changed, added or removed, or without its end.
func damaged(random *rand.Rand, value []byte) []byte {
	at := random.Intn(len(value))
	switch random.Intn(4) {
	case 0:
		return slices.Insert(bytes.Clone(value), at, byte(random.Intn(256)))
	case 1:
		return slices.Delete(bytes.Clone(value), at, at+1)
	case 2:
		return bytes.Clone(value[:at])
	}
	value = bytes.Clone(value)
	value[at] ^= byte(1 << random.Intn(8))
	return value
}

func compareDecoded(t *testing.T, r *registry.Resource, value []byte) {
	t.Helper()
	decode := func(by func([]byte, runtime.Object, int64) error) (runtime.Object, string) {
		obj := r.Codec().New()
		if err := by(bytes.Clone(value), obj, 7); err != nil {
			return nil, err.Error()
		}
		return obj, ""
	}
	want, wantErr := decode(r.Codec().DecodeUpstream)
	got, gotErr := decode(r.Codec().DecodeStored)
	if gotErr != wantErr || !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: %q decodes to\n%#v, %s\nupstream decodes it to\n%#v, %s", r.GroupResource, value, got, gotErr, want, wantErr)
	}
}

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
		for seed := range int64(proctest.Fewer(12)) {
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
				t.Errorf("%s: from the cache comes\n%#v, %v\nfrom the store\n%#v", r.GroupResource, got, err, want)
				break
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d resources were tried", seen)
	}
}
