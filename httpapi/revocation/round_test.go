package revocation

import (
	"crypto/sha256"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/internal/auth"
)

// TestDeletionsDuringARoundAreSeen deletes the pod that a credential is bound to after the round has
// compared the pod, and before it comes to another credential with the same pod: the next round checks both.
func TestDeletionsDuringARoundAreSeen(t *testing.T) {
	for range 50 { // a round walks the credentials as a Go map
		pods, err := cache.New(cache.Config{Schema: cache.NewSchema("pods", nil)})
		if err != nil {
			t.Fatal(err)
		}
		pods.Reset([]*cache.Object{cache.NewObject(cache.ObjectConfig{Key: "ns/a", Revision: 1, Body: []byte("{}")}, pods.Schema())}, 1)
		r := newRights(new(fakeAccess))
		r.objects = map[string]*cache.Cache{"pods": pods}
		deleting := false
		// The round asks for losses of a node after it has compared the objects of the credential.
		r.config.Revocation.NodeChanges = func(user.Info) uint64 {
			if deleting {
				deleting = false
				pods.Apply(cache.Batch{Revision: 2, Time: time.Now(), Changes: []cache.Change{{Key: "ns/a"}}})
			}
			return 0
		}
		join := func(key byte, single bool) *credential {
			held := &right{single: single, asked: true}
			held.attributes.Request, held.attributes.User = &request.Action{Verb: "watch"}, jane
			c := &credential{request: httptest.NewRequest("GET", "/", nil), who: jane, asked: true, revisions: []int64{1},
				ties: auth.Dependencies{Objects: []auth.ObjectName{{Resource: "pods", Namespace: "ns", Name: "a"}}}}
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
			t.Fatal("nothing was deleted")
		}
		if !now && !next {
			t.Fatal("the deletion is not seen")
		}
	}
}
