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
	proctest.Eventually(t, "a revision is read past etcd's client", func() error {
		_, err := store.Revision(t.Context())
		if err == nil && store.OwnReads() == before {
			err = errors.New("by etcd's client")
		}
		return err
	})
}

// standStill stops a member, and waits until it no longer responds.
func standStill(t *testing.T, member *kvtest.Member, store *kv.Etcd) {
	t.Helper()
	if err := member.Pause(); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "a member that stands still does not answer", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if revision, err := store.Revision(ctx); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%d, %w", revision, err)
		}
		return nil
	})
}

// TestRevisionsOutliveTheMember reads revisions without etcd's client, more than fit into a connection's initial
// flow-control windows, while the member is stopped, killed and restarted.
func TestRevisionsOutliveTheMember(t *testing.T) {
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
				t.Fatalf("read %d: at %d, %v; want %d", i, revision, err, last)
			}
		}
		if own := store.OwnReads() - before; own == 0 {
			t.Error("all were read by etcd's client")
		}
	}
	check(5000)
	standStill(t, member, store)
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

// TestRevisionOutlivesSilence checks that a caller gets its result after the only member was stopped for longer than the
// timeout of one read.
func TestRevisionOutlivesSilence(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store := openExternal(t, kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	last := kvtest.Put(t, store, "/registry/a", "1")
	standStill(t, member, store)
	type answer struct {
		revision int64
		err      error
	}
	answers := make(chan answer)
	const callers = 3 // one of them reads for itself
	for range callers {
		go func() {
			revision, err := store.Revision(t.Context())
			answers <- answer{revision, err}
		}()
	}
	before := store.RevisionReads()
	proctest.Eventually(t, "etcd is asked again", func() error {
		if reads := store.RevisionReads() - before; reads < 3 {
			return fmt.Errorf("%d reads", reads)
		}
		return nil
	})
	if err := member.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range callers {
		if a := <-answers; a.err != nil || a.revision != last {
			t.Errorf("at %d, %v; want %d", a.revision, a.err, last)
		}
	}
}

// TestHealthBesideRevisions checks that checks of health and reads of the revision do not disturb each other.
func TestHealthBesideRevisions(t *testing.T) {
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

// TestRevisionsMoveToAnotherMember checks that another member is asked when one is down.
func TestRevisionsMoveToAnotherMember(t *testing.T) {
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

// TestCloseUnderWay checks that the end of Run makes the calls in progress fail with ErrClosed.
func TestCloseUnderWay(t *testing.T) {
	t.Parallel()
	member := startCluster(t, 1, nil)[0]
	store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: kvtest.URLs([]*kvtest.Member{member})})
	stop := runStore(t, store, err)
	standStill(t, member, store)
	before := store.RevisionReads()
	failures := make(chan error)
	asks := []func(context.Context) error{
		func(ctx context.Context) error { _, _, _, err := store.Get(ctx, "/registry/a"); return err },
		func(ctx context.Context) error {
			_, err := store.Put(ctx, "/registry/a", nil, kv.PutOptions{})
			return err
		},
	}
	for range 3 { // one reads, two share the next read
		asks = append(asks, func(ctx context.Context) error { _, err := store.Revision(ctx); return err })
	}
	for _, ask := range asks {
		go func() { failures <- ask(t.Context()) }()
	}
	// The second read begins when the first was abandoned.
	proctest.Eventually(t, "a shared read is under way", func() error {
		if reads := store.RevisionReads() - before; reads < 2 {
			return fmt.Errorf("%d reads", reads)
		}
		return nil
	})
	go stop()
	for failed := range asks {
		// On a busy machine some may get a response before the whole member is paused.
		if err := <-failures; err != nil && !errors.Is(err, kv.ErrClosed) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d: %v", failed, err)
		}
	}
	stop()
}
