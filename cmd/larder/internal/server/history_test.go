package server

import (
	"context"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
)

// TestHistoryOutlastsRequests checks that the caches keep events for longer than any request may take.
func TestHistoryOutlastsRequests(t *testing.T) {
	config := Default()
	config.DataDir, config.SecureServing.BindPort, config.Store.UnsafeNoFsync = t.TempDir(), proctest.Port(t), true
	config.GenericServerRunOptions.RequestTimeout = time.Hour
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s.config.Beside = func(ctx context.Context) error {
		for _, r := range s.parts.registry.Resources() {
			if got := r.Cache.Log().Config().KeepFor; got != time.Hour+15*time.Second {
				t.Errorf("%s: events are kept for %v", r.GroupResource, got)
			}
		}
		stop()
		<-ctx.Done()
		return nil
	}
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}
