package revocation

import (
	"context"
	"sync"
	"time"
)

const (
	// localTimeout bounds all questions about one credential to this process, and remoteTimeout one question
	// to a provider or webhook.
	localTimeout, remoteTimeout = 2 * time.Second, 10 * time.Second
	// localConcurrency limits the credentials that this process checks at once.
	localConcurrency = 8
	// RemoteConcurrency limits the concurrent requests of each kind to providers and webhooks.
	RemoteConcurrency = 32
)

// pool runs checks on its own goroutines, at most size at once. Other checks wait.
type pool struct {
	size    int
	timeout time.Duration // of a check
	running *sync.WaitGroup

	mu    sync.Mutex
	queue []func(context.Context) // guarded by mu
	busy  int                     // guarded by mu: goroutines
}

// add queues a check. The check is not run if ctx ends before.
func (p *pool) add(ctx context.Context, check func(context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, check)
	if p.busy < p.size {
		p.busy++
		p.running.Go(func() { p.work(ctx) })
	}
}

// work runs checks until none is left.
func (p *pool) work(ctx context.Context) {
	for check := p.next(); check != nil; check = p.next() {
		if ctx.Err() != nil {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, p.timeout)
		check(bound)
		cancel()
	}
}

func (p *pool) next() func(context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		p.busy--
		return nil
	}
	check := p.queue[0]
	p.queue[0], p.queue = nil, p.queue[1:]
	return check
}
