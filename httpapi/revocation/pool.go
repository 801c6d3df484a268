package revocation

import (
	"context"
	"sync"
	"time"
)

const (
	// recheckTimeout bounds one question to a provider or webhook, or all questions about one
	// credential to this process.
	recheckTimeout = 2 * time.Second
	// localConcurrency is how many credentials this process decides about at once.
	localConcurrency = 8
	// RemoteConcurrency is how many questions of a kind providers and webhooks are asked at once.
	RemoteConcurrency = 32
)

// pool runs checks on goroutines of its own, at most size of them at once. The others wait.
type pool struct {
	size     int
	running  *sync.WaitGroup
	answered func() // called after each check

	mu    sync.Mutex
	queue []func(context.Context) // guarded by mu
	busy  int                     // guarded by mu: goroutines
}

// add queues a check, which gets recheckTimeout. The check is not run if ctx ends before.
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
		bound, cancel := context.WithTimeout(ctx, recheckTimeout)
		check(bound)
		cancel()
		p.answered()
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

func (p *pool) isBusy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy > 0
}
