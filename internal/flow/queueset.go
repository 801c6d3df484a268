package flow

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

// queueSet is the fairqueuing.QueueSet of one priority level: upstream's queues, and a count of taken seats in front
// of them. While no request waits, upstream serves a request at once if enough seats are free, and the count decides
// the same. The first request that finds too few free seats opens the queues. Placeholders then take the counted
// seats in the queues, and upstream decides until its queues are empty.
type queueSet struct {
	fairqueuing.QueueSet // upstream's
	name                 string
	flow                 *Control
	demand               flowmetrics.Gauge        // of seats; upstream sets it while the queues are open
	seats                flowmetrics.RatioedGauge // executing; placeholders are in it
	exempt               bool
	queues               atomic.Bool // the level has queues: requests can wait

	mu       sync.Mutex
	queuing  fairqueuing.QueuingConfig
	dispatch fairqueuing.DispatchingConfig
	taken    int // seats that were given without the queues
	passed   int // requests that were given seats without the queues
	// open says that upstream decides. Invariant: while open is false, no request holds a seat in
	// QueueSet, so it gives a seat to each placeholder.
	open         bool
	counted      map[*counted]bool // requests of the controller that got seats without the queues
	placeholders []*placeholder    // one for each seat that Control itself took before the queues opened
	held         queueSeats
}

// queueSeats counts the seats that upstream's queues give. Requests keep them for their additional latency.
type queueSeats struct {
	flowmetrics.RatioedGauge
	taken atomic.Int64
}

// Add implements flowmetrics.RatioedGauge.
func (s *queueSeats) Add(n float64) {
	s.taken.Add(int64(n))
	s.RatioedGauge.Add(n)
}

// enter takes seats if the queues are closed and enough seats are free. Taking 0 seats always succeeds.
func (q *queueSet) enter(seats int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.enterLocked(seats)
}

func (q *queueSet) enterLocked(seats int) bool {
	switch {
	case seats == 0:
	case q.open, q.taken+seats > q.dispatch.ConcurrencyLimit && !q.exempt:
		return false
	default:
		q.takeLocked(seats)
	}
	q.passed++
	return true
}

// takeLocked adds seats, which may be negative, to the count.
func (q *queueSet) takeLocked(seats int) {
	q.taken += seats
	q.seats.Add(float64(seats))
	q.demand.Set(float64(q.taken))
}

// leave releases seats that enter took.
func (q *queueSet) leave(seats int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.open {
		q.takeLocked(-seats)
		return
	}
	q.taken -= seats
	for range min(seats, len(q.placeholders)) {
		last := len(q.placeholders) - 1
		q.placeholders[last].finish()
		q.placeholders = q.placeholders[:last]
	}
	q.closeLocked()
}

// StartRequest implements fairqueuing.QueueSet.
func (q *queueSet) StartRequest(ctx context.Context, work *flowrequest.WorkEstimate, hash uint64, flow, schema string, descr1, descr2 any, note fairqueuing.QueueNoteFn) (fairqueuing.Request, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.enterLocked(work.MaxSeats()) {
		if q.queues.Load() { // these gauges exist from the first request on
			flowmetrics.AddRequestsInQueues(ctx, q.name, schema, 0)
			flowmetrics.AddSeatsInQueues(ctx, q.name, schema, 0)
		}
		q.began(ctx, schema, work.MaxSeats())
		c := &counted{queueSet: q, ctx: ctx, work: *work, hash: hash, schema: schema}
		if work.MaxSeats() > 0 {
			q.counted[c] = true
		}
		return c, false
	}
	q.openLocked(schema)
	request, idle := q.QueueSet.StartRequest(ctx, work, hash, flow, schema, descr1, descr2, note)
	if request == nil {
		q.closeLocked()
		return nil, idle
	}
	return &queued{request, q}, false
}

// began updates upstream's metrics for a request that got seats without the queues. Upstream would observe a queue of
// length 1.
func (q *queueSet) began(ctx context.Context, schema string, seats int) {
	if q.queues.Load() {
		flowmetrics.ObserveQueueLength(ctx, q.name, schema, 1)
	}
	flowmetrics.AddRequestsExecuting(ctx, q.name, schema, 1)
	flowmetrics.AddSeatConcurrencyInUse(q.name, schema, seats)
}

// openLocked opens the queues, with placeholders for all counted seats.
func (q *queueSet) openLocked(schema string) {
	if q.open {
		return
	}
	q.seats.Add(-float64(q.taken)) // the placeholders take these seats
	// Requests keep their seats even if the limit is lower by now.
	q.limitLocked(max(q.taken, q.dispatch.ConcurrencyLimit))
	unnamed := q.taken
	for c := range q.counted {
		unnamed -= c.work.MaxSeats()
		c.enqueueLocked()
	}
	for range unnamed {
		one := &flowrequest.WorkEstimate{InitialSeats: 1}
		q.placeholders = append(q.placeholders, q.placeLocked(one, rand.Uint64(), schema))
	}
	q.limitLocked(q.dispatch.ConcurrencyLimit)
	q.open = true
}

// placeholder takes seats in upstream's queues for requests that the gauges of executing requests and
// seats already count.
type placeholder struct {
	fairqueuing.Request
	queueSet *queueSet
	schema   string
	seats    int
}

// placeLocked starts a placeholder.
func (q *queueSet) placeLocked(work *flowrequest.WorkEstimate, hash uint64, schema string) *placeholder {
	request, _ := q.QueueSet.StartRequest(context.Background(), work, hash, "", schema, nil, nil, nil)
	p := &placeholder{request, q, schema, work.MaxSeats()}
	p.count(-1)
	return p
}

// finish releases the seats, after the additional latency if there is one.
func (p *placeholder) finish() {
	p.count(1)
	p.Finish(func() {})
}

func (p *placeholder) count(times int) {
	flowmetrics.AddRequestsExecuting(context.Background(), p.queueSet.name, p.schema, times)
	flowmetrics.AddSeatConcurrencyInUse(p.queueSet.name, p.schema, times*p.seats)
}

// limitLocked sets the limit of the queues.
func (q *queueSet) limitLocked(limit int) {
	completer, err := q.QueueSet.BeginConfigChange(q.queuing)
	if err != nil {
		panic(err) // upstream has accepted the same configuration before
	}
	config := q.dispatch
	config.ConcurrencyLimit = limit
	completer.Complete(config)
}

// closeLocked closes the queues if no request is left in them and no request that has ended keeps seats in them.
func (q *queueSet) closeLocked() {
	if q.open && q.held.taken.Load() == 0 && q.QueueSet.IsIdle() {
		q.open = false
	}
}

// counted is a request that the controller started and that got its seats, if it needs any, without the queues.
type counted struct {
	queueSet    *queueSet
	ctx         context.Context
	work        flowrequest.WorkEstimate
	hash        uint64
	schema      string
	ended       time.Time    // guarded by mu: when it ended, if it keeps its seats for a while
	placeholder *placeholder // guarded by mu: while the queues are open
}

// Finish implements fairqueuing.Request.
func (c *counted) Finish(execute func()) (idle bool) {
	defer c.end()
	execute()
	return false
}

// end releases the seats, after the additional latency if there is one: writes keep seats while their
// watch events are sent.
func (c *counted) end() {
	l := c.queueSet
	flowmetrics.AddRequestsExecuting(c.ctx, l.name, c.schema, -1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.placeholder == nil && c.work.AdditionalLatency > 0 {
		c.ended = time.Now()
		time.AfterFunc(c.work.AdditionalLatency, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.counted[c] { // the queues were not opened meanwhile
				c.releaseLocked()
			}
		})
		return
	}
	c.releaseLocked()
}

// releaseLocked releases the seats: those in the queues if they are open.
func (c *counted) releaseLocked() {
	l, seats := c.queueSet, c.work.MaxSeats()
	flowmetrics.AddSeatConcurrencyInUse(l.name, c.schema, -seats)
	delete(l.counted, c)
	switch {
	case seats == 0:
		return
	case c.placeholder == nil:
		l.takeLocked(-seats)
		return
	}
	l.taken -= seats
	c.placeholder.finish()
	l.closeLocked()
}

// enqueueLocked starts a placeholder in the queues, which have just been opened. If the request
// has ended, its placeholder finishes at once, with the rest of the additional latency.
func (c *counted) enqueueLocked() {
	if !c.ended.IsZero() {
		seats := uint64(c.work.MaxSeats())
		left := max(c.work.AdditionalLatency-time.Since(c.ended), 1)
		c.work = flowrequest.WorkEstimate{InitialSeats: seats, FinalSeats: seats, AdditionalLatency: left}
	}
	c.placeholder = c.queueSet.placeLocked(&c.work, c.hash, c.schema)
	if !c.ended.IsZero() {
		c.releaseLocked()
	}
}

// queued is a request that upstream's queues decide on.
type queued struct {
	fairqueuing.Request
	queueSet *queueSet
}

// Finish implements fairqueuing.Request.
func (q *queued) Finish(execute func()) (idle bool) {
	defer func() {
		l := q.queueSet
		l.mu.Lock()
		defer l.mu.Unlock()
		l.closeLocked()
	}()
	return q.Request.Finish(execute)
}

// Dump implements fairqueuing.QueueSet.
func (q *queueSet) Dump(details bool) debug.QueueSetDump {
	q.mu.Lock()
	defer q.mu.Unlock()
	dump := q.QueueSet.Dump(details)
	dump.Dispatched += q.passed
	if !q.open {
		dump.Executing += q.taken
		dump.SeatsInUse += q.taken
	}
	return dump
}

// BeginConfigChange implements fairqueuing.QueueSet.
func (q *queueSet) BeginConfigChange(config fairqueuing.QueuingConfig) (fairqueuing.QueueSetCompleter, error) {
	q.flow.generation.Add(1)
	next, err := q.QueueSet.BeginConfigChange(config)
	return &queueSetCompleter{next, q, config}, err
}

// queueSetFactory makes the queueSets of a Control. The controller makes and changes them while it
// classifies no request.
type queueSetFactory struct {
	flow *Control
	fairqueuing.QueueSetFactory
}

// BeginConstruction implements fairqueuing.QueueSetFactory.
func (f *queueSetFactory) BeginConstruction(config fairqueuing.QueuingConfig, requests flowmetrics.RatioedGaugePair, seats flowmetrics.RatioedGauge, demand flowmetrics.Gauge) (fairqueuing.QueueSetCompleter, error) {
	f.flow.generation.Add(1)
	l := &queueSet{name: config.Name, flow: f.flow, demand: demand, seats: seats, exempt: config.DesiredNumQueues < 0, counted: make(map[*counted]bool)}
	l.held.RatioedGauge = seats
	next, err := f.QueueSetFactory.BeginConstruction(config, requests, &l.held, demand)
	return &queueSetCompleter{next, l, config}, err
}

// queueSetCompleter makes or changes a queueSet.
type queueSetCompleter struct {
	fairqueuing.QueueSetCompleter
	queueSet *queueSet
	queuing  fairqueuing.QueuingConfig
}

// Complete implements fairqueuing.QueueSetCompleter.
func (c *queueSetCompleter) Complete(config fairqueuing.DispatchingConfig) fairqueuing.QueueSet {
	l, f := c.queueSet, c.queueSet.flow
	l.mu.Lock()
	l.queuing, l.dispatch = c.queuing, config
	l.queues.Store(c.queuing.DesiredNumQueues > 0)
	if queues := c.QueueSetCompleter.Complete(config); l.QueueSet == nil {
		l.QueueSet = queues
	}
	l.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queueSets[l.name] = l
	f.dropDeletedLocked()
	if !mandatory(l.name) {
		f.loadedOnce.Do(func() { close(f.loaded) })
	}
	return l
}
