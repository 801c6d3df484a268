package kvtest

import (
	"context"
	"sync"
	"testing"

	"github.com/larder-io/larder/kv"
)

// RunUntilEnd runs fn until the test ends, or stop is called, and fails the test if fn failed.
func RunUntilEnd(t testing.TB, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Put sets a key, whatever its revision is, and returns the write's.
func Put(t testing.TB, store kv.Store, key, value string) int64 {
	t.Helper()
	item, _, _, err := store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	result, err := store.Put(t.Context(), key, []byte(value), kv.PutOptions{IfRevision: item.Revision})
	if err != nil || !result.Committed {
		t.Fatalf("put %s: %+v, %v", key, result, err)
	}
	return result.Revision
}
