package kv_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/kv"
)

// TestPausesBetweenConnectionAttemptsStayShort checks that gRPC's backoff does not grow during a long outage of etcd.
func TestPausesBetweenConnectionAttemptsStayShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage, pause = 10 * time.Minute, 4 * time.Second // three seconds and gRPC's jitter
		var attempts atomic.Int64
		store, err := kv.NewExternal(kv.ExternalConfig{
			Endpoints: []string{"http://etcd:2379"},
			Dial: func(context.Context, string) (net.Conn, error) {
				attempts.Add(1)
				return nil, errors.New("no route")
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), outage)
		defer cancel()
		if err := store.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := attempts.Load(); n < int64(outage/pause) {
			t.Errorf("%d attempts in %s, want at least %d", n, outage, outage/pause)
		}
	})
}
