package revocation

import (
	"context"
	"slices"
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

// pools ask the questions: near asks this process, identities asks providers and webhooks that
// authenticate, permissions asks webhooks that authorize. told has the answers.
type pools struct {
	local, identities, permissions pool
	results                        results
}

func newPools() *pools {
	p := &pools{results: results{ready: make(chan struct{}, 1)}}
	p.local = pool{size: localConcurrency, results: &p.results}
	p.identities, p.permissions = pool{size: RemoteConcurrency, results: &p.results}, pool{size: RemoteConcurrency, results: &p.results}
	return p
}

// wait blocks until the goroutines of all pools have ended.
func (p *pools) wait() {
	p.local.asking.Wait()
	p.identities.asking.Wait()
	p.permissions.asking.Wait()
}

// busy reports whether a question is being asked, or an answer is there to be taken over.
func (p *pools) busy() bool {
	return p.local.busy() || p.identities.busy() || p.permissions.busy() || p.results.waiting()
}

// pool asks questions on goroutines of its own, each within recheckTimeout, and at most wide of
// them at once. The others wait.
type pool struct {
	size    int
	results *results
	asking  sync.WaitGroup

	mu      sync.Mutex
	queue   []check // guarded by mu
	running int     // guarded by mu
}

// check asks a question and returns settle, which applies the answer. The goroutine of Run calls
// settle until it returns true.
type check func(context.Context) (settle func() bool)

// add queues a question. It is not asked if ctx ends before it is started.
func (p *pool) add(ctx context.Context, question check) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, question)
	if p.running < p.size {
		p.running++
		p.asking.Go(func() { p.work(ctx) })
	}
}

// work asks until nothing is left to ask.
func (p *pool) work(ctx context.Context) {
	for question := p.next(); question != nil; question = p.next() {
		if ctx.Err() != nil {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, recheckTimeout)
		settle := question(bound)
		cancel()
		p.results.add(settle)
	}
}

func (p *pool) next() check {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		p.running--
		return nil
	}
	question := p.queue[0]
	p.queue[0], p.queue = nil, p.queue[1:]
	return question
}

func (p *pool) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running > 0
}

// results are the answers that the goroutine of Run has not applied yet.
type results struct {
	ready chan struct{} // has an element when there are new ones

	mu   sync.Mutex
	list []func() bool // guarded by mu
}

func (a *results) add(settle func() bool) {
	a.mu.Lock()
	a.list = append(a.list, settle)
	a.mu.Unlock()
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

// settle takes over the answers that can be taken over now, and keeps the others.
func (a *results) settle() {
	a.mu.Lock()
	list := a.list
	a.list = nil
	a.mu.Unlock()
	later := list
	for before := len(later) + 1; len(later) > 0 && len(later) < before; {
		before = len(later)
		later = slices.DeleteFunc(later, func(settle func() bool) bool { return settle() })
	}
	if len(later) > 0 {
		a.mu.Lock()
		a.list = append(later, a.list...)
		a.mu.Unlock()
	}
}

func (a *results) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list) > 0
}
