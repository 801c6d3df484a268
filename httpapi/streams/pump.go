package streams

import (
	"runtime"
	"sync"
)

// pump gives watches that have something to tell their turns, in the order in which
// they came, on few goroutines: one that is busy stays busy, which spares most
// watches a switch of goroutines and their wake-up. A goroutine that waits for a client does not
// count: another takes its place, so that no client waits for another.
//
// Goroutines start when there is work. When there is none, few stay for what comes
// next, so that it need not wait for a stack to grow; close ends them. Whoever owns the
// pump closes it and waits for running.
type pump struct {
	running sync.WaitGroup // also what other goroutines of its streams count in
	most    int            // goroutines that do not wait for a client

	work *sync.Cond // of mu: those who stay wait for it

	mu     sync.Mutex
	queue  []*watchStream // guarded by mu: from head on; before it all are nil
	head   int            // guarded by mu
	active int            // guarded by mu: goroutines that do not wait for a client, nor for work
	idle   int            // guarded by mu: goroutines that wait for work
	closed bool           // guarded by mu: none is to wait for work
}

// most of all goroutines that stay while there is no work.
const mostIdle = 2

func (p *pump) init() {
	p.most = max(runtime.GOMAXPROCS(0), 2)
	p.work = sync.NewCond(&p.mu)
}

// crowd is how many watches wait for their turn before one more goroutine is worth
// what it costs to wake a processor for it.
const crowd = 8

// push puts ws at the end of the queue. It never blocks.
func (p *pump) push(ws *watchStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, ws)
	p.staffLocked()
}

// staffLocked starts a goroutine if there is work for it.
func (p *pump) staffLocked() {
	waiting := len(p.queue) - p.head
	if waiting > 0 && (p.active == 0 || p.active < p.most && waiting > p.active*crowd) {
		p.active++
		if p.idle > 0 {
			p.idle--
			p.work.Signal()
			return
		}
		p.running.Go(p.run)
	}
}

// close has no goroutine stay any more. Watches still get their turns.
func (p *pump) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.active, p.idle = p.active+p.idle, 0
	p.work.Broadcast()
}

// run gives turns until none is due.
func (p *pump) run() {
	b := getBatch()
	defer b.release()
	for {
		ws := p.next()
		if ws == nil {
			return
		}
		if ws.turn(b) == again {
			p.push(ws)
		}
	}
}

// next takes a watch from the queue; nil says that the goroutine shall end.
func (p *pump) next() *watchStream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.head == len(p.queue) || p.active > p.most {
		p.active--
		if p.closed || p.active >= p.most || p.idle >= mostIdle {
			return nil
		}
		p.idle++
		p.work.Wait() // who wakes it counts it as active
	}
	ws := p.queue[p.head]
	p.queue[p.head] = nil
	if p.head++; p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
	return ws
}

// Waits says that the caller, who has a turn, begins to wait for a client.
func (p *pump) Waits() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.staffLocked()
}

// GoesOn says that the caller waits no more.
func (p *pump) GoesOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active++
}
