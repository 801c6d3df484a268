package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/larder-io/larder/internal/proctest"
)

// TestReplicasShareAStore runs a second server on the store of the first one. The second server must immediately read
// writes that the first has acknowledged, and its watches must receive them.
func TestReplicasShareAStore(t *testing.T) {
	first := serve(t, "--unsafe-no-fsync")
	second := serve(t, "--etcd-servers", "unix://"+filepath.Join(first.dir, "etcd", "sock", "etcd"))
	writer, reader := first.client(), second.client()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	events, err := reader.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for i := range 50 {
		written := put(t, writer, "default", fmt.Sprintf("shared-%d", i))
		read, err := reader.CoreV1().ConfigMaps("default").Get(ctx, written.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("the second server lacks an object that the first acknowledged: %v", err)
		}
		if read.ResourceVersion != written.ResourceVersion {
			t.Errorf("%s has version %s in the first server and %s in the second", read.Name, written.ResourceVersion, read.ResourceVersion)
		}
		if event := <-events.ResultChan(); event.Type != watch.Added {
			t.Fatalf("watch event %v %v", event.Type, event.Object)
		}
	}
	if err := second.Terminate(t); err != nil {
		t.Errorf("the exit of the second server: %v", err)
	}
	if err := writer.CoreV1().ConfigMaps("default").Delete(ctx, "shared-0", metav1.DeleteOptions{}); err != nil {
		t.Errorf("a read from the first server after the second has stopped: %v", err)
	}
}
