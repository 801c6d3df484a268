package cluster

import (
	"container/heap"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// flag is set once.
type flag struct{ atomic.Bool }

func (f *flag) set() { f.Store(true) }

// timeline does each thing when it is due, in a goroutine of its own: nothing waits for
// anything else, so that the load stays what it is when the server is slow.
type timeline struct {
	wake chan struct{}

	mu    sync.Mutex
	queue queue
}

func newTimeline() *timeline { return &timeline{wake: make(chan struct{}, 1)} }

// at has act called with due when that has come.
func (t *timeline) at(due time.Time, act func(due time.Time)) {
	t.mu.Lock()
	heap.Push(&t.queue, entry{due, act})
	first := t.queue[0].due.Equal(due)
	t.mu.Unlock()
	if !first {
		return
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run does what is due until ctx ends, and waits for what has begun.
func (t *timeline) run(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := time.Hour
		t.mu.Lock()
		for len(t.queue) > 0 {
			if wait = time.Until(t.queue[0].due); wait > 0 {
				break
			}
			e := heap.Pop(&t.queue).(entry)
			under.Go(func() { e.act(e.due) })
			wait = time.Hour
		}
		t.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
	}
}

type entry struct {
	due time.Time
	act func(due time.Time)
}

// queue is a heap of entries, the first due on top.
type queue []entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(entry)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = entry{}
	*q = old[:len(old)-1]
	return last
}
