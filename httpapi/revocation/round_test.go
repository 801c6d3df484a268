package revocation

import (
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/auth"
)

// TestDeletionsDuringARoundAreSeen deletes the pod of a credential during a round. The round has already compared the
// pod, and later comes to another credential with the same pod. The next round must check both, except one whose
// check has not ended.
func TestDeletionsDuringARoundAreSeen(t *testing.T) {
	for range 50 { // a round walks the credentials as a Go map
		pods, err := cache.New(cache.Config{Schema: cache.NewResourceSchema("pods", nil)})
		if err != nil {
			t.Fatal(err)
		}
		pods.Reset([]*cache.Object{cache.NewObject(cache.ObjectConfig{Key: "ns/a", Revision: 1, Body: []byte("{}")}, pods.Schema())}, 1)
		r := newRights(new(fakeAccess))
		r.objects = map[string]*cache.Cache{"pods": pods}
		deleting := false
		// The round reads a node's losses after it has compared the objects of the credential.
		r.config.Revocation.NodeChanges = func(user.Info) uint64 {
			if deleting {
				deleting = false
				pods.Apply(cache.Batch{Revision: 2, Time: time.Now(), Changes: []cache.Change{{Key: "ns/a"}}})
			}
			return 0
		}
		join := func(key byte, single bool) *credential {
			c, held := janesWatch()
			held.single, held.asked = single, true
			c.asked, c.revisions = true, []int64{1}
			c.ties.Objects = []auth.ObjectName{{Resource: "pods", Namespace: "ns", Name: "a"}}
			r.enter(c, [sha256.Size]byte{key}, "", held)
			return c
		}
		first, _ := join(1, true), join(2, false)
		round := func() []*credential { return r.newRound(t.Context(), time.Now()).claim() }
		round()
		round()
		deleting = true
		now, next := slices.Contains(round(), first), slices.Contains(round(), first)
		if deleting {
			t.Fatal("the round did not reach the deletion")
		}
		if now == next {
			t.Fatalf("checked by the round: %t, by the next one: %t; want one of them", now, next)
		}
	}
}

// TestCredentialsOfObjectsThatAreBeingDeleted checks that a credential is checked again when its object has been
// terminating for too long. The object itself does not change then.
func TestCredentialsOfObjectsThatAreBeingDeleted(t *testing.T) {
	pods, err := cache.New(cache.Config{Schema: cache.NewResourceSchema("pods", nil)})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now().Truncate(time.Second)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", DeletionTimestamp: &metav1.Time{Time: began.Add(30 * time.Second)}}}
	body, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	pods.Reset([]*cache.Object{cache.NewObject(cache.ObjectConfig{Key: "ns/a", Revision: 1, Body: body}, pods.Schema())}, 1)
	access := new(fakeAccess)
	r := newRights(access)
	r.objects = map[string]*cache.Cache{"pods": pods}
	credential, held := janesWatch()
	credential.ties.Objects = []auth.ObjectName{{Resource: "pods", Namespace: "ns", Name: "a"}}
	r.enter(credential, [sha256.Size]byte{}, "", held)
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {10 * time.Second, false}, {80 * time.Second, false}, {91 * time.Second, true}, {92 * time.Second, false}, {96 * time.Second, true}} {
		before := access.calls.Load()
		r.runRound(t, began.Add(c.after))
		if checked := access.calls.Load() > before; checked != c.want {
			t.Errorf("after %v: checked %t, want %t", c.after, checked, c.want)
		}
	}
}
