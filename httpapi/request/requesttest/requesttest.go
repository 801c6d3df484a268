// Package requesttest compares how Larder and kube-apiserver read requests, for tests of code that
// parses or forwards requests.
package requesttest

import (
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/httpapi/request"
)

// upstream parses as kube-apiserver does: net/http, then RequestInfoFactory.
func upstream(method, target string) (*apirequest.RequestInfo, *url.URL, error) {
	uri := target
	if method == http.MethodConnect && !strings.HasPrefix(uri, "/") {
		uri = "http://" + uri
	}
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, nil, request.ErrTarget
	}
	factory := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(&http.Request{Method: method, URL: u})
	return info, u, err
}

// CheckParity fails t where Larder and upstream read a request differently.
func CheckParity(t interface{ Fatalf(string, ...any) }, method, target string) {
	want, u, wantErr := upstream(method, target)
	got := new(request.Request)
	err := got.Parse(method, target)
	if (err != nil) != (wantErr != nil) || errors.Is(err, request.ErrTarget) != errors.Is(wantErr, request.ErrTarget) {
		t.Fatalf("%s %q: error %v, upstream's %v", method, target, err, wantErr)
	}
	if errors.Is(err, request.ErrTarget) {
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

// Targets returns request targets that are easily read in two ways.
func Targets() []string {
	return []string{
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
		"/api/v1/pods?watch=1" + strings.Repeat("&", request.MaxParams-1), "/api/v1/pods?watch=1" + strings.Repeat("&", request.MaxParams), "/api/v1/pods?limit=x&watch" + strings.Repeat("&a", request.MaxParams),
		"/api/v1/pods?resourceVersionMatch=Exact&resourceVersion=0&sendInitialEvents=&timeoutSeconds=5&continue=abc&allowWatchBookmarks",
	}
}

// Methods returns the usual methods, and some that are not.
func Methods() []string {
	return []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "BREW"}
}
