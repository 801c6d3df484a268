package kv_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// awaitOwnRead waits until a revision was read without etcd's client.
func awaitOwnRead(t *testing.T, store *kv.Etcd) {
	t.Helper()
	before := store.OwnReads()
	proctest.Eventually(t, "a revision is read without etcd's client", func() error {
		_, err := store.Revision(t.Context())
		if err == nil && store.OwnReads() == before {
			err = errors.New("it was read by etcd's client")
		}
		return err
	})
}

// pause stops the process of a member, and waits until it no longer responds.
func pause(t *testing.T, member *kvtest.Member, store *kv.Etcd) {
	t.Helper()
	if err := member.Pause(); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the paused member does not respond", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if revision, err := store.Revision(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("got revision %d and error %w", revision, err)
		}
		return nil
	})
}

// TestRevisionReadsSurviveRestarts reads revisions without etcd's client, more than fit into a connection's initial
// flow-control windows, and pauses, kills and restarts the member in between.
func TestRevisionReadsSurviveRestarts(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	awaitOwnRead(t, store)
	check := func(reads int) {
		t.Helper()
		before := store.OwnReads()
		var last int64
		for i := range reads {
			if i%100 == 0 {
				last = kvtest.Put(t, store, "/registry/a", "1")
			}
			if revision, err := store.Revision(t.Context()); err != nil || revision != last {
				t.Fatalf("read %d: got revision %d and error %v, want %d", i, revision, err, last)
			}
		}
		if own := store.OwnReads() - before; own == 0 {
			t.Error("all revisions were read by etcd's client")
		}
	}
	check(5000)
	pause(t, member, store)
	if err := member.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitOwnRead(t, store)
	check(100)
	member.Kill()
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	awaitOwnRead(t, store)
	check(100)
}

// TestRevisionIsReadAfterAPause checks that a caller gets its result after the only member was paused for longer than the
// timeout of one read.
func TestRevisionIsReadAfterAPause(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	last := kvtest.Put(t, store, "/registry/a", "1")
	pause(t, member, store)
	type result struct {
		revision int64
		err      error
	}
	results := make(chan result)
	const callers = 3 // the first of them reads by itself
	for range callers {
		go func() {
			revision, err := store.Revision(t.Context())
			results <- result{revision, err}
		}()
	}
	before := store.RevisionReads()
	proctest.Eventually(t, "the read is repeated", func() error {
		if reads := store.RevisionReads() - before; reads < 3 {
			return fmt.Errorf("%d reads", reads)
		}
		return nil
	})
	if err := member.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range callers {
		if r := <-results; r.err != nil || r.revision != last {
			t.Errorf("got revision %d and error %v, want %d", r.revision, r.err, last)
		}
	}
}

// TestConcurrentHealthChecksAndRevisionReads checks that neither makes the other fail.
func TestConcurrentHealthChecksAndRevisionReads(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	awaitOwnRead(t, store)
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			for range 500 {
				if err := store.Health(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
		group.Go(func() error {
			for range 500 {
				if _, err := store.Revision(t.Context()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// TestRevisionsAreReadFromAnotherMember kills one member after the other.
func TestRevisionsAreReadFromAnotherMember(t *testing.T) {
	t.Parallel()
	members := startCluster(t, 3, nil)
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs(members)})
	for _, m := range members {
		awaitOwnRead(t, store)
		m.Kill()
		awaitOwnRead(t, store)
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		m.AwaitReady(t)
	}
}

// TestCallsInProgressFailWhenRunEnds checks that the end of Run makes the calls in progress fail with ErrClosed.
func TestCallsInProgressFailWhenRunEnds(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	stop := runStore(t, store, err)
	pause(t, member, store)
	before := store.RevisionReads()
	failures := make(chan error)
	calls := []func(context.Context) error{
		func(ctx context.Context) error { _, _, _, err := store.Get(ctx, "/registry/a"); return err },
		func(ctx context.Context) error {
			_, err := store.Put(ctx, "/registry/a", nil, kv.PutOptions{})
			return err
		},
	}
	for range 3 { // one reads, two share the next read
		calls = append(calls, func(ctx context.Context) error { _, err := store.Revision(ctx); return err })
	}
	for _, call := range calls {
		go func() { failures <- call(t.Context()) }()
	}
	// The second read begins after the timeout of the first.
	proctest.Eventually(t, "a shared read is in progress", func() error {
		if reads := store.RevisionReads() - before; reads < 2 {
			return fmt.Errorf("%d reads", reads)
		}
		return nil
	})
	go stop()
	for failed := range calls {
		// On a busy machine some may get a response before all threads of the member are paused.
		if err := <-failures; err != nil && !errors.Is(err, kv.ErrClosed) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("result %d: got error %v, want ErrClosed", failed, err)
		}
	}
	stop()
}
