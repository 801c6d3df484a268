package extension

import (
	"context"
	"sync"
)

// news wakes those who wait for a change.
type news struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change
}

// await returns a channel that is closed at the next change.
func (n *news) await() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// tell wakes all who wait.
func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// until blocks until done says so or ctx ends, and reports whether done did.
func (n *news) until(ctx context.Context, done func() bool) bool {
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
