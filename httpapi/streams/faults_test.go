package streams

import (
	"net"
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

// newWatch returns a watch of ConfigMaps after revision 7, and a function that changes one.
func newWatch(t *testing.T, encoder *encoding.Encoder, to net.Conn, injected *inject.Faults) (_ *watchStream, change func(size int)) {
	t.Helper()
	configmaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	objects := cache.NewResourceSchema("configmaps", nil)
	kept, hub := runningHub(t, objects, noSource{})
	m := new(apimetrics.Resources).Of(configmaps, "").Of("watch", "cluster")
	ws := &watchStream{encoder: encoder, bookmarks: true, streams: New(), observer: observer{sent: m, open: m, began: time.Now()}, ends: time.Now().Add(time.Hour)}
	ws.Conn = to
	ws.faults = injected.Plan(inject.RequestOf("u", "a", "watch", "", "configmaps", "", "", "")).Watch(ws.wake)
	t.Cleanup(ws.faults.Close)
	var err error
	if ws.watcher, err = hub.Watch(watch.Options{After: 7, Bookmarks: true, Wake: ws.wake}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ws.watcher.Close)
	t.Cleanup(func() {
		if ws.timer != nil {
			ws.timer.Stop()
		}
	})
	return ws, func(size int) {
		body, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "x", ResourceVersion: "8"}, Data: map[string]string{"d": strings.Repeat("d", size)}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		o := cache.NewObject(cache.ObjectConfig{Key: "x/a", Revision: 8, Body: body}, objects)
		kept.Apply(cache.Batch{Revision: 8, Time: time.Now(), Changes: []cache.Change{{Key: "x/a", Object: o}}})
		synctest.Wait()
	}
}

// TestBookmarksOvertakeNoEvent checks that a watch gets no bookmark while a fault delays one of its events, because its
// client would resume after that event: neither when one is due nor when the server ends the watch.
func TestBookmarksOvertakeNoEvent(t *testing.T) {
	encoder := registrytest.New(t, nil).Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "").View.Encoder(encoding.JSON, encoding.Full)
	for _, c := range []struct {
		signal uint32
		end    error
	}{{toldToEnd, errEnd}, {timerFired, nil}} {
		for _, rule := range []string{"", `{"name":"r","match":{"resource":"configmaps"},"delay":"1h"}`} {
			synctest.Test(t, func(t *testing.T) {
				injected := inject.New(0)
				if rule != "" {
					response := httptest.NewRecorder()
					injected.ServeHTTP(response, httptest.NewRequest(http.MethodPut, "/larder/faults/r", strings.NewReader(rule)))
					if response.Code >= 300 {
						t.Fatal(response.Body)
					}
				}
				sent := &sink{}
				ws, change := newWatch(t, encoder, sent, injected)
				b := getBatch()
				defer b.release()
				if more, err := ws.step(b); more || err != nil {
					t.Fatal(more, err)
				}
				change(1)
				ws.nextBookmark = time.Now()
				ws.signal(c.signal)
				if _, err := ws.step(b); err != c.end {
					t.Error(err)
				}
				if got := strings.Contains(sent.all.String(), "BOOKMARK"); got != (rule == "") {
					t.Errorf("signal %d, rule %q: sent %q", c.signal, rule, sent.all.String())
				}
			})
		}
	}
}

// TestStep checks how a step ends that has an event to send. A watch keeps its seat, and gets no timer, until the
// initial events have been sent. The metrics count an event that was sent.
func TestStep(t *testing.T) {
	encoder := registrytest.New(t, nil).Registry.Endpoint(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "").View.Encoder(encoding.JSON, encoding.Full)
	for name, c := range map[string]struct {
		change                func(ws *watchStream)
		size                  int // of the event
		more, sent, scheduled bool
		end                   error
	}{
		"all is sent":         {func(*watchStream) {}, 1, false, true, true, nil},
		"more may be left":    {func(*watchStream) {}, runSize, true, true, false, nil},
		"the right is lost":   {func(ws *watchStream) { ws.right = &countedRight{lost: true} }, 1, false, false, false, errEnd},
		"the client has left": {func(ws *watchStream) { ws.signal(clientLeft | toldToEnd) }, 1, false, false, false, errLeft},
		"no events in format": {func(ws *watchStream) { ws.unencodable = true }, 1, false, false, false, errEnd},
	} {
		synctest.Test(t, func(t *testing.T) {
			sent := &sink{}
			ws, change := newWatch(t, encoder, sent, inject.New(0))
			b := getBatch()
			defer b.release()
			counted := new(apimetrics.Resources)
			ws.observer.sent = counted.Of(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "").Of("watch", "cluster")
			change(c.size)
			c.change(ws)
			more, err := ws.step(b)
			if more != c.more || err != c.end || (sent.all.Len() > 0) != c.sent || (ws.timer != nil) != c.scheduled {
				t.Errorf("%s: more %t, %v, %d bytes sent, scheduled %t", name, more, err, sent.all.Len(), ws.timer != nil)
			}
			if n := value(t, counted, "apiserver_watch_events_total"); c.sent && n != 1 {
				t.Errorf("%s: %g events are counted, want 1", name, n)
			}
		})
	}
}
