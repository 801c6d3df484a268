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

// queueSet is the fairqueuing.QueueSet of one priority level: upstream's, and before it a
// count of the seats that are taken. While no request waits, upstream serves one at once if
// enough seats are free for it, and the count decides the same. The first request for which
// there are not enough opens upstream's queues: each request that holds a seat by count then
// gets one there, too, by a placeholder, and upstream decides until its queues are empty.
//
// enter and leave take no lock while the queues are closed.
type queueSet struct {
	fairqueuing.QueueSet // upstream's
	name                 string
	demand               flowmetrics.Gauge
	seats                flowmetrics.RatioedGauge // upstream's queues add what they serve
	exempt               bool
	generation           *atomic.Uint64 // of the Flow

	// state is how many seats are taken by count, the limit, and whether the queues are
	// open, by the masks below. Invariant: while they are closed, no request holds a seat in
	// QueueSet.
	state  atomic.Uint64
	passed atomic.Int64 // requests that were given seats by count

	// The seats taken since window began, in nanoseconds: upstream lends seats of one
	// priority level to another by the mean and the peak of the seats taken.
	window atomic.Int64
	busy   atomic.Int64 // seats times nanoseconds
	peak   atomic.Int64

	telling sync.Mutex
	told    float64 // guarded by telling: what seats has of those taken by count
	owed    float64 // guarded by telling: seat seconds that were taken and not told yet

	mu           sync.Mutex
	queuing      fairqueuing.QueuingConfig     // guarded by mu
	dispatch     fairqueuing.DispatchingConfig // guarded by mu
	alone        map[string]uint64             // guarded by mu: by flow schema, requests of the controller that found no other waiting
	counted      map[*counted]struct{}         // guarded by mu: those that the controller started
	placeholders []fairqueuing.Request         // guarded by mu: one for each seat that Flow took by count itself
	lingersFor   time.Time                     // guarded by mu: until then, requests that have ended may keep seats in QueueSet
}

const (
	seatsMask  = 1<<32 - 1
	limitMask  = (1<<31 - 1) << limitShift
	openBit    = 1 << 63
	limitShift = 32

	// demandWindow is how long seats are added up before they are reported to upstream.
	demandWindow = 10 * time.Millisecond
)

// enter takes seats by count, if the queues are closed and enough are free.
func (l *queueSet) enter(seats int) bool {
	for {
		state := l.state.Load()
		taken := state&seatsMask + uint64(seats)
		if state&openBit != 0 || taken > state&limitMask>>limitShift && !l.exempt {
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

// leave releases seats that enter took; took says how long they were held.
func (l *queueSet) leave(seats int, took time.Duration, now time.Time) {
	l.busy.Add(int64(seats) * int64(took))
	for {
		state := l.state.Load()
		if state&openBit != 0 {
			l.leaveQueues(seats)
			return
		}
		if l.state.CompareAndSwap(state, state-uint64(seats)) {
			break
		}
	}
	l.reportDemand(now.UnixNano(), demandWindow)
}

// leaveQueues is leave while the queues are, or just were, open.
func (l *queueSet) leaveQueues(seats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Add(-uint64(seats))
	for range min(seats, len(l.placeholders)) {
		last := len(l.placeholders) - 1
		l.placeholders[last].Finish(func() {})
		l.placeholders = l.placeholders[:last]
	}
	l.closeLocked()
}

// reportDemand reports the mean and the peak of the seats taken to upstream, if the last
// report was at least so long ago.
func (l *queueSet) reportDemand(now int64, least time.Duration) {
	since := l.window.Load()
	elapsed := now - since
	if elapsed < int64(least) || elapsed <= 0 || !l.window.CompareAndSwap(since, now) {
		return
	}
	busy := float64(l.busy.Swap(0))
	mean := busy / float64(elapsed)
	l.demand.Set(float64(l.peak.Swap(0)))
	l.demand.Set(mean)
	l.tell(busy/1e9, time.Duration(elapsed).Seconds())
}

// tell adds seats that were taken by count for busy seat seconds, in the last elapsed seconds,
// to the gauge of executing seats. They are known when they are left: the gauge has them
// within the next second or so, no more and no less of them.
func (l *queueSet) tell(busy, elapsed float64) {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.owed = max(0, l.owed+busy-l.told*elapsed)
	before := l.told
	l.told = l.owed / max(1, elapsed)
	l.seats.Add(l.told - before)
}

// untell takes the seats taken by count from the gauge of executing seats.
func (l *queueSet) untell() {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.seats.Add(-l.told)
	l.told, l.owed = 0, 0
}

// StartRequest implements fairqueuing.QueueSet.
func (l *queueSet) StartRequest(ctx context.Context, work *flowrequest.WorkEstimate, hash uint64, flow, schema string, descr1, descr2 any, note fairqueuing.QueueNoteFn) (fairqueuing.Request, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.enter(work.MaxSeats()) {
		c := &counted{queueSet: l, ctx: ctx, work: *work, hash: hash, schema: schema, since: time.Now()}
		l.counted[c] = struct{}{}
		l.alone[schema]++
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

// addAlone adds the requests that found no other waiting to found, by name and flow schema.
func (l *queueSet) addAlone(name string, found map[[2]string]uint64) {
	if l.exempt {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for schema, n := range l.alone {
		found[[2]string{name, schema}] += n
	}
}

// openLocked opens the queues, with placeholders for all requests that hold seats by count.
func (l *queueSet) openLocked(schema string) {
	state := l.state.Load()
	for state&openBit == 0 && !l.state.CompareAndSwap(state, state|openBit) {
		state = l.state.Load()
	}
	if state&openBit != 0 {
		return
	}
	l.untell() // the placeholders take these seats
	taken := int(state & seatsMask)
	// These requests keep their seats, even if the limit is lower by now.
	l.limitLocked(max(taken, l.dispatch.ConcurrencyLimit))
	unnamed := taken
	for c := range l.counted {
		unnamed -= c.work.MaxSeats()
		c.enqueueLocked()
	}
	for range unnamed {
		one := &flowrequest.WorkEstimate{InitialSeats: 1}
		placeholder, _ := l.QueueSet.StartRequest(context.Background(), one, rand.Uint64(), "", schema, nil, nil, nil)
		if placeholder != nil {
			l.placeholders = append(l.placeholders, placeholder)
		}
	}
	l.limitLocked(l.dispatch.ConcurrencyLimit)
}

// limitLocked makes limit that of the queues.
func (l *queueSet) limitLocked(limit int) {
	completer, err := l.QueueSet.BeginConfigChange(l.queuing)
	if err != nil {
		panic(err) // upstream has accepted the same configuration before
	}
	config := l.dispatch
	config.ConcurrencyLimit = limit
	completer.Complete(config)
}

// closeLocked closes the queues if no request is left in them.
func (l *queueSet) closeLocked() {
	now := time.Now()
	if l.state.Load()&openBit == 0 || now.Before(l.lingersFor) || !l.QueueSet.IsIdle() {
		return
	}
	l.window.Store(now.UnixNano())
	l.busy.Store(0)
	l.peak.Store(0)
	l.state.And(^uint64(openBit))
}

// lingerLocked notes that seats in the queues stay taken for so long after their request.
func (l *queueSet) lingerLocked(latency time.Duration) {
	if end := time.Now().Add(latency); latency > 0 && end.After(l.lingersFor) {
		l.lingersFor = end
	}
}

// counted is a request of the controller's that has seats by count. Fields that change are
// guarded by the queueSet's mu.
type counted struct {
	queueSet    *queueSet
	ctx         context.Context
	work        flowrequest.WorkEstimate
	hash        uint64
	schema      string
	since       time.Time
	ended       time.Time           // guarded by mu: when it ended, if it keeps its seats for a while
	placeholder fairqueuing.Request // guarded by mu: while the queues are open
}

// Finish implements fairqueuing.Request.
func (c *counted) Finish(execute func()) (idle bool) {
	defer c.end()
	execute()
	return false
}

// end releases the seats, after the additional latency if there is one: writes occupy seats
// while their watch events are sent.
func (c *counted) end() {
	l := c.queueSet
	flowmetrics.AddRequestsExecuting(c.ctx, l.name, c.schema, -1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.placeholder == nil && c.work.AdditionalLatency > 0 {
		c.ended = time.Now()
		time.AfterFunc(c.work.AdditionalLatency, c.endLinger)
		return
	}
	c.releaseLocked()
}

// endLinger ends the lingering, if the queues were not opened meanwhile.
func (c *counted) endLinger() {
	c.queueSet.mu.Lock()
	defer c.queueSet.mu.Unlock()
	if _, ok := c.queueSet.counted[c]; ok {
		c.releaseLocked()
	}
}

// releaseLocked releases the seats: those in the queues if they are open.
func (c *counted) releaseLocked() {
	l, seats := c.queueSet, c.work.MaxSeats()
	flowmetrics.AddSeatConcurrencyInUse(l.name, c.schema, -seats)
	delete(l.counted, c)
	l.state.Add(-uint64(seats))
	now := time.Now()
	if c.placeholder != nil {
		c.placeholder.Finish(func() {})
		l.lingerLocked(c.work.AdditionalLatency)
		l.closeLocked()
		return
	}
	l.busy.Add(int64(seats) * int64(now.Sub(c.since)))
	l.reportDemand(now.UnixNano(), demandWindow)
}

// enqueueLocked starts a placeholder in the queues, which have just been opened. If the request
// has ended, its placeholder finishes at once, with the rest of the additional latency.
func (c *counted) enqueueLocked() {
	work := c.work
	if !c.ended.IsZero() {
		left := max(c.work.AdditionalLatency-time.Since(c.ended), 1)
		work = flowrequest.WorkEstimate{InitialSeats: uint64(work.MaxSeats()), FinalSeats: uint64(work.MaxSeats()), AdditionalLatency: left}
	}
	c.placeholder, _ = c.queueSet.QueueSet.StartRequest(context.Background(), &work, c.hash, "", c.schema, nil, nil, nil)
	if !c.ended.IsZero() {
		c.work.AdditionalLatency = work.AdditionalLatency
		c.releaseLocked()
	}
}

// queued is a request in upstream's queues.
type queued struct {
	fairqueuing.Request
	queueSet *queueSet
	lingers  time.Duration
}

// Finish implements fairqueuing.Request.
func (q *queued) Finish(execute func()) (idle bool) {
	defer func() {
		q.queueSet.mu.Lock()
		defer q.queueSet.mu.Unlock()
		q.queueSet.lingerLocked(q.lingers)
		q.queueSet.closeLocked()
	}()
	return q.Request.Finish(execute)
}

// Dump implements fairqueuing.QueueSet.
func (l *queueSet) Dump(details bool) debug.QueueSetDump {
	dump := l.QueueSet.Dump(details)
	dump.Dispatched += int(l.passed.Load())
	if state := l.state.Load(); state&openBit == 0 {
		dump.Executing += int(state & seatsMask)
		dump.SeatsInUse += int(state & seatsMask)
	}
	return dump
}

// BeginConfigChange implements fairqueuing.QueueSet.
func (l *queueSet) BeginConfigChange(config fairqueuing.QueuingConfig) (fairqueuing.QueueSetCompleter, error) {
	l.generation.Add(1)
	next, err := l.QueueSet.BeginConfigChange(config)
	if err != nil {
		return nil, err
	}
	return &queueSetCompleter{QueueSetCompleter: next, queueSet: l, queuing: config}, nil
}

// queueSetFactory makes the queueSets of a Flow. When the configuration changes, each of them
// is made or changed while the controller classifies no request.
type queueSetFactory struct {
	flow *Flow
	fairqueuing.QueueSetFactory
}

// BeginConstruction implements fairqueuing.QueueSetFactory.
func (f *queueSetFactory) BeginConstruction(config fairqueuing.QueuingConfig, requests flowmetrics.RatioedGaugePair, seats flowmetrics.RatioedGauge, demand flowmetrics.Gauge) (fairqueuing.QueueSetCompleter, error) {
	f.flow.generation.Add(1)
	next, err := f.QueueSetFactory.BeginConstruction(config, requests, seats, demand)
	if err != nil {
		return nil, err
	}
	l := &queueSet{
		name: config.Name, demand: demand, seats: seats, exempt: config.DesiredNumQueues < 0,
		generation: &f.flow.generation, counted: make(map[*counted]struct{}), alone: make(map[string]uint64),
	}
	l.window.Store(time.Now().UnixNano())
	return &queueSetCompleter{QueueSetCompleter: next, queueSet: l, queuing: config, made: func() {
		f.flow.mu.Lock()
		defer f.flow.mu.Unlock()
		f.flow.queueSets[config.Name] = l
		if !mandatory(config.Name) {
			f.flow.loadedOnce.Do(func() { close(f.flow.loaded) })
		}
	}}, nil
}

// queueSetCompleter makes or changes a queueSet.
type queueSetCompleter struct {
	fairqueuing.QueueSetCompleter
	queueSet *queueSet
	queuing  fairqueuing.QueuingConfig
	made     func() // registers a new queueSet; nil if one is changed
}

// Complete implements fairqueuing.QueueSetCompleter.
func (c *queueSetCompleter) Complete(config fairqueuing.DispatchingConfig) fairqueuing.QueueSet {
	l := c.queueSet
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queuing, l.dispatch = c.queuing, config
	queues := c.QueueSetCompleter.Complete(config)
	for {
		state := l.state.Load()
		limit := uint64(config.ConcurrencyLimit) << limitShift & limitMask
		if l.state.CompareAndSwap(state, state&^limitMask|limit) {
			break
		}
	}
	if c.made != nil {
		l.QueueSet = queues
		c.made()
	} else if l.state.Load()&openBit == 0 {
		l.reportDemand(time.Now().UnixNano(), 0)
	}
	return l
}
