package kv_test

import (
	"context"
	"slices"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// followPods runs a Tail of /registry until the test ends, with a loaded subscription to the pods.
func followPods(t *testing.T, store kv.Store) (*kv.Tail, *kv.Subscription) {
	t.Helper()
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry"})
	kvtest.RunUntilEnd(t, tail.Run)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if err := tail.Wait(ctx, 1); err != nil {
		t.Fatal(err)
	}
	sub := tail.Subscribe("/registry/pods/")
	load(t, store, sub, "/registry/pods/")
	return tail, sub
}

// recorder applies the batches of a subscription and records their keys in order.
type recorder struct {
	keys      []string
	revisions []int64
}

func (r *recorder) run(ctx context.Context, sub *kv.Subscription) error {
	for {
		batches, err := sub.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, batch := range batches {
			for _, event := range batch.Events {
				r.keys = append(r.keys, event.Key)
				r.revisions = append(r.revisions, event.Revision)
			}
		}
		sub.Applied(len(batches))
	}
}

// sawOnce fails the test for acknowledged writes that were not seen at their revision, were seen twice, or out of order.
func (r *recorder) sawOnce(t *testing.T, acknowledged map[string]int64) {
	t.Helper()
	at := make(map[string]int64)
	for i, key := range r.keys {
		if at[key] != 0 {
			t.Errorf("%s was seen twice", key)
		}
		at[key] = r.revisions[i]
	}
	if !slices.IsSorted(r.revisions) {
		t.Errorf("revisions out of order: %d", r.revisions)
	}
	for key, revision := range acknowledged {
		if at[key] != revision {
			t.Errorf("%s was acknowledged at %d, seen at %d", key, revision, at[key])
		}
	}
}
