package e2e_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestServerRunsOverKine runs a server on kine instead of etcd, beside a second server and a client that writes to kine
// directly. Kine and a server are killed. One watch must receive every change, and each list must have every
// acknowledged write, whoever made it.
func TestServerRunsOverKine(t *testing.T) {
	kine := kvtest.StartKine(t)
	first, second := serve(t, "--etcd-servers", kine.URL), serve(t, "--etcd-servers", kine.URL)
	outsider := kvtest.NewClient(t, []string{kine.URL})
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	events, err := first.client().CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	written := 0
	round := func() {
		t.Helper()
		var names []string
		for _, writer := range []kubernetes.Interface{first.client(), second.client()} {
			name := fmt.Sprintf("written-%d", written)
			written++
			proctest.Eventually(t, "a write is acknowledged", func() error { // kine may just have restarted
				_, err := writer.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				return err
			})
			names = append(names, name)
		}
		name := fmt.Sprintf("written-%d", written)
		written++
		value := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default","uid":%q}}`, name, name)
		proctest.Eventually(t, "kine accepts a write", func() error {
			_, committed, err := outsider.Transact(ctx, []kvtest.Change{{Key: "/registry/configmaps/default/" + name, Value: []byte(value)}})
			if err == nil && !committed {
				err = fmt.Errorf("%s exists", name)
			}
			return err
		})
		names = append(names, name)
		for _, reader := range []kubernetes.Interface{first.client(), second.client()} {
			for _, name := range names {
				if _, err := reader.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
					t.Errorf("%s was acknowledged, but a read fails: %v", name, err)
				}
			}
		}
		for _, name := range names {
			for {
				event, open := <-events.ResultChan()
				if !open {
					t.Fatalf("the watch ended before %s", name)
				}
				if event.Type != watch.Added {
					t.Fatalf("watch event %v %v", event.Type, event.Object)
				}
				if got := event.Object.(*corev1.ConfigMap).Name; got == name {
					break
				} else if len(got) > 8 && got[:8] == "written-" {
					t.Fatalf("the watch sent %s, want %s", got, name)
				}
			}
		}
	}
	round()
	round()
	kine.Kill()
	if err := kine.Start(); err != nil {
		t.Fatal(err)
	}
	kine.AwaitReady(t)
	round()
	second.Kill()
	second.start()
	second.awaitReady()
	round()
	for _, reader := range []kubernetes.Interface{first.client(), second.client()} {
		list, err := reader.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{Limit: 5})
		found := 0
		for err == nil {
			for _, item := range list.Items {
				if item.Name != "kube-root-ca.crt" {
					found++
				}
			}
			if list.Continue == "" {
				break
			}
			list, err = reader.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{Limit: 5, Continue: list.Continue})
		}
		if err != nil || found != written {
			t.Errorf("the pages have %d of %d objects, error %v", found, written, err)
		}
	}
	if err := second.client().CoreV1().ConfigMaps("default").Delete(ctx, "written-2", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if event := <-events.ResultChan(); event.Type != watch.Deleted || event.Object.(*corev1.ConfigMap).Name != "written-2" {
		t.Errorf("the event of a deletion is %v %v", event.Type, event.Object)
	}
}
