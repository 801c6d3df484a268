package revocation

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// recheckTimeout bounds one question to others, or all about one credential that are
	// decided here.
	recheckTimeout = 2 * time.Second
	// nearCrowd is how many credentials are looked at here at once.
	nearCrowd = 8
	// RemoteCrowd is how many questions of a kind others are asked at once.
	RemoteCrowd = 32
)

// pools are who asks, by who answers: this process, those who authenticate, and those who
// authorize. told has the answers.
type pools struct {
	near, identities, permissions pool
	told                          answers
}

func newPools() *pools {
	p := &pools{told: answers{come: make(chan struct{}, 1)}}
	p.near = pool{wide: nearCrowd, told: &p.told}
	p.identities, p.permissions = pool{wide: RemoteCrowd, told: &p.told}, pool{wide: RemoteCrowd, told: &p.told}
	return p
}

// wait blocks until nobody asks any more.
func (p *pools) wait() {
	p.near.asking.Wait()
	p.identities.asking.Wait()
	p.permissions.asking.Wait()
}

// busy reports whether somebody asks, or an answer is there.
func (p *pools) busy() bool {
	return p.near.busy() || p.identities.busy() || p.permissions.busy() || p.told.waiting()
}

// pool asks questions beside the rounds, each within recheckTimeout, and as many at once
// as it is wide. Those behind wait for their turn.
type pool struct {
	wide   int
	told   *answers
	asking sync.WaitGroup

	mu      sync.Mutex
	queue   []inquiry // guarded by mu
	running int       // guarded by mu
}

// inquiry asks and returns what takes the answer over. That is called on the goroutine that
// looks after rights, again and again until it reports that it could.
type inquiry func(context.Context) (settle func() bool)

// add puts a question, which is not asked any more once ctx has ended.
func (p *pool) add(ctx context.Context, question inquiry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, question)
	if p.running < p.wide {
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
		p.told.add(settle)
	}
}

func (p *pool) next() inquiry {
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

// answers wait for who takes them over.
type answers struct {
	come chan struct{} // has an element when there are new ones

	mu   sync.Mutex
	list []func() bool // guarded by mu
}

func (a *answers) add(settle func() bool) {
	a.mu.Lock()
	a.list = append(a.list, settle)
	a.mu.Unlock()
	select {
	case a.come <- struct{}{}:
	default:
	}
}

// settle takes over what can be taken over now.
func (a *answers) settle() {
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

func (a *answers) waiting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.list) > 0
}
