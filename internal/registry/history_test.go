package registry_test

import (
	"testing"
	"time"

	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// TestHistoryHasRoomForItsAge checks that if events are kept longer, the log may hold proportionally more.
func TestHistoryHasRoomForItsAge(t *testing.T) {
	const usual = 102400
	for history, want := range map[time.Duration]int{0: usual, 75 * time.Second: usual, 5 * time.Minute: 4 * usual} {
		s := registrytest.New(t, nil, func(c *registry.Config) { c.History = history })
		for _, r := range s.Registry.Resources() {
			if got := r.Cache.Log().Config(); got.MaxEvents != want || got.KeepFor < history {
				t.Errorf("%s: history of %v: %+v, want at most %d events", r.GroupResource, history, got, want)
			}
		}
	}
}
