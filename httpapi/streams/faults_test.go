package streams

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/faults/inject"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/watch"
)

// TestLastBookmarkOvertakesNoEvent checks that a watch that the server ends gets no bookmark while a fault delays one
// of its events, because its client would resume after that event.
func TestLastBookmarkOvertakesNoEvent(t *testing.T) {
	configmaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	encoder := registrytest.New(t, nil).Registry.Endpoint(configmaps, "").View.Encoder(encoding.JSON, encoding.Full)
	for _, rule := range []string{"", `{"name":"r","match":{"resource":"configmaps"},"delay":"1h"}`} {
		synctest.Test(t, func(t *testing.T) {
			injected := inject.New(0)
			if rule != "" {
				answer := httptest.NewRecorder()
				injected.ServeHTTP(answer, httptest.NewRequest(http.MethodPut, "/larder/faults/r", strings.NewReader(rule)))
				if answer.Code >= 300 {
					t.Fatal(answer.Body)
				}
			}
			objects := cache.NewSchema("configmaps", nil)
			kept, hub := runningHub(t, objects, noSource{})
			m := new(apimetrics.Resources).Of(configmaps, "", true).Of("watch", "cluster")
			sent := &sink{}
			ws := &watchStream{encoder: encoder, bookmarks: true, streams: New(), observer: observer{sent: m, open: m, began: time.Now()}, ends: time.Now().Add(time.Hour)}
			ws.Conn = sent
			ws.faults = injected.Plan(inject.RequestOf("u", "a", "watch", "", "configmaps", "", "", "")).Watch(ws.wake)
			defer ws.faults.Close()
			var err error
			if ws.watcher, err = hub.Watch(watch.Options{After: 7, Bookmarks: true, Wake: ws.wake}); err != nil {
				t.Fatal(err)
			}
			defer ws.watcher.Close()
			b := getBatch()
			defer b.release()
			if more, err := ws.step(b); more || err != nil {
				t.Fatal(more, err)
			}
			defer ws.timer.Stop()
			body, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "x", ResourceVersion: "8"}}).Marshal()
			if err != nil {
				t.Fatal(err)
			}
			o := cache.NewObject(cache.ObjectConfig{Key: "x/a", Revision: 8, Body: body}, objects)
			kept.Apply(cache.Batch{Revision: 8, Time: time.Now(), Changes: []cache.Change{{Key: "x/a", Object: o}}})
			synctest.Wait()
			ws.signal(toldToEnd)
			if _, err := ws.step(b); err != errEnd {
				t.Error(err)
			}
			if got := strings.Contains(sent.all.String(), "BOOKMARK"); got != (rule == "") {
				t.Errorf("with rule %q sent %q", rule, sent.all.String())
			}
		})
	}
}
