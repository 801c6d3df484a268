package kv_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

// slowWatches is a store whose watches deliver each response late.
type slowWatches struct {
	*kvtest.Memory
	delay  time.Duration
	opened atomic.Int64
}

// Watch delays each response of the Memory's watch.
func (s *slowWatches) Watch(ctx context.Context, prefix string, after int64) <-chan kv.WatchResponse {
	s.opened.Add(1)
	in, out := s.Memory.Watch(ctx, prefix, after), make(chan kv.WatchResponse)
	go func() {
		defer close(out)
		for response := range in {
			select {
			case <-time.After(s.delay):
			case <-ctx.Done():
				return
			}
			select {
			case out <- response:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// TestOnlyStalledWatchesAreReopened checks that a watch that needs longer than a heartbeat, at the start or after an
// interruption, is not reopened, and that one that delivers nothing is.
func TestOnlyStalledWatchesAreReopened(t *testing.T) {
	for _, delay := range []time.Duration{time.Second, 5 * time.Second, 40 * time.Second} {
		t.Run(fmt.Sprint(delay), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowWatches{Memory: kvtest.NewMemory(), delay: delay}
				write := func() (revision int64) {
					for range 5_000 {
						revision = store.PutAll(map[string][]byte{"/registry/pods/a": []byte("x")})
					}
					return revision
				}
				before := write()
				tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/registry", Replay: 1_000_000})
				kvtest.RunUntilEnd(t, tail.Run)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				if err := tail.Wait(ctx, before); err != nil {
					t.Fatalf("at the start: seen %d of %d, %d watches: %v", tail.Seen(), before, store.opened.Load(), err)
				}
				store.EndWatches(errors.New("connection lost"))
				after := write()
				if err := tail.Wait(ctx, after); err != nil {
					t.Fatalf("later: seen %d of %d, %d watches: %v", tail.Seen(), after, store.opened.Load(), err)
				}
				time.Sleep(2 * time.Minute) // without events
				watches := store.opened.Load()
				store.Hold()
				last := store.PutAll(map[string][]byte{"/registry/pods/a": []byte("y")})
				time.Sleep(10 * delay)
				time.Sleep(time.Minute)
				if got := store.opened.Load(); got == watches {
					t.Errorf("a stalled watch was not reopened")
				}
				store.Release()
				if err := tail.Wait(t.Context(), last); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
