package checkpoint_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/cmd/larder/internal/checkpoint"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestFenceStopsEarlierRequests checks that requests from before the fence was raised are refused. Later requests, and
// the server itself, still write.
func TestFenceStopsEarlierRequests(t *testing.T) {
	fence, memory := new(checkpoint.Fence), kvtest.NewMemory()
	store := fence.Store(memory)
	write := func(ctx context.Context, refused bool) {
		t.Helper()
		put, putErr := store.Put(ctx, "/registry/pods/a/a", nil, kv.PutOptions{})
		item, _, _, _ := memory.Get(t.Context(), "/registry/pods/a/a")
		deleted, deleteErr := store.Delete(ctx, item.Key, item.Revision)
		if refused != (apierrors.IsConflict(putErr) && apierrors.IsConflict(deleteErr)) || refused == (put.Committed || deleted.Committed) {
			t.Errorf("%v, %v, want refused %v", putErr, deleteErr, refused)
		}
	}
	received := func() context.Context { return apirequest.WithReceivedTimestamp(t.Context(), time.Now()) }
	for range 3 {
		before := received()
		write(before, false)
		fence.Raise()
		write(before, true)
		write(received(), false)
		write(t.Context(), false)
	}
	if none := (*checkpoint.Fence)(nil); none.Store(memory) != kv.Store(memory) {
		t.Error("a nil Fence wraps a store")
	}
}

// TestDeletingControllersArePausedDuringAReset checks that controllers that delete objects stop before a reset
// restores anything, and restart afterwards. A reset that only deletes does not stop them. A write that was admitted
// under the state before the reset, and is committed after the reset, is deleted, too. A reset that changes nothing
// also refuses earlier requests.
func TestDeletingControllersArePausedDuringAReset(t *testing.T) {
	var store *kvtest.Memory
	var log []string
	fence, late := new(checkpoint.Fence), true
	c, store := open(t, func(config *checkpoint.Config) {
		config.Fence = fence
		config.Pause = func(context.Context) (func(), []string, error) {
			item, _, _, _ := store.Get(t.Context(), "/registry/pods/a/old")
			log = append(log, "paused before "+string(item.Value))
			return func() { log = append(log, "resumed") }, []string{"beware"}, nil
		}
		config.Await = func(_ context.Context, writes []checkpoint.Write) error {
			if log = append(log, "seen"); late {
				late = false
				kvtest.Put(t, store, "/registry/pods/gone/late", "1")
			}
			return nil
		}
	})
	kvtest.Put(t, store, "/registry/pods/a/old", "1")
	take(t, c, "clean")
	expect := func(outcome checkpoint.Outcome, warnings int, want ...string) {
		t.Helper()
		if len(log) != len(want) || len(outcome.Warnings) != warnings {
			t.Fatalf("%q, %q, want %q", log, outcome.Warnings, want)
		}
		for i := range want {
			if log[i] != want[i] {
				t.Errorf("%q, want %q", log, want)
			}
		}
		log = nil
		if got := held(t, store, "/registry/"); len(got) != 1 || got["/registry/pods/a/old"] != "1" {
			t.Errorf("the store holds %v", got)
		}
	}
	kvtest.Put(t, store, "/registry/pods/a/new", "1")
	expect(reset(t, c, "clean"), 0, "seen", "seen")
	received := apirequest.WithReceivedTimestamp(t.Context(), time.Now())
	expect(reset(t, c, "clean"), 0)
	if _, err := fence.Store(store).Put(received, "/registry/pods/a/old", nil, kv.PutOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a write that was received before a reset without changes: %v, want a conflict", err)
	}
	kvtest.Put(t, store, "/registry/pods/a/old", "2")
	expect(reset(t, c, "clean"), 1, "paused before 2", "seen", "resumed")
}
