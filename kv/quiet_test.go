package kv_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestQuietStoreIsFollowed: of a store that is well nothing is lost while nobody writes,
// though leases expire, and it is compacted and defragmented, between the heartbeats that
// look for a store which went back.
func TestQuietStoreIsFollowed(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *kv.Etcd{
		"embedded": func(t *testing.T) *kv.Etcd { return openEmbedded(t, kv.EmbeddedConfig{}) },
		"external": func(t *testing.T) *kv.Etcd {
			return openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(startCluster(t, 1, nil))})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
			defer cancel()
			tail, _ := followPods(t, store)
			ttls := []time.Duration{time.Second, 4 * time.Second} // heartbeats in between
			for _, ttl := range ttls {
				key := fmt.Sprintf("/registry/pods/%v", ttl)
				if result, err := store.Put(ctx, key, nil, kv.PutOptions{TTL: ttl}); err != nil || !result.Committed {
					t.Fatalf("%+v, %v", result, err)
				}
			}
			well := func(after string) {
				t.Helper()
				tail.IsBehind(ctx) // on a busy machine it may be
				if stats := tail.Stats(); stats.Losses != 0 {
					t.Errorf("after %s: %+v", after, stats)
				}
			}
			for i := range ttls {
				proctest.Eventually(t, "a lease expires", func() error {
					if events := tail.Stats().Events; events <= int64(len(ttls)+i) {
						return fmt.Errorf("%d events", events)
					}
					return nil
				})
				well("an expiry")
			}
			if err := store.CompactAt(ctx, tail.Seen()); err != nil {
				t.Fatal(err)
			}
			well("a compaction")
			if err := store.Defragment(ctx); err != nil {
				t.Fatal(err)
			}
			well("a defragmentation")
			if err := tail.Wait(ctx, put(t, store, "/registry/pods/last", "1")); err != nil {
				t.Error(err)
			}
			well("a write")
			if n := store.Replacements(); n != 0 {
				t.Errorf("%d replacements", n)
			}
		})
	}
}
