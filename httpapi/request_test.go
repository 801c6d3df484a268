package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"pgregory.net/rapid"
)

// upstream parses as kube-apiserver does: net/http, then RequestInfoFactory.
func upstream(method, target string) (*request.RequestInfo, *url.URL, error) {
	uri := target
	if method == http.MethodConnect && !strings.HasPrefix(uri, "/") {
		uri = "http://" + uri
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, nil, errTarget
	}
	factory := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(&http.Request{Method: method, URL: u})
	return info, u, err
}

// checkParity fails t when ParseRequest and upstream read a request differently.
func checkParity(t interface {
	Fatalf(string, ...any)
}, method, target string) {
	want, u, wantErr := upstream(method, target)
	got, err := ParseRequest(method, target)
	if (err != nil) != (wantErr != nil) || errors.Is(err, errTarget) != errors.Is(wantErr, errTarget) {
		t.Fatalf("%s %q: error %v, upstream's %v", method, target, err, wantErr)
	}
	if errors.Is(err, errTarget) {
		return
	}
	info := got.RequestInfo()
	if len(info.Parts) == 0 && len(want.Parts) == 0 {
		info.Parts, want.Parts = nil, nil
	}
	if !reflect.DeepEqual(info, want) && err == nil {
		t.Fatalf("%s %q:\n got %+v\nwant %+v", method, target, info, want)
	}
	if got.RawQuery != u.RawQuery || !reflect.DeepEqual(got.Query.Values(), u.Query()) {
		t.Fatalf("%s %q: query %q %v, upstream's %q %v", method, target, got.RawQuery, got.Query, u.RawQuery, u.Query())
	}
}

var parityTargets = []string{
	"/", "", "*", "/api", "/api/v1", "/api/v1/", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/healthz/ping",
	"/api/v1/pods", "/api/v1/pods/", "/api/v1//pods", "//api/v1/pods", "/api/v1/pods?watch", "/api/v1/pods?watch=0", "/api/v1/pods?watch=FALSE",
	"/api/v1/pods?watch=1&limit=x", "/api/v1/pods?watch=false&limit=x", "/api/v1/pods?limit=-1&limit=x", "/api/v1/pods/x?watch=1",
	"/api/v1/namespaces", "/api/v1/namespaces/a", "/api/v1/namespaces/a/status", "/api/v1/namespaces/a/finalize", "/api/v1/namespaces/a/pods/b/log?follow",
	"/api/v1/namespaces/a/status/x/y", "/api/v1/namespaces//pods", "/api/v1/namespaces/a/namespaces/b",
	"/api/v1/watch", "/api/v1/watch/pods", "/api/v1/watch/namespaces/a/pods/b", "/api/v1/proxy/namespaces/a/services/b/c", "/apis/apps/v1/watch",
	"/apis/apps/v1/deployments?fieldSelector=metadata.name%3Dx", "/apis/apps/v1/deployments?fieldSelector=metadata.name%3D..%2Fx",
	"/apis/apps/v1/namespaces/a/deployments/b/scale", "/api/v1/pods?labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn",
	"/api/v1/namespaces/a%2Fb/pods", "/api/v1/namespaces/a/pods/..%2fx", "/api/v1/%70ods", "/api/v1/pods%00", "/api/v1/%zz", "/api/v1/pods%3Fwatch",
	"http://h/api/v1/pods?watch=1", "https://u:p@h:1/api", "h:443", "//", "///", "/a?b?c", "/a#b", "/api/v1/pods?%zz=1&a;b=c&watch=%74rue",
	"/api/v1/pods?watch=1" + strings.Repeat("&", maxQueryParams-1), "/api/v1/pods?watch=1" + strings.Repeat("&", maxQueryParams), "/api/v1/pods?limit=x&watch" + strings.Repeat("&a", maxQueryParams),
	"/api/v1/pods?resourceVersionMatch=Exact&resourceVersion=0&sendInitialEvents=&timeoutSeconds=5&continue=abc&allowWatchBookmarks",
}

var parityMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "BREW"}

func TestRequestReadsAsUpstream(t *testing.T) {
	for _, target := range parityTargets {
		for _, method := range parityMethods {
			checkParity(t, method, target)
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
		checkParity(t, rapid.SampledFrom(parityMethods).Draw(t, "method"), target)
	})
}

func FuzzRequest(f *testing.F) {
	for i, target := range parityTargets {
		f.Add(parityMethods[i%len(parityMethods)], target)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if len(target) > 1<<15 {
			return // holds more parameters than are read, and is read fast
		}
		checkParity(t, method, target)
	})
}

// checkOptions compares the decoder of list options with upstream's.
func checkOptions(t interface {
	Fatalf(string, ...any)
}, raw string) {
	query := parseQuery(nil, raw)
	want := &internalversion.ListOptions{}
	wantErr := internalscheme.ParameterCodec.DecodeParameters(query.Values(), metav1.SchemeGroupVersion, want)
	got, err := decodeListOptions(query)
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
	for _, target := range parityTargets {
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
	r, err := ParseRequest("GET", "/api/v1/namespaces/a/pods/b/proxy/c//d?x=1")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"pods", "b", "proxy", "c", "", "d"}; !slices.Equal(r.Parts, want) {
		t.Errorf("parts %q, want %q", r.Parts, want)
	}
	if !r.scoped || !r.named() || r.viaPath {
		t.Errorf("scoped %v named %v viaPath %v", r.scoped, r.named(), r.viaPath)
	}
}
