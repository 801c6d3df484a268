package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/larder-io/larder/internal/proctest"
)

// TestFullStoreRejectsWrites fills the embedded etcd. Writes must fail with kube-apiserver's text for etcd's error,
// while lists, watches and deletions continue. Once there is space, writes must succeed without any action on etcd.
func TestFullStoreRejectsWrites(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--quota-backend-bytes", fmt.Sprint(16<<20))
	maps := p.client().CoreV1().ConfigMaps("default")
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	create := func(i int) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%03d", i)},
			Data:       map[string]string{"data": strings.Repeat("x", 500<<10)},
		}, metav1.CreateOptions{})
		return err
	}
	var failure error
	count := 0
	for ; failure == nil; count++ {
		if count == 1000 {
			t.Fatal("no write failed")
		}
		failure = create(count)
	}
	var status apierrors.APIStatus
	if !errors.As(failure, &status) {
		t.Fatalf("the write failed with %v", failure)
	}
	got := status.Status()
	want := metav1.Status{Status: metav1.StatusFailure, Code: 500, Message: "etcdserver: mvcc: database space exceeded"}
	if got.Status != want.Status || got.Code != want.Code || got.Reason != want.Reason || got.Message != want.Message {
		t.Errorf("the write failed with %+v, want %+v", got, want)
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) < count-1 {
		t.Fatalf("a full server lists %d of %d objects, error %v", len(list.Items), count-1, err)
	}
	events, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	for _, item := range list.Items {
		if !strings.HasPrefix(item.Name, "large-") || item.Name == "large-000" {
			continue
		}
		if err := maps.Delete(ctx, item.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("a deletion on a full server: %v", err)
		}
		if event := <-events.ResultChan(); event.Type != watch.Deleted {
			t.Fatalf("watch of a full server: event %v %v", event.Type, event.Object)
		}
	}
	proctest.Eventually(t, "a server with space accepts writes", func() error { return create(count) })
}
