package streams

import (
	"container/list"
	"runtime"
	"sync"
	"time"

	"github.com/larder-io/larder/httpapi/socket"
)

// scheduler runs watches that have something to send, in the order in which they were woken, on few
// goroutines. A goroutine serves one watch after the other, which saves goroutine switches and
// wake-ups. While a goroutine waits for a client, another may run, so that no client waits for another.
//
// Goroutines start when there is work. A few stay without work, because their stacks have grown already,
// until close ends them. The owner of the scheduler closes it and waits for running.
type scheduler struct {
	running   sync.WaitGroup // its goroutines, and goroutines that begin watches
	maxActive int            // the limit of active

	work *sync.Cond // of mu: idle goroutines wait for it

	mu     sync.Mutex
	queue  queue // guarded by mu
	active int   // guarded by mu: goroutines that do not wait for a client, nor for work
	idle   int   // guarded by mu: goroutines that wait for work
	closed bool  // guarded by mu: goroutines end instead of waiting for work
}

// maxIdle limits the goroutines that stay without work.
const maxIdle = 2

func (s *scheduler) init() {
	s.maxActive = max(runtime.GOMAXPROCS(0), 2)
	s.work = sync.NewCond(&s.mu)
	s.queue.conns = make(map[socket.Group]*connQueue)
}

// watchesPerGoroutine is how many watches may wait for each active goroutine before another goroutine starts.
const watchesPerGoroutine = 8

// push appends ws to the queue. It never blocks.
func (s *scheduler) push(ws *watchStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.push(ws)
	s.startLocked()
}

// startLocked starts a goroutine if there is work for it.
func (s *scheduler) startLocked() {
	waiting := s.queue.waiting
	if waiting > 0 && (s.active == 0 || s.active < s.maxActive && waiting > s.active*watchesPerGoroutine) {
		s.active++
		if s.idle > 0 {
			s.idle--
			s.work.Signal()
			return
		}
		s.running.Go(s.run)
	}
}

// close ends the idle goroutines, and lets none become idle. Watches are still run.
func (s *scheduler) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.active, s.idle = s.active+s.idle, 0
	s.work.Broadcast()
}

// run runs watches until none waits.
func (s *scheduler) run() {
	b := getBatch()
	defer b.release()
	waiter := socket.Waiter(s)
	b.clock, b.waiter = time.Now(), &waiter
	var kept socket.Group // may hold bytes of an earlier watch that are not sent yet
	for {
		ws, more, waited := s.next(kept)
		switch {
		case ws == nil && kept != nil:
			kept.Flush(b.waiter)
			kept, b.clock = nil, time.Now()
			continue
		case ws == nil:
			return
		case waited:
			b.clock = time.Now()
		}
		if ws.corked = more; more {
			kept = ws.group
		}
		switch ws.run(b) {
		case again:
			s.push(ws)
		case over: // the end of a watch may have waited for its client
			b.clock = time.Now()
		}
	}
}

// next takes a watch from the queue. more means that the next one shares its connection. If kept is nil,
// next may wait (waited reports that), and returns no watch if the goroutine must end. Otherwise it does
// not wait, and takes only a watch of that group.
func (s *scheduler) next(kept socket.Group) (ws *watchStream, more, waited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.queue.waiting == 0 || s.active > s.maxActive {
		if kept != nil {
			return nil, false, false
		}
		s.active--
		if s.closed || s.active >= s.maxActive || s.idle >= maxIdle {
			return nil, false, waited
		}
		s.idle++
		waited = true
		s.work.Wait() // the goroutine that signals counts it as active
	}
	ws, more = s.queue.pop(kept)
	return ws, more, waited
}

// Waits is called when a goroutine that runs a watch begins to wait for a client.
func (s *scheduler) Waits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active--
	s.startLocked()
}

// Resumed is called when the goroutine no longer waits.
func (s *scheduler) Resumed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active++
}

// queue holds the watches that wait to run, in the order in which they were woken. Watches of one
// connection run one after the other, so that their frames leave in one write.
type queue struct {
	waiting int
	order   list.List // of *connQueue
	conns   map[socket.Group]*connQueue
}

// connQueue has the waiting watches of one connection, or one watch that does not share its connection.
type connQueue struct {
	group   socket.Group // nil for a connection that is not shared
	waiting []*watchStream
	served  int // watches that ran one after the other
}

// maxInSuccession limits the watches of one connection that run before others do.
const maxInSuccession = 64

// push adds ws.
func (q *queue) push(ws *watchStream) {
	q.waiting++
	cq := q.conns[ws.group]
	if cq == nil {
		cq = &connQueue{group: ws.group}
		q.order.PushBack(cq)
		if ws.group != nil {
			q.conns[ws.group] = cq
		}
	}
	cq.waiting = append(cq.waiting, ws)
}

// pop takes the next watch. more means that the one after it shares its connection. If kept is not nil and
// the next watch is not of that group, pop takes none.
func (q *queue) pop(kept socket.Group) (ws *watchStream, more bool) {
	if q.waiting == 0 {
		return nil, false
	}
	first := q.order.Front()
	cq := first.Value.(*connQueue)
	if kept != nil && cq.group != kept {
		return nil, false
	}
	q.waiting--
	ws, cq.waiting[0] = cq.waiting[0], nil
	cq.waiting = cq.waiting[1:]
	cq.served++
	switch {
	case len(cq.waiting) == 0:
		q.order.Remove(first)
		delete(q.conns, cq.group)
	case cq.served == maxInSuccession:
		cq.served = 0
		q.order.MoveToBack(first)
	default:
		more = true
	}
	return ws, more
}
