package customresources

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// underway is the requests under way that may create objects of a resource: whoever deletes all
// of them waits for those that were let in before. The zero value has none.
type underway struct {
	mu       sync.Mutex
	requests map[chan struct{}]struct{} // each closed when its request is done
}

// begin adds a request until done is called, which is called once.
func (u *underway) begin() (done func()) {
	ended := make(chan struct{})
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.requests == nil {
		u.requests = make(map[chan struct{}]struct{})
	}
	u.requests[ended] = struct{}{}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.requests, ended)
		close(ended)
	}
}

// wait blocks until the requests that began before the call are done. It does not hold up those
// that begin later. Its error is the cause of the end of ctx.
func (u *underway) wait(ctx context.Context) error {
	u.mu.Lock()
	before := slices.Collect(maps.Keys(u.requests))
	u.mu.Unlock()
	for _, ended := range before {
		select {
		case <-ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
