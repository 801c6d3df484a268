package request_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/request/requesttest"
)

func TestRequestReadsAsUpstream(t *testing.T) {
	for _, target := range requesttest.Targets() {
		for _, method := range requesttest.Methods() {
			requesttest.CheckParity(t, method, target)
		}
	}
}

// TestSelectorsAuthorizeNothingWithoutGate checks that authorizers receive no selectors if the feature gate
// AuthorizeWithSelectors is off.
func TestSelectorsAuthorizeNothingWithoutGate(t *testing.T) {
	gates := utilfeature.DefaultFeatureGate
	featuregatetesting.SetFeatureGateEmulationVersionDuringTest(t, gates, version.MajorMinor(1, 33))
	for _, on := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, gates, features.AuthorizeWithSelectors, on)
		TestRequestReadsAsUpstream(t)
		r := new(request.Request)
		if err := r.Parse("GET", "/api/v1/pods?labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn"); err != nil {
			t.Fatal(err)
		}
		attributes := r.Attributes(nil)
		byField, err := attributes.GetFieldSelector()
		byLabel, labelErr := attributes.GetLabelSelector()
		if (len(byField) == 1) != on || (len(byLabel) == 1) != on || err != nil || labelErr != nil {
			t.Errorf("gate %v: authorizers are told of %v %v and %v %v", on, byField, err, byLabel, labelErr)
		}
	}
}

func TestRequestReadsAsUpstreamForRandomPaths(t *testing.T) {
	segment := rapid.SampledFrom([]string{"", "api", "apis", "apps", "v1", "pods", "namespaces", "watch", "proxy", "status", "finalize", "a", "..", ".", "%2F", "%", "x y", "ü"})
	key := rapid.SampledFrom([]string{"watch", "limit", "fieldSelector", "labelSelector", "timeoutSeconds", "sendInitialEvents", "resourceVersion", "pretty", "%77atch", ""})
	value := rapid.SampledFrom([]string{"", "1", "true", "False", "0", "-3", "x", "a=b", "a%3Db", "metadata.name%3Dx", "metadata.name!%3Dx", "a%20in%20(b)", "((", "%zz", ";", "99999999999999999999"})
	rapid.Check(t, func(t *rapid.T) {
		target := "/" + strings.Join(rapid.SliceOfN(segment, 0, 8).Draw(t, "path"), "/")
		var query []string
		for range rapid.IntRange(0, 4).Draw(t, "params") {
			query = append(query, key.Draw(t, "key")+rapid.SampledFrom([]string{"=", ""}).Draw(t, "eq")+value.Draw(t, "value"))
		}
		if len(query) > 0 {
			target += "?" + strings.Join(query, "&")
		}
		requesttest.CheckParity(t, rapid.SampledFrom(requesttest.Methods()).Draw(t, "method"), target)
	})
}

func FuzzRequest(f *testing.F) {
	for i, target := range requesttest.Targets() {
		f.Add(requesttest.Methods()[i%len(requesttest.Methods())], target)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if len(target) > 1<<15 {
			return // holds more parameters than are read, and is read fast
		}
		requesttest.CheckParity(t, method, target)
	})
}

// checkOptions compares the decoder of list options with upstream's.
func checkOptions(t interface {
	Fatalf(string, ...any)
}, raw string) {
	query := request.ParseQuery(raw)
	want := &internalversion.ListOptions{}
	wantErr := internalscheme.ParameterCodec.DecodeParameters(query.Values(), metav1.SchemeGroupVersion, want)
	got, err := request.DecodeListOptions(query)
	if (err == nil) != (wantErr == nil) || (err != nil && err.Error() != wantErr.Error()) {
		t.Fatalf("%q: error %v, upstream's %v", raw, err, wantErr)
	}
	if err != nil {
		return
	}
	if want.LabelSelector == nil { // no query at all
		want.LabelSelector = labels.Everything()
	}
	if want.FieldSelector == nil {
		want.FieldSelector = fields.Everything()
	}
	if got.LabelSelector.String() != want.LabelSelector.String() || got.FieldSelector.String() != want.FieldSelector.String() ||
		got.LabelSelector.Empty() != want.LabelSelector.Empty() || got.FieldSelector.Empty() != want.FieldSelector.Empty() {
		t.Fatalf("%q: selectors %q %q, upstream's %q %q", raw, got.LabelSelector, got.FieldSelector, want.LabelSelector, want.FieldSelector)
	}
	got.LabelSelector, got.FieldSelector, want.LabelSelector, want.FieldSelector = nil, nil, nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%q:\n got %+v\nwant %+v", raw, got, want)
	}
}

func FuzzListOptions(f *testing.F) {
	for _, target := range requesttest.Targets() {
		if _, raw, ok := strings.Cut(target, "?"); ok {
			f.Add(raw)
		}
	}
	for _, raw := range []string{"", "watch=", "watch=no", "limit=", "limit=+5", "limit=0x10", "timeoutSeconds=", "timeoutSeconds=1.5", "sendInitialEvents=false", "labelSelector=a,b!=c,d in (e,f)", "fieldSelector=a==b,c!=d", "labelSelector=&labelSelector=a", "fieldSelector=a\\,b=c"} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) { checkOptions(t, raw) })
}

func TestPathsKeepTheirShape(t *testing.T) {
	r := new(request.Request)
	if err := r.Parse("GET", "/api/v1/namespaces/a/pods/b/proxy/c//d?x=1"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"pods", "b", "proxy", "c", "", "d"}; !slices.Equal(r.Parts, want) {
		t.Errorf("parts %q, want %q", r.Parts, want)
	}
	if !r.InNamespace || !r.NamesItem() || r.VerbInPath {
		t.Errorf("in a namespace %v, names an item %v, verb in the path %v", r.InNamespace, r.NamesItem(), r.VerbInPath)
	}
}
