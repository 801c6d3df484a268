package cache

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/invariants"
)

const (
	// retryEvery is how often a Reflector looks whether corrupt objects can be understood
	// by now.
	retryEvery = 10 * time.Second
	// maxRetries bounds the objects that are looked at each time, unless some heal: many
	// that never will must not keep the store busy.
	maxRetries = 1000
)

// healing is a corrupt object, and what it turned out to be.
type healing struct{ corrupt, sound *Object }

// retry takes corrupt objects up again: what failed may have been a service that
// holds keys, not the value. It goes through them in the order of their keys, as far as
// maxRetries at a time, and further as long as some of them heal.
func (r *Reflector) retry(ctx context.Context) error {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	next := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		// Those before next come last, once.
		for left := r.cache.current.Load().corruptCount(); left > 0; left -= maxRetries {
			var part []*Object
			part, next = r.cache.current.Load().corruptFrom(next, min(maxRetries, left))
			healed := r.retryAll(ctx, part)
			r.cache.heal(healed)
			if len(healed) == 0 {
				break
			}
		}
	}
}

// retryAll takes objects up again and returns those that are sound now.
func (r *Reflector) retryAll(ctx context.Context, corrupt []*Object) []healing {
	var (
		mu     sync.Mutex
		healed []healing
		group  errgroup.Group
	)
	group.SetLimit(r.workers)
	for _, o := range corrupt {
		group.Go(func() error {
			if sound := r.retryOne(ctx, o); sound != nil {
				mu.Lock()
				defer mu.Unlock()
				healed = append(healed, healing{o, sound})
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
	return healed
}

// retryOne returns what a corrupt object is if it can be understood by now, else nil.
func (r *Reflector) retryOne(ctx context.Context, o *Object) *Object {
	item, found, _, err := r.store.Get(ctx, r.prefix+o.Key())
	if err != nil || !found || item.Revision != o.Revision() {
		return nil // what came after it is on its way
	}
	if sound := r.decode(ctx, o.Key(), item.Value, item.Revision); sound != nil && sound.Err() == nil {
		return sound
	}
	return nil
}

// heal shows sound objects in place of corrupt ones of the same revision, where those
// are still present. Nothing happened to the objects, so there are no events.
func (c *Cache) heal(healed []healing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.current.Load()
	var next *state
	for _, h := range healed {
		if now.get(h.corrupt.Key()) != h.corrupt {
			continue
		}
		if next == nil {
			next = now.clone()
		}
		next.put(h.sound)
	}
	if next == nil || c.retired.Load() {
		return
	}
	if invariants.Enabled {
		next.check()
	}
	c.schema.budget.bodies.Add(next.bytes - now.bytes)
	c.current.Store(next)
}
