package streams

import (
	"runtime"
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
)

// scheduler runs watches that have something to send, in the order in which they were woken, on few
// goroutines. A goroutine serves one watch after the other, which saves goroutine switches and
// wake-ups. While a goroutine waits for a client, another may run, so that no client waits for another.
//
// Goroutines start when there is work. When there is none, a few stay, whose stacks have grown, until
// close ends them. The owner of the scheduler closes it and waits for running.
type scheduler struct {
	running sync.WaitGroup // counts the other goroutines of its streams, too
	most    int            // goroutines that do not wait for a client

	work *sync.Cond // of mu: idle goroutines wait for it

	mu     sync.Mutex
	queue  queue // guarded by mu
	active int   // guarded by mu: goroutines that do not wait for a client, nor for work
	idle   int   // guarded by mu: goroutines that wait for work
	closed bool  // guarded by mu: none is to wait for work
}

// mostIdle is how many goroutines stay at most while there is no work.
const mostIdle = 2

func (p *scheduler) init() {
	p.most = max(runtime.GOMAXPROCS(0), 2)
	p.work = sync.NewCond(&p.mu)
	p.queue.conns = make(map[socket.Group]*connQueue)
}

// watchesPerGoroutine is how many watches must wait for each active goroutine before another starts.
const watchesPerGoroutine = 8

// push puts ws at the end of the queue. It never blocks.
func (p *scheduler) push(ws *watchStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue.push(ws)
	p.startLocked()
}

// startLocked starts a goroutine if there is work for it.
func (p *scheduler) startLocked() {
	waiting := p.queue.waiting
	if waiting > 0 && (p.active == 0 || p.active < p.most && waiting > p.active*watchesPerGoroutine) {
		p.active++
		if p.idle > 0 {
			p.idle--
			p.work.Signal()
			return
		}
		p.running.Go(p.run)
	}
}

// close ends the idle goroutines, and lets none become idle. Watches are still run.
func (p *scheduler) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.active, p.idle = p.active+p.idle, 0
	p.work.Broadcast()
}

// run runs watches until none waits.
func (p *scheduler) run() {
	b := getBatch()
	defer b.release()
	b.clock = time.Now()
	var kept socket.Group // which may hold bytes of an earlier watch
	waiter := socket.Waiter(p)
	for {
		ws, more, waited := p.next(kept)
		switch {
		case ws == nil && kept != nil:
			kept.Flush(&waiter)
			kept, b.clock = nil, time.Now()
			continue
		case ws == nil:
			return
		case waited:
			b.clock = time.Now()
		}
		if ws.more = more; more {
			kept = ws.group
		}
		switch ws.run(b) {
		case again:
			p.push(ws)
		case over: // the end of a watch may have waited for its client
			b.clock = time.Now()
		}
	}
}

// next takes a watch from the queue; more says that the one behind it shares its connection. If kept is
// nil, next may wait, which waited reports, and returns no watch if the goroutine must end. Otherwise it
// does not wait, and takes only a watch of that group.
func (p *scheduler) next(kept socket.Group) (ws *watchStream, more, waited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.queue.waiting == 0 || p.active > p.most {
		if kept != nil {
			return nil, false, false
		}
		p.active--
		if p.closed || p.active >= p.most || p.idle >= mostIdle {
			return nil, false, waited
		}
		p.idle++
		waited = true
		p.work.Wait() // the goroutine that signals counts it as active
	}
	ws, more = p.queue.pop(kept)
	return ws, more, waited
}

// Waits says that the calling goroutine, which runs a watch, begins to wait for a client.
func (p *scheduler) Waits() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	p.startLocked()
}

// GoesOn says that the calling goroutine waits no more.
func (p *scheduler) GoesOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active++
}
