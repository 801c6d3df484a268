package customresources

import (
	"context"
	"sync"
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
