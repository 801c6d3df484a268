package httpapi

import (
	"context"
	"slices"
	"sync"
)

// lane asks questions beside the rounds, each within recheckTimeout, and as many at once
// as it is wide. Those behind wait for their turn.
type lane struct {
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
func (l *lane) add(ctx context.Context, question inquiry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, question)
	if l.running < l.wide {
		l.running++
		l.asking.Go(func() { l.work(ctx) })
	}
}

// work asks until nothing is left to ask.
func (l *lane) work(ctx context.Context) {
	for question := l.next(); question != nil; question = l.next() {
		if ctx.Err() != nil {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, recheckTimeout)
		settle := question(bound)
		cancel()
		l.told.add(settle)
	}
}

func (l *lane) next() inquiry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.queue = nil
		l.running--
		return nil
	}
	question := l.queue[0]
	l.queue[0], l.queue = nil, l.queue[1:]
	return question
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
