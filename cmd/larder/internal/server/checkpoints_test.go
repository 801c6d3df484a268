package server

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
)

// TestSeenFollowsTheStore checks that a write was seen only once an informer's store has it, or a later state.
func TestSeenFollowsTheStore(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	at := func(revision string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: revision}}
	}
	for _, step := range []struct {
		name             string
		change           func() error
		created, deleted bool // whether a write at revision 5 that creates or deletes the object was seen
	}{
		{"before the list", func() error { return nil }, false, true},
		{"before the object was created", func() error { return store.Replace(nil, "3") }, false, false},
		{"older object", func() error { return store.Add(at("4")) }, false, false},
		{"object", func() error { return store.Update(at("5")) }, true, false},
		{"later object", func() error { return store.Update(at("6")) }, true, true},
		{"later deletion", func() error { return store.Delete(at("7")) }, true, true},
		{"list without the object", func() error { return store.Replace(nil, "5") }, true, true},
	} {
		if err := step.change(); err != nil {
			t.Fatal(err)
		}
		for deleted, want := range map[bool]bool{false: step.created, true: step.deleted} {
			if got := seen(store, "a", checkpoint.Write{Revision: 5, Deleted: deleted}); got != want {
				t.Errorf("%s: deleted %v: got seen %v, want %v", step.name, deleted, got, want)
			}
		}
	}
}
