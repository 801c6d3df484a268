package storage

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestUnsafeDeletionOfCorruptObjects checks that with the feature for it a list names all corrupt objects, up to a
// hundred, and each can be deleted unread.
func TestUnsafeDeletionOfCorruptObjects(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
	for name, uncached := range map[string]bool{"cached": false, "from the store": true} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.uncached = uncached })
			f.create(examplePod("a", "good"))
			f.plant("/pods/b/decrypt", "garbage")
			revision := f.plant("/pods/c/decode", testPrefix+"k8s\x00garbage")
			causes := f.corruptCauses(ListRequest{})
			if len(causes) != 2 || causes[0].Field != "/pods/b/decrypt" || causes[1].Field != "/pods/c/decode" ||
				!strings.Contains(causes[0].Message, "AdditionalErrorMsg: data from the storage is not transformable revision=0: value does not have expected prefix") ||
				!strings.Contains(causes[1].Message, fmt.Sprintf("AdditionalErrorMsg: object not decodable revision=%d: ", revision)) {
				t.Errorf("list: got causes %+v, want those of both corrupt objects", causes)
			}
			if listing, err := f.list(ListRequest{Scope: Scope{Namespace: "a"}}); err != nil || len(listing.Objects) != 1 {
				t.Errorf("list of another namespace: got %+v and error %v, want one object", listing, err)
			}
			if causes := f.corruptCauses(ListRequest{Scope: Scope{Namespace: "c", Name: "decode"}}); len(causes) != 1 || causes[0].Field != "/pods/c/decode" {
				t.Errorf("list of one object: got causes %+v, want its own", causes)
			}
			for _, key := range []string{"/pods/b/decrypt", "/pods/c/decode"} {
				err := f.Get(t.Context(), key, storage.GetOptions{}, &example.Pod{})
				if !storage.IsCorruptObject(err) || !strings.Contains(err.Error(), "Key: "+key+",") {
					t.Errorf("get %s: got error %v, want that of a corrupt object with its key", key, err)
				}
				err = f.GuaranteedUpdate(t.Context(), key, &example.Pod{}, false, nil, storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) { return o, nil }), nil)
				if want := map[bool]string{true: fmt.Sprintf("object not decodable revision=%d: ", revision), false: "data from the storage is not transformable revision=0: value"}[key == "/pods/c/decode"]; err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("update %s: %v, want %q in it", key, err, want)
				}
				if err := f.Delete(t.Context(), key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{IgnoreStoreReadError: true}); err != nil {
					t.Errorf("delete %s: %v", key, err)
				}
			}
			if listing, err := f.list(ListRequest{}); err != nil || len(listing.Objects) != 1 {
				t.Errorf("list after the deletions: got %+v and error %v, want one object", listing, err)
			}
			if n := f.resource.Codec().Undecodable(); n < 1 { // the first object is not counted, the second at each read
				t.Errorf("got %d undecodable values, want at least 1", n)
			}
			before := f.resource.Codec().Undecodable()
			for i := range 150 {
				f.plant(fmt.Sprintf("/pods/d/%03d", i), "garbage")
			}
			if causes := f.corruptCauses(ListRequest{}); len(causes) != 101 || causes[100].Type != metav1.CauseTypeTooMany || causes[99].Field != "/pods/d/099" {
				t.Errorf("got %d causes, the last %+v, want 100 and one for the rest", len(causes), causes[len(causes)-1])
			}
			if n := f.resource.Codec().Undecodable(); n != before {
				t.Errorf("%d values that cannot be decrypted are counted as undecodable, want 0", n-before)
			}
		})
	}
}

// corruptCauses makes a list that must fail and returns the causes.
func (f *fixture) corruptCauses(q ListRequest) []metav1.StatusCause {
	f.t.Helper()
	var err error
	f.patiently(func() error {
		_, err = f.list(q)
		return err
	})
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		f.t.Fatalf("list: %v", err)
	}
	s := status.ErrStatus
	if s.Code != 500 || s.Reason != metav1.StatusReasonStoreReadError || s.Message != "failed to read one or more pods from the storage" || s.Details.Kind != "pods" || s.Details.Name != "list" {
		f.t.Fatalf("got status %+v with details %+v, want upstream's StoreReadError", s, s.Details)
	}
	return s.Details.Causes
}
