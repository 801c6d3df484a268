package kv_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// leader returns the cluster's leader.
func leader(t *testing.T, members []*kvtest.Member) *kvtest.Member {
	t.Helper()
	outsider := kvtest.NewClient(t, kvtest.URLs(members))
	var url string
	proctest.Eventually(t, "a member leads", func() (err error) { // an election may be in progress
		url, err = outsider.Leader(t.Context())
		return err
	})
	return members[slices.Index(kvtest.URLs(members), url)]
}

// TestWritesSurviveTheLeader writes while the leader is killed and restarted. Acknowledged writes must not be lost, and
// the Tail must see each once and in order, without losing its position.
func TestWritesSurviveTheLeader(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 3, nil)
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	tail, sub := followPods(t, store)
	following, stop := context.WithCancel(ctx)
	var group errgroup.Group
	var seen recorder
	group.Go(func() error { return seen.run(following, sub) })

	acknowledged := make(map[string]int64)
	attempt := 0
	write := func(count int) {
		for done := 0; done < count; attempt++ {
			key := fmt.Sprintf("/registry/pods/%05d", attempt)
			once, cancel := context.WithTimeout(ctx, 5*time.Second)
			result, err := store.Put(once, key, []byte("1"), kv.PutOptions{})
			cancel()
			if ctx.Err() != nil {
				t.Fatalf("no further write is acknowledged: %v", err)
			}
			if err == nil && result.Committed {
				acknowledged[key] = result.Revision
				done++
			}
		}
	}
	write(50)
	killed := leader(t, members)
	killed.Kill()
	start := time.Now()
	write(1)
	t.Logf("first write after %v", time.Since(start))
	write(50)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	killed.AwaitReady(t)
	write(50)

	var revision int64
	for err := errors.New("not yet"); err != nil && ctx.Err() == nil; { // the restarted member may still fail reads
		revision, err = store.Revision(ctx)
	}
	if err := sub.Wait(ctx, revision); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	seen.sawOnce(t, acknowledged)
	if state := tail.State(); state.Losses != 0 {
		t.Errorf("the tail lost its position: %+v", state)
	}
}

// TestReplacedEtcdIsDetected restarts the etcd of a running store without its data. The new one has the same cluster ID
// but lower revisions.
func TestReplacedEtcdIsDetected(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 1, nil)
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
	tail, sub := followPods(t, store)
	var last int64
	for i := range 20 {
		last = kvtest.Put(t, store, fmt.Sprintf("/registry/pods/%d", i), "old")
	}
	if err := tail.Wait(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	members[0].Kill()
	if err := os.RemoveAll(members[0].Config.Dir); err != nil {
		t.Fatal(err)
	}
	if err := members[0].Start(); err != nil {
		t.Fatal(err)
	}
	members[0].AwaitReady(t)
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	var err error
	for err == nil { // events from before the loss
		_, err = sub.Next(ctx)
	}
	if !errors.Is(err, kv.ErrLost) {
		t.Fatalf("Next: %v, want ErrLost", err)
	}
	page, err := store.Range(ctx, kv.RangeOptions{Prefix: "/registry/pods/"})
	if err != nil || page.Count != 0 || page.Revision >= last {
		t.Fatalf("after the loss: got %+v and error %v, want no items at a revision below %d", page, err, last)
	}
	sub.Loaded(page.Revision)
	kvtest.Put(t, store, "/registry/pods/new", "1")
	if keys, _ := next(t, sub); len(keys) != 1 {
		t.Errorf("after the reload the events are %q, want one", keys)
	}
}
