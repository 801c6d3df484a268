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

// TestQuietStoreIsNoReplacement checks that a healthy store without writes does not count as replaced when leases
// expire, and when it is compacted and defragmented between heartbeats.
func TestQuietStoreIsNoReplacement(t *testing.T) {
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
			ttls := []time.Duration{time.Second, 4 * time.Second} // with heartbeats between the expiries
			for _, ttl := range ttls {
				key := fmt.Sprintf("/registry/pods/%v", ttl)
				if result, err := store.Put(ctx, key, nil, kv.PutOptions{TTL: ttl}); err != nil || !result.Committed {
					t.Fatalf("%+v, %v", result, err)
				}
			}
			check := func(after string) {
				t.Helper()
				tail.IsBehind(ctx) // the result depends on the load of the machine
				if state := tail.State(); state.Losses != 0 {
					t.Errorf("after %s the tail has lost its position: %+v", after, state)
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
				check("an expiry")
			}
			if err := store.CompactAt(ctx, tail.Seen()); err != nil {
				t.Fatal(err)
			}
			check("a compaction")
			defragment(t, endpoint)
			check("a defragmentation")
			if err := tail.Wait(ctx, kvtest.Put(t, store, "/registry/pods/last", "1")); err != nil {
				t.Error(err)
			}
			check("a write")
			if n := store.Replacements(); n != 0 {
				t.Errorf("%d replacements, want 0", n)
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
