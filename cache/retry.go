package cache

import (
	"context"
	"time"

	"github.com/larder-io/larder/internal/invariants"
)

// retryEvery is how often a Feed looks whether poisoned objects can be understood
// by now.
const retryEvery = 10 * time.Second

// retry takes poisoned objects up again: what failed may have been a service that
// holds keys, not the value.
func (f *Feed) retry(ctx context.Context) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			for _, o := range f.cache.current.Load().poisoned {
				f.retryOne(ctx, o)
			}
		}
	}
}

func (f *Feed) retryOne(ctx context.Context, o *Object) {
	item, found, _, err := f.store.Get(ctx, f.prefix+o.Key())
	if err != nil || !found || item.Revision != o.Revision() {
		return // what came after it is on its way
	}
	if sound := f.ingest(o.Key(), item.Value, item.Revision); sound != nil && sound.Err() == nil {
		f.cache.heal(o, sound)
	}
}

// heal shows sound in place of a poisoned object of the same revision, if that is
// still present. Nothing happened to the object, so there is no event.
func (c *Cache) heal(poisoned, sound *Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.current.Load()
	if now.get(poisoned.Key()) != poisoned {
		return
	}
	next := now.clone()
	next.put(sound)
	if invariants.Enabled {
		next.check()
	}
	c.current.Store(next)
}
