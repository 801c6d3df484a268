package storestats

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
)

// TestHealthChecksShareReads requests /readyz, whose checks need the store's health twice, a thousand times a second
// for ten seconds. The store must be read once a second.
func TestHealthChecksShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		store := NewHealth(func(context.Context) error {
			reads.Add(1)
			time.Sleep(10 * time.Millisecond)
			return nil
		}, 2*time.Second)
		paths := http.NewServeMux()
		healthz.InstallReadyzHandler(paths, store.Named("etcd", "etcd"), store.Named("etcd-readiness", "etcd-readiness"))
		const seconds, clients = 10, 100
		var all sync.WaitGroup
		began := time.Now()
		for range clients {
			all.Go(func() {
				for time.Since(began) < seconds*time.Second {
					w := httptest.NewRecorder()
					paths.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
					if w.Code != http.StatusOK {
						t.Errorf("%d %s", w.Code, w.Body)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		if n := reads.Load(); n < seconds/2 || n > seconds+1 {
			t.Errorf("the store was read %d times in %d seconds", n, seconds)
		}
	})
}

// TestHealthResultIsReusedForASecond checks that the result of a health check is reused for one second, good or
// bad. A check whose context ends does not wait, and does not end the reads of others.
func TestHealthResultIsReusedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		var err error
		slow := time.Duration(0)
		store := NewHealth(func(ctx context.Context) error {
			select {
			case <-time.After(slow):
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, 2*time.Second)
		want := func(want error) {
			t.Helper()
			if got := store.check(t.Context()); !errors.Is(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		want(nil)
		err = down
		want(nil)
		time.Sleep(healthInterval)
		want(down)
		err = nil
		want(down)
		time.Sleep(healthInterval)
		want(nil)

		time.Sleep(healthInterval)
		slow = time.Second
		first, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var asked sync.WaitGroup
		asked.Go(func() { _ = store.check(first) })
		synctest.Wait()
		second, cancelSecond := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancelSecond()
		if got := store.check(second); !errors.Is(got, context.DeadlineExceeded) {
			t.Errorf("without time: %v", got)
		}
		want(nil)
		asked.Wait()

		time.Sleep(healthInterval)
		slow = time.Hour
		want(context.DeadlineExceeded)
	})
}
