package streams

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/apimetrics"
	"github.com/larder-io/larder/httpapi/socket"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/watch"
)

// BenchmarkEvents applies changes one at a time, and waits until all watches have sent each of them. In
// between the watches are parked.
func BenchmarkEvents(b *testing.B) {
	configmaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	encoder := registrytest.New(b, nil).Registry.Endpoint(configmaps, "").View.Encoder(encoding.JSON, encoding.Full)
	m := new(apimetrics.Resources).Of(configmaps, "").Of("watch", "cluster")
	object := cache.NewResourceSchema("configmaps", nil)
	body, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", ResourceVersion: "8"}, Data: map[string]string{"key": "value"}}).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for _, watches := range []int{1, 100} {
		b.Run(fmt.Sprint(watches, " watches"), func(b *testing.B) {
			kept, hub := runningHub(b, object, nil)
			ss, conn := New(), &counting{}
			for range watches {
				ws := &watchStream{encoder: encoder, observer: observer{sent: m, open: m, began: time.Now()}, ends: time.Now().Add(time.Hour)}
				if ws.watcher, err = hub.Watch(watch.Options{After: 7, Wake: ws.wake}); err != nil {
					b.Fatal(err)
				}
				ss.begin(ws, conn, func(func()) {})
			}
			revision := int64(7)
			b.ReportAllocs()
			for b.Loop() {
				revision++
				conn.left.Add(watches)
				o := cache.NewObject(cache.ObjectConfig{Key: "b/a", Revision: revision, Body: body}, object)
				kept.Apply(cache.Batch{Revision: revision, Time: time.Now(), Changes: []cache.Change{{Key: "b/a", Object: o}}})
				conn.left.Wait()
			}
			ss.End()
			ss.Wait(b.Context())
		})
	}
}

// counting is a connection that counts events down. Its writes never wait.
type counting struct {
	closing
	left sync.WaitGroup
}

func (c *counting) SetWriteDeadline(time.Time) error { return nil }

func (c *counting) Write(p []byte) (int, error) {
	c.left.Add(-bytes.Count(p, []byte(`"object":`)))
	return len(p), nil
}

func (c *counting) Writer() socket.Writer { return c }

func (c *counting) Send(_ net.Conn, p []byte, _ bool, _ *socket.Waiter) error {
	_, err := c.Write(p)
	return err
}

func (c *counting) Group() socket.Group { return nil }

func (c *counting) Release() {}
