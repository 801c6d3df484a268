package writes

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/exchange"
)

// TestWarningsMatchUpstream compares the Warning headers of random texts, valid and invalid, with those of
// upstream's filter.
func TestWarningsMatchUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.Custom(func(t *rapid.T) string {
			piece := rapid.SampledFrom([]string{"a", "é", "\u0080", "\n", "\"", "long and longer "}).Draw(t, "piece")
			return strings.Repeat(piece, rapid.SampledFrom([]int{0, 1, 2, 200, 300, 2000, 4096}).Draw(t, "times"))
		})
		texts := rapid.SliceOfN(text, 0, 12).Draw(t, "texts")
		theirs := httptest.NewRecorder()
		filters.WithWarningRecorder(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			for _, text := range texts {
				warning.AddWarning(req.Context(), "", text)
			}
		})).ServeHTTP(theirs, httptest.NewRequest(http.MethodPost, "/", nil))
		own, to := &recorder{}, &exchange.Response{}
		for _, text := range texts {
			own.AddWarning("", text)
		}
		own.close(to)
		var got []string
		for _, f := range to.Header {
			got = append(got, f.Value)
		}
		if want := theirs.Header()["Warning"]; !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// TestOwnersAreUnique checks that exactly the semantically different ones of random owner references remain.
func TestOwnersAreUnique(t *testing.T) {
	flags := []*bool{nil, ptr.To(false), ptr.To(true), ptr.To(true)}
	rapid.Check(t, func(t *rapid.T) {
		owner := rapid.Custom(func(t *rapid.T) metav1.OwnerReference {
			some := rapid.SampledFrom([]string{"a", "b"}) // few, so that many lists have duplicates
			return metav1.OwnerReference{
				APIVersion: some.Draw(t, "version"), Name: some.Draw(t, "name"), UID: types.UID(some.Draw(t, "uid")),
				Controller: rapid.SampledFrom(flags).Draw(t, "controller"), BlockOwnerDeletion: rapid.SampledFrom(flags).Draw(t, "blocks"),
			}
		})
		owners := rapid.SliceOfN(owner, 4, 20).Draw(t, "owners")
		var want []metav1.OwnerReference
		for _, o := range owners {
			if !slices.ContainsFunc(want, func(other metav1.OwnerReference) bool { return apiequality.Semantic.DeepEqual(o, other) }) {
				want = append(want, o)
			}
		}
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owners}}
		dedupOwners(t.Context(), obj, duplicateOwners)
		if !apiequality.Semantic.DeepEqual(obj.OwnerReferences, want) {
			t.Fatalf("%v are left, want %v", obj.OwnerReferences, want)
		}
	})
}
