package cache

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"
)

// maxRetries limits the objects that are retried each time, unless some succeed. Otherwise many permanently corrupt
// objects would keep the store busy.
const maxRetries = 1000

// repair is a corrupt object and the decoded one that replaces it.
type repair struct{ corrupt, sound *Object }

// retry decodes corrupt objects again, because a KMS plugin may have failed. It tries them in the order of their keys,
// maxRetries at a time, and continues as long as some succeed.
func (r *Reflector) retry(ctx context.Context) {
	now := r.cache.current.Load()
	for tried := 0; tried < now.corruptCount(); {
		limit := min(maxRetries, now.corruptCount()-tried)
		part := now.corruptFrom(r.nextRetry, limit)
		part = append(part, now.corruptFrom("", limit-len(part))...) // wrap around
		tried, r.nextRetry = tried+len(part), part[len(part)-1].Key()+"\x00"
		repaired := r.retryAll(ctx, part)
		r.cache.publishRepaired(repaired)
		if len(repaired) == 0 {
			break
		}
	}
}

// retryAll decodes objects again and returns those that can now be decoded.
func (r *Reflector) retryAll(ctx context.Context, corrupt []*Object) []repair {
	tried := make([]repair, len(corrupt))
	var group errgroup.Group
	group.SetLimit(r.config.Workers)
	for i, o := range corrupt {
		group.Go(func() error {
			tried[i] = repair{o, r.retryOne(ctx, o)}
			return nil
		})
	}
	_ = group.Wait() // none fails
	return slices.DeleteFunc(tried, func(r repair) bool { return r.sound == nil })
}

// retryOne decodes a corrupt object again. It returns nil if that fails or the object has changed.
func (r *Reflector) retryOne(ctx context.Context, o *Object) *Object {
	item, found, _, err := r.config.Store.Get(ctx, r.config.Prefix+o.Key())
	if err != nil || !found || item.Revision != o.Revision() {
		return nil // a later event brings the object's next state
	}
	if sound := r.decode(ctx, o.Key(), item.Value, item.Revision); sound != nil && sound.Err() == nil {
		return sound
	}
	return nil
}

// publishRepaired replaces corrupt objects that are still present with decoded ones of the same revision, also in their
// events and in past states. The objects have not changed in the store, so there are no new events.
func (c *Cache) publishRepaired(repaired []repair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.current.Load()
	repaired = slices.DeleteFunc(repaired, func(r repair) bool { return now.get(r.corrupt.Key()) != r.corrupt })
	if len(repaired) == 0 || c.retired.Load() {
		return
	}
	next := now.clone()
	next.repairs++ // past states with fewer repairs have the corrupt objects
	for _, r := range repaired {
		next.put(r.sound)
	}
	c.publish(next)
	for _, r := range repaired {
		c.log.repair(r)
	}
}
