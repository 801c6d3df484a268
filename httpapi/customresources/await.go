package customresources

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// changeSignal wakes the goroutines that wait for a change.
type changeSignal struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change
}

// await returns a channel that is closed at the next change.
func (n *changeSignal) await() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// notify wakes all goroutines that wait.
func (n *changeSignal) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// until blocks until done, which is called after each change, returns true, or ctx ends. It
// reports whether done returned true.
func (n *changeSignal) until(ctx context.Context, done func() bool) bool {
	for {
		changed := n.await()
		if done() {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// AwaitServed blocks until requests are served by the CRD of that name as of revision, or of a later
// write. deleted says that it was deleted at revision.
func (e *Extensions) AwaitServed(ctx context.Context, name string, revision int64, deleted bool) error {
	plural, groupName, _ := strings.Cut(name, ".")
	gr := schema.GroupResource{Group: groupName, Resource: plural}
	if !e.changes.until(ctx, func() bool {
		switch s := e.servings.Load().of(gr); {
		case s != nil && deleted:
			return s.revision() > revision
		case s != nil:
			return s.revision() >= revision
		default:
			return deleted || e.lacks(name, revision)
		}
	}) {
		return fmt.Errorf("customresources: CRD %s at %d is not served yet: %w", name, revision, context.Cause(ctx))
	}
	return nil
}

// lacks reports whether the informer has seen revision, and no CRD of that name.
func (e *Extensions) lacks(name string, revision int64) bool {
	informer := e.CRDs()
	seen, err := strconv.ParseInt(informer.Informer().LastSyncResourceVersion(), 10, 64)
	if err != nil || seen < revision {
		return false
	}
	_, err = informer.Lister().Get(name)
	return apierrors.IsNotFound(err)
}

// pendingCreates is the set of requests that may be creating objects of a resource. The zero value is
// empty.
type pendingCreates struct {
	mu       sync.Mutex
	requests map[chan struct{}]struct{} // each closed when its request is done
}

// begin adds a request. The caller calls done once.
func (u *pendingCreates) begin() (done func()) {
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

// wait blocks until the requests that began before the call are done. Later requests do not wait. If
// ctx ends before, wait returns the cause.
func (u *pendingCreates) wait(ctx context.Context) error {
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
