package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/embedded"
	"github.com/larder-io/larder/kv/kvtest"
)

// isRefused reports whether err is etcd's error for an exceeded quota.
func isRefused(err error) bool {
	var failed *kv.Error
	return errors.As(err, &failed) && failed.Err.Error() == "etcdserver: mvcc: database space exceeded"
}

// fillQuota writes values of 200 KiB until one is refused, and returns the number of successful writes. With
// rewrite all go to the same key.
func fillQuota(t *testing.T, store kv.Store, rewrite bool) int {
	t.Helper()
	var before int64
	for i := 0; ; i++ {
		key := fmt.Sprintf("/registry/%d", i)
		if rewrite {
			key = "/registry/one"
		}
		result, err := store.Put(t.Context(), key, make([]byte, 200<<10), kv.PutOptions{IfRevision: before})
		switch {
		case isRefused(err):
			return i
		case err != nil || !result.Committed:
			t.Fatalf("write %d: %+v, %v", i, result, err)
		case rewrite:
			before = result.Revision
		}
	}
}

// TestStoreFullOfOldRevisionsCompactsItself fills the quota with old revisions of one key. The store must compact by
// itself, so that writes soon succeed again, and reads and watches must continue.
func TestStoreFullOfOldRevisionsCompactsItself(t *testing.T) {
	store := open(t, embedded.Config{QuotaBytes: 8 << 20})
	start, err := store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	watch := store.Watch(t.Context(), "/registry/", start)
	for range 2 {
		fillQuota(t, store, true)
		item, found, _, err := store.Get(t.Context(), "/registry/one")
		if err != nil || !found {
			t.Fatalf("Get from a full store: found %v, %v", found, err)
		}
		for seen := int64(0); seen < item.Revision; {
			response := <-watch
			if response.Err != nil {
				t.Fatalf("watch of a full store: %v", response.Err)
			}
			seen = response.Progress
		}
		proctest.Eventually(t, "a store full of old revisions accepts writes again", func() error {
			_, err := store.Delete(t.Context(), "/registry/one", item.Revision)
			if err == nil {
				_, err = store.Put(t.Context(), "/registry/small", make([]byte, 1<<10), kv.PutOptions{})
			}
			return err
		})
	}
}

// TestQuotaFullOfCurrentValuesRefusesWrites fills the quota with current values. Writes are refused until
// something is deleted.
func TestQuotaFullOfCurrentValuesRefusesWrites(t *testing.T) {
	store := open(t, embedded.Config{QuotaBytes: 8 << 20})
	count := fillQuota(t, store, false)
	refused := func() bool {
		_, err := store.Put(t.Context(), fmt.Sprintf("/registry/more-%d", count), make([]byte, 200<<10), kv.PutOptions{})
		count++
		return isRefused(err)
	}
	for i := 0; !refused(); i++ { // the first refusal leaves free pages in the database
		if i == 100 {
			t.Fatal("writes beyond the quota were not refused")
		}
	}
	page, err := store.Range(t.Context(), kv.RangeOptions{Prefix: "/registry/"})
	if err != nil || len(page.Items) < count/2 {
		t.Errorf("Range of a full store: %d items, error %v; want at least %d", len(page.Items), err, count/2)
	}
	for _, item := range page.Items[10:] { // etcd enforces the quota late, so half of the items may still exceed it
		if result, err := store.Delete(t.Context(), item.Key, item.Revision); err != nil || !result.Committed {
			t.Fatalf("Delete from a full store: %+v, %v", result, err)
		}
	}
	proctest.Eventually(t, "a store with deleted keys accepts writes again", func() error {
		if refused() {
			return errors.New("the write was refused")
		}
		return nil
	})
}

// TestCompactedDatabasesShrink compacts a large database and checks that its file shrinks.
func TestCompactedDatabasesShrink(t *testing.T) {
	store := open(t, embedded.Config{DefragmentInterval: time.Millisecond})
	var revision int64
	for range 400 {
		result, err := store.Put(t.Context(), "/registry/one", make([]byte, 200<<10), kv.PutOptions{IfRevision: revision})
		if err != nil {
			t.Fatal(err)
		}
		revision = result.Revision
	}
	before, err := store.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.CompactAt(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	proctest.Eventually(t, "the database gets smaller", func() error {
		size, err := store.Size(t.Context())
		if err == nil && size > before/2 {
			err = fmt.Errorf("%d bytes of %d", size, before)
		}
		return err
	})
}

// TestRevisionDoesNotNeedTheDatabase checks that Revision works while the database is locked, as by a hanging disk, and
// that calls that need the database end at their deadline.
func TestRevisionDoesNotNeedTheDatabase(t *testing.T) {
	store := open(t, embedded.Config{QuotaBytes: 16 << 20})
	written := kvtest.Put(t, store, "/registry/a", "1")
	release := store.StallDatabase(t)
	defer release()

	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if revision, err := store.Revision(ctx); err != nil || revision != written {
		t.Errorf("got revision %d and error %v, want %d", revision, err, written)
	}
	for name, read := range map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error {
			_, _, _, err := store.Get(ctx, "/registry/a")
			return err
		},
		"Range": func(ctx context.Context) error {
			_, err := store.Range(ctx, kv.RangeOptions{Prefix: "/registry/"})
			return err
		},
		"Put": func(ctx context.Context) error {
			_, err := store.Put(ctx, "/registry/b", nil, kv.PutOptions{})
			return err
		},
		"Put with a TTL": func(ctx context.Context) error {
			_, err := store.Put(ctx, "/registry/c", nil, kv.PutOptions{TTL: time.Hour})
			return err
		},
		"Health": store.Health,
	} {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if err := read(short); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "request timed out") {
			t.Errorf("%s: got error %v, want DeadlineExceeded", name, err)
		}
		cancel()
	}
	release()
	if item, found, _, err := store.Get(ctx, "/registry/a"); err != nil || !found || item.Revision != written {
		t.Errorf("Get after the stall: got %+v, found %v, error %v; want revision %d", item, found, err, written)
	}
}

// TestGoroutinesOfStalledReadsAreBounded has the contexts of many readers end while the database hangs. The number of
// goroutines that they leave behind must be bounded.
func TestGoroutinesOfStalledReadsAreBounded(t *testing.T) {
	store := open(t, embedded.Config{QuotaBytes: 16 << 20})
	kvtest.Put(t, store, "/registry/a", "1")
	release := store.StallDatabase(t)
	defer release()
	before := runtime.NumGoroutine()
	for range 8 {
		var readers sync.WaitGroup
		for range 200 {
			readers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if _, _, _, err := store.Get(ctx, "/registry/a"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Get: got error %v, want DeadlineExceeded", err)
				}
			})
		}
		readers.Wait()
	}
	if left := runtime.NumGoroutine() - before; left > 400 {
		t.Errorf("1600 readers left %d goroutines behind, want at most 400", left)
	}
	release()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	if _, found, _, err := store.Get(ctx, "/registry/a"); err != nil || !found {
		t.Errorf("Get after the stall: found %v, error %v", found, err)
	}
}

// TestReadersOfAClosingStoreGetErrClosed closes a store while it is read.
func TestReadersOfAClosingStoreGetErrClosed(t *testing.T) {
	for range 5 {
		store := open(t, embedded.Config{})
		kvtest.Put(t, store, "/registry/a", "1")
		var readers sync.WaitGroup
		reading := make(chan struct{}, 1)
		for range 20 {
			readers.Go(func() {
				for {
					_, _, _, err := store.Get(t.Context(), "/registry/a")
					if err != nil {
						if !errors.Is(err, kv.ErrClosed) {
							t.Errorf("Get: got error %v, want ErrClosed", err)
						}
						return
					}
					select {
					case reading <- struct{}{}:
					default:
					}
				}
			})
		}
		<-reading
		store.Stop()
		readers.Wait()
	}
}
