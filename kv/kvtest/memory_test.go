package kvtest_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/larder-io/larder/kv/kvtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	kvtest.Conformance(t, func(t *testing.T) kvtest.Subject {
		store := kvtest.NewMemory()
		done := make(chan error, 1)
		go func() { done <- store.Run(context.Background()) }()
		t.Cleanup(func() {
			store.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return kvtest.Subject{
			Store:   store,
			Compact: func(_ context.Context, revision int64) error { return store.Compact(revision) },
			PutAll: func(_ context.Context, values map[string][]byte) (int64, error) {
				return store.PutAll(values), nil
			},
		}
	})
}
