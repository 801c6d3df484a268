package auth

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/util/flowcontrol/debug"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// lane is the queues of one priority level: upstream's, and before them a count of the
// seats that are taken. While no request waits, upstream would let one pass if there
// are seats enough for it, and the count decides the same. The first request for which
// there are not enough opens the queues: each request that holds a seat by count then
// gets one there, too, and upstream decides until its queues are empty.
//
// enter and leave take no lock while the queues are closed.
type lane struct {
	fairqueuing.QueueSet // upstream's
	name                 string
	demand               flowmetrics.Gauge
	exempt               bool
	generation           *atomic.Uint64 // of the Flow

	// state is how many seats are taken by count, the limit, and whether the queues are
	// open, by the masks below. Invariant: as long as they are closed, no request has a
	// seat in QueueSet that lasts.
	state  atomic.Uint64
	passed atomic.Int64 // requests that were given seats by count

	// What was taken since window began, in nanoseconds: upstream lends seats of one
	// priority level to another by the mean and the peak of what is taken.
	window atomic.Int64
	busy   atomic.Int64 // seats times nanoseconds
	peak   atomic.Int64

	mu         sync.Mutex
	queuing    fairqueuing.QueuingConfig     // guarded by mu
	dispatch   fairqueuing.DispatchingConfig // guarded by mu
	counted    map[*counted]struct{}         // guarded by mu: who the controller asked for
	ghosts     []fairqueuing.Request         // guarded by mu: one for each other seat that is taken by count
	lingersFor time.Time                     // guarded by mu: until then seats may be taken in QueueSet whose requests have ended
}

const (
	laneSeats = 1<<32 - 1
	laneLimit = (1<<31 - 1) << laneShift
	laneOpen  = 1 << 63
	laneShift = 32

	// laneWindow is how long what is taken is added up before upstream is told.
	laneWindow = 10 * time.Millisecond
)

// enter takes seats by count, if that may be.
func (l *lane) enter(seats int) bool {
	for {
		state := l.state.Load()
		taken := state&laneSeats + uint64(seats)
		if state&laneOpen != 0 || taken > state&laneLimit>>laneShift && !l.exempt {
			return false
		}
		if l.state.CompareAndSwap(state, state+uint64(seats)) {
			l.passed.Add(1)
			if peak := l.peak.Load(); int64(taken) > peak {
				l.peak.CompareAndSwap(peak, int64(taken))
			}
			return true
		}
	}
}

// leave gives back, now, seats that enter took so long ago.
func (l *lane) leave(seats int, took time.Duration, now time.Time) {
	l.busy.Add(int64(seats) * int64(took))
	for {
		state := l.state.Load()
		if state&laneOpen != 0 {
			l.leaveQueues(seats)
			return
		}
		if l.state.CompareAndSwap(state, state-uint64(seats)) {
			break
		}
	}
	l.tell(now.UnixNano(), laneWindow)
}

// leaveQueues is leave while the queues are, or just were, open.
func (l *lane) leaveQueues(seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Add(-uint64(seats))
	for range min(seats, len(l.ghosts)) {
		last := len(l.ghosts) - 1
		l.ghosts[last].Finish(func() {})
		l.ghosts = l.ghosts[:last]
	}
	l.closeLocked()
}

// tell tells upstream what was taken on the average, and at most, since it was last told,
// if that is at least so long ago.
func (l *lane) tell(now int64, least time.Duration) {
	since := l.window.Load()
	elapsed := now - since
	if elapsed < int64(least) || elapsed <= 0 || !l.window.CompareAndSwap(since, now) {
		return
	}
	mean := float64(l.busy.Swap(0)) / float64(elapsed)
	l.demand.Set(float64(l.peak.Swap(0)))
	l.demand.Set(mean)
}

// StartRequest implements fairqueuing.QueueSet.
func (l *lane) StartRequest(ctx context.Context, work *flowrequest.WorkEstimate, hash uint64, flow, schema string, descr1, descr2 any, note fairqueuing.QueueNoteFn) (fairqueuing.Request, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.enter(work.MaxSeats()) {
		c := &counted{lane: l, ctx: ctx, work: *work, hash: hash, schema: schema, since: time.Now()}
		l.counted[c] = struct{}{}
		flowmetrics.AddRequestsExecuting(ctx, l.name, schema, 1)
		flowmetrics.AddSeatConcurrencyInUse(l.name, schema, work.MaxSeats())
		return c, false
	}
	l.openLocked(schema)
	request, idle := l.QueueSet.StartRequest(ctx, work, hash, flow, schema, descr1, descr2, note)
	if request == nil {
		l.closeLocked()
		return nil, idle
	}
	return &queued{request, l, work.AdditionalLatency}, false
}

// openLocked opens the queues and has all who hold seats by count stand in them.
func (l *lane) openLocked(schema string) {
	state := l.state.Load()
	for state&laneOpen == 0 && !l.state.CompareAndSwap(state, state|laneOpen) {
		state = l.state.Load()
	}
	if state&laneOpen != 0 {
		return
	}
	taken := int(state & laneSeats)
	// They have their seats, whatever the limit is by now.
	l.limitLocked(max(taken, l.dispatch.ConcurrencyLimit))
	anonymous := taken
	for c := range l.counted {
		anonymous -= c.work.MaxSeats()
		c.appearLocked()
	}
	for range anonymous {
		one := &flowrequest.WorkEstimate{InitialSeats: 1}
		ghost, _ := l.QueueSet.StartRequest(context.Background(), one, rand.Uint64(), "", schema, nil, nil, nil)
		if ghost != nil {
			l.ghosts = append(l.ghosts, ghost)
		}
	}
	l.limitLocked(l.dispatch.ConcurrencyLimit)
}

// limitLocked makes limit that of the queues.
func (l *lane) limitLocked(limit int) {
	completer, err := l.QueueSet.BeginConfigChange(l.queuing)
	if err != nil {
		panic(err) // it took the same before
	}
	config := l.dispatch
	config.ConcurrencyLimit = limit
	completer.Complete(config)
}

// closeLocked closes the queues if nobody is left in them.
func (l *lane) closeLocked() {
	now := time.Now()
	if l.state.Load()&laneOpen == 0 || now.Before(l.lingersFor) || !l.QueueSet.IsIdle() {
		return
	}
	l.window.Store(now.UnixNano())
	l.busy.Store(0)
	l.peak.Store(0)
	l.state.And(^uint64(laneOpen))
}

// lingerLocked notes that somebody's seats in the queues stay taken for so long.
func (l *lane) lingerLocked(latency time.Duration) {
	if end := time.Now().Add(latency); latency > 0 && end.After(l.lingersFor) {
		l.lingersFor = end
	}
}

// counted is a request of the controller's that has seats by count. Its fields are
// guarded by the lane's mu, but for those that do not change.
type counted struct {
	lane   *lane
	ctx    context.Context
	work   flowrequest.WorkEstimate
	hash   uint64
	schema string
	since  time.Time
	ended  time.Time           // guarded by mu: since when it lingers on its seats
	ghost  fairqueuing.Request // guarded by mu: while the queues are open
}

// Finish implements fairqueuing.Request.
func (c *counted) Finish(execute func()) (idle bool) {
	defer c.end()
	execute()
	return false
}

// end gives the seats back, or begins to linger on them.
func (c *counted) end() {
	l := c.lane
	flowmetrics.AddRequestsExecuting(c.ctx, l.name, c.schema, -1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.ghost == nil && c.work.AdditionalLatency > 0 {
		c.ended = time.Now()
		time.AfterFunc(c.work.AdditionalLatency, c.lapse)
		return
	}
	c.goLocked()
}

// lapse ends the lingering, if the queues were not opened meanwhile.
func (c *counted) lapse() {
	c.lane.mu.Lock()
	defer c.lane.mu.Unlock()
	if _, ok := c.lane.counted[c]; ok {
		c.goLocked()
	}
}

// goLocked gives the seats back: those in the queues if they are open.
func (c *counted) goLocked() {
	l, seats := c.lane, c.work.MaxSeats()
	flowmetrics.AddSeatConcurrencyInUse(l.name, c.schema, -seats)
	delete(l.counted, c)
	l.state.Add(-uint64(seats))
	now := time.Now()
	if c.ghost != nil {
		c.ghost.Finish(func() {})
		l.lingerLocked(c.work.AdditionalLatency)
		l.closeLocked()
		return
	}
	l.busy.Add(int64(seats) * int64(now.Sub(c.since)))
	l.tell(now.UnixNano(), laneWindow)
}

// appearLocked puts a ghost into the queues, which have been opened. One that has ended
// leaves at once, and lingers there.
func (c *counted) appearLocked() {
	work := c.work
	if !c.ended.IsZero() {
		left := max(c.work.AdditionalLatency-time.Since(c.ended), 1)
		work = flowrequest.WorkEstimate{InitialSeats: uint64(work.MaxSeats()), FinalSeats: uint64(work.MaxSeats()), AdditionalLatency: left}
	}
	c.ghost, _ = c.lane.QueueSet.StartRequest(context.Background(), &work, c.hash, "", c.schema, nil, nil, nil)
	if !c.ended.IsZero() {
		c.work.AdditionalLatency = work.AdditionalLatency
		c.goLocked()
	}
}

// queued is a request that upstream has.
type queued struct {
	fairqueuing.Request
	lane    *lane
	lingers time.Duration
}

// Finish implements fairqueuing.Request.
func (q *queued) Finish(execute func()) (idle bool) {
	defer func() {
		q.lane.mu.Lock()
		defer q.lane.mu.Unlock()
		q.lane.lingerLocked(q.lingers)
		q.lane.closeLocked()
	}()
	return q.Request.Finish(execute)
}

// Dump implements fairqueuing.QueueSet.
func (l *lane) Dump(details bool) debug.QueueSetDump {
	dump := l.QueueSet.Dump(details)
	dump.Dispatched += int(l.passed.Load())
	if state := l.state.Load(); state&laneOpen == 0 {
		dump.Executing += int(state & laneSeats)
		dump.SeatsInUse += int(state & laneSeats)
	}
	return dump
}

// BeginConfigChange implements fairqueuing.QueueSet.
func (l *lane) BeginConfigChange(config fairqueuing.QueuingConfig) (fairqueuing.QueueSetCompleter, error) {
	l.generation.Add(1)
	next, err := l.QueueSet.BeginConfigChange(config)
	if err != nil {
		return nil, err
	}
	return &laneCompleter{QueueSetCompleter: next, lane: l, queuing: config}, nil
}

// lanes makes the lanes of a Flow. Whenever the configuration changes, each of them is
// made or changed while the controller classifies nothing.
type lanes struct {
	flow *Flow
	fairqueuing.QueueSetFactory
}

// BeginConstruction implements fairqueuing.QueueSetFactory.
func (f *lanes) BeginConstruction(config fairqueuing.QueuingConfig, requests flowmetrics.RatioedGaugePair, seats flowmetrics.RatioedGauge, demand flowmetrics.Gauge) (fairqueuing.QueueSetCompleter, error) {
	f.flow.generation.Add(1)
	next, err := f.QueueSetFactory.BeginConstruction(config, requests, seats, demand)
	if err != nil {
		return nil, err
	}
	l := &lane{
		name: config.Name, demand: demand, exempt: config.DesiredNumQueues < 0,
		generation: &f.flow.generation, counted: make(map[*counted]struct{}),
	}
	l.window.Store(time.Now().UnixNano())
	return &laneCompleter{QueueSetCompleter: next, lane: l, queuing: config, made: func() {
		f.flow.mu.Lock()
		defer f.flow.mu.Unlock()
		f.flow.lanes[config.Name] = l
	}}, nil
}

// laneCompleter finishes the making or changing of a lane.
type laneCompleter struct {
	fairqueuing.QueueSetCompleter
	lane    *lane
	queuing fairqueuing.QueuingConfig
	made    func() // nil: it is changed
}

// Complete implements fairqueuing.QueueSetCompleter.
func (c *laneCompleter) Complete(config fairqueuing.DispatchingConfig) fairqueuing.QueueSet {
	l := c.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queuing, l.dispatch = c.queuing, config
	queues := c.QueueSetCompleter.Complete(config)
	for {
		state := l.state.Load()
		limit := uint64(config.ConcurrencyLimit) << laneShift & laneLimit
		if l.state.CompareAndSwap(state, state&^laneLimit|limit) {
			break
		}
	}
	if c.made != nil {
		l.QueueSet = queues
		c.made()
	} else if l.state.Load()&laneOpen == 0 {
		l.tell(time.Now().UnixNano(), 0)
	}
	return l
}
