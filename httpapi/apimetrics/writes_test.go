package apimetrics

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"pgregory.net/rapid"
)

// tellWrite counts w in upstream's metrics.
func tellWrite(gvr schema.GroupVersionResource, w Write) {
	ctx := apirequest.WithLatencyTrackers(context.Background())
	if w.Own {
		ctx = apirequest.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser})
	}
	req := &http.Request{URL: &url.URL{Path: "/"}, Header: http.Header{}, Method: map[string]string{
		"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "apply": http.MethodPatch,
		"delete": http.MethodDelete, "deletecollection": http.MethodDelete,
	}[w.Verb]}
	if w.Verb == "apply" {
		req.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	metrics.MonitorRequest(req.WithContext(ctx), req.Method, gvr.Group, gvr.Version, gvr.Resource, "", w.Scope, metrics.APIServerComponent, false, "", w.Code, 0, w.Took)
}

// TestWritesAreCountedAsUpstreamCountsThem checks that Larder's counts, with those of upstream's handlers, read as if
// upstream had counted each write itself.
func TestWritesAreCountedAsUpstreamCountsThem(t *testing.T) {
	metrics.Register()
	of := func(resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "write.test", Version: "v1", Resource: resource}
	}
	tallied := 0
	rapid.Check(t, func(t *rapid.T) {
		metrics.Reset()
		all := new(Resources)
		ours := all.Of(of("ours"), "", false)
		for range rapid.IntRange(0, 60).Draw(t, "writes") {
			kind := rapid.SampledFrom(writeKinds[:]).Draw(t, "kind")
			w := Write{
				Verb: kind.verb, Scope: kind.scope, Code: rapid.SampledFrom([]int{200, 201, 409, kind.code, kind.code}).Draw(t, "code"),
				Took: time.Duration(rapid.IntRange(0, 7e7).Draw(t, "microseconds")) * time.Microsecond, Own: rapid.Bool().Draw(t, "own"),
			}
			if ours.ObserveWrite(w) {
				tallied++
			} else {
				tellWrite(of("ours"), w)
			}
			tellWrite(of("theirs"), w)
		}
		got, want := reports(t, all, "ours"), reports(t, all, "theirs")
		if !maps.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
	if tallied == 0 {
		t.Error("nothing was counted here")
	}
	metrics.Reset()
}
