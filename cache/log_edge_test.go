package cache

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestLogHasNoGapAtItsOldestRevision starts readers at the oldest revision of the Log while the Log drops events.
// Each must get the next event first, or an error.
func TestLogHasNoGapAtItsOldestRevision(t *testing.T) {
	const revisions = 30_000
	c := newTestCache(t, Config{Log: LogConfig{MaxEvents: 16, MinEvents: 1}})
	c.Reset(nil, 1)
	var over atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			log, buffer := c.Log(), make([]*Event, 0, 1)
			for !over.Load() {
				oldest := log.Oldest()
				at, err := log.After(oldest)
				if err != nil {
					continue
				}
				if events, _, err := log.Read(at, buffer); err == nil && len(events) > 0 && events[0].Revision != oldest+1 {
					t.Errorf("the first event after revision %d has revision %d", oldest, events[0].Revision)
					return
				}
			}
		})
	}
	o := NewObject(ObjectConfig{Key: "a", Revision: 2}, c.schema)
	for revision := int64(2); revision < revisions; revision++ {
		c.Apply(Batch{Revision: revision, Changes: []Change{{Key: "a", Object: o}}})
	}
	over.Store(true)
	readers.Wait()
}
