package kv_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// TestQuietStoreIsFollowed checks that a healthy store without writes is not taken for a replaced one, though
// leases expire and it is compacted and defragmented between heartbeats.
func TestQuietStoreIsFollowed(t *testing.T) {
	for name, open := range map[string]func(*testing.T) (store *kv.Etcd, endpoint string){
		"embedded": func(t *testing.T) (*kv.Etcd, string) {
			dir := t.TempDir()
			return openEmbedded(t, embedded.Config{Dir: dir}), "unix://" + filepath.Join(dir, "sock", "etcd")
		},
		"external": func(t *testing.T) (*kv.Etcd, string) {
			urls := kvtest.URLs(startCluster(t, 1, nil))
			return openExternal(t, kv.ExternalConfig{Endpoints: urls}), urls[0]
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, endpoint := open(t)
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
				if state := tail.State(); state.Losses != 0 {
					t.Errorf("after %s: %+v", after, state)
				}
			}
			for i := range ttls {
				proctest.Eventually(t, "a lease expires", func() error {
					page, err := store.Range(ctx, kv.RangeOptions{Prefix: "/registry/pods/", CountOnly: true})
					if left := int64(len(ttls) - i); err == nil && page.Count >= left {
						err = fmt.Errorf("%d keys", page.Count)
					}
					return err
				})
				well("an expiry")
			}
			if err := store.CompactAt(ctx, tail.Seen()); err != nil {
				t.Fatal(err)
			}
			well("a compaction")
			defragment(t, endpoint)
			well("a defragmentation")
			if err := tail.Wait(ctx, kvtest.Put(t, store, "/registry/pods/last", "1")); err != nil {
				t.Error(err)
			}
			well("a write")
			if n := store.Replacements(); n != 0 {
				t.Errorf("%d replacements", n)
			}
		})
	}
}

// defragment shrinks the database of a member.
func defragment(t *testing.T, endpoint string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Defragment(t.Context(), endpoint); err != nil {
		t.Fatal(err)
	}
}
