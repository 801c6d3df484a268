package flow

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/eventclock"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing/queueset"
	flowmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	"pgregory.net/rapid"
)

// queues is one priority level with the requests that have come to it.
type queues struct {
	fairqueuing.QueueSet
	config   fairqueuing.QueuingConfig
	requests []*visit
	seats    *seatsOverTime
}

// seatsOverTime integrates a gauge of seats.
type seatsOverTime struct {
	flowmetrics.RatioedGauge

	mu    sync.Mutex
	now   float64 // guarded by mu
	sum   float64 // guarded by mu: seat seconds until since
	since time.Time
}

func (s *seatsOverTime) Add(n float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := time.Now()
	s.sum += s.now * t.Sub(s.since).Seconds()
	s.now, s.since = s.now+n, t
	s.RatioedGauge.Add(n)
}

// visit is one request and its state.
type visit struct {
	state  atomic.Value // a string; a clock may wake a request, which orders nothing
	done   chan struct{}
	cancel context.CancelFunc
}

func newQueues(factory fairqueuing.QueueSetFactory, config fairqueuing.QueuingConfig, limit int) *queues {
	labels := []string{config.Name}
	seats := &seatsOverTime{RatioedGauge: flowmetrics.PriorityLevelExecutionSeatsGaugeVec.NewForLabelValuesSafe(0, 1, labels), since: time.Now()}
	completer, err := factory.BeginConstruction(config,
		flowmetrics.RatioedGaugeVecPhasedElementPair(flowmetrics.PriorityLevelConcurrencyGaugeVec, 1, 1, labels),
		seats,
		fairqueuing.NewNamedIntegrator(eventclock.Real{}, config.Name))
	if err != nil {
		panic(err)
	}
	return &queues{QueueSet: completer.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: limit, ConcurrencyDenominator: max(limit, 1)}), config: config, seats: seats}
}

// start starts a request. With direct set, it tries enter before upstream's queues.
func (q *queues) start(work flowrequest.WorkEstimate, hash uint64, direct bool) {
	v := &visit{done: make(chan struct{})}
	v.state.Store("waiting")
	q.requests = append(q.requests, v)
	if l, ok := q.QueueSet.(*queueSet); ok && direct && work.AdditionalLatency == 0 && l.enter(work.MaxSeats()) {
		v.state.Store("executing")
		go func() {
			<-v.done
			l.leave(work.MaxSeats())
			v.state.Store("gone")
		}()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	request, _ := q.StartRequest(ctx, &work, hash, "", "schema", nil, nil, nil)
	if request == nil {
		v.state.Store("refused")
		return
	}
	go func() {
		request.Finish(func() {
			v.state.Store("executing")
			<-v.done
		})
		v.state.Store("gone")
	}()
}

func (q *queues) limit(limit int) {
	completer, err := q.BeginConfigChange(q.config)
	if err != nil {
		panic(err)
	}
	completer.Complete(fairqueuing.DispatchingConfig{ConcurrencyLimit: limit, ConcurrencyDenominator: max(limit, 1)})
}

func (q *queues) in(state string) (list []int) {
	for i, v := range q.requests {
		if v.state.Load() == state {
			list = append(list, i)
		}
	}
	return list
}

// states returns the states of the requests, sorted if there are several queues.
func (q *queues) states(many bool) []string {
	var list []string
	for _, v := range q.requests {
		list = append(list, v.state.Load().(string))
	}
	if many {
		slices.Sort(list)
	}
	return list
}

// end ends all requests.
func (q *queues) end() {
	for _, v := range q.requests {
		if v.cancel != nil {
			v.cancel()
		}
		close(v.done)
	}
}

// TestQueueSetDecidesAsUpstream checks that a queueSet executes, queues and rejects the same requests as
// upstream's, in any order of starts, ends and changes of the limit. With several queues, only the numbers of
// requests in each state are compared, because some requests get their seats without the queues.
func TestQueueSetDecidesAsUpstream(t *testing.T) {
	flowmetrics.Register()
	configs := []fairqueuing.QueuingConfig{
		{Name: "exempt", DesiredNumQueues: -1},
		{Name: "refusing", DesiredNumQueues: 0},
		{Name: "waiting", DesiredNumQueues: 1, QueueLengthLimit: 3, HandSize: 1},
		{Name: "shuffling", DesiredNumQueues: 4, QueueLengthLimit: 50, HandSize: 2},
	}
	rapid.Check(t, func(r *rapid.T) {
		config := configs[rapid.IntRange(0, len(configs)-1).Draw(r, "config")]
		limit := rapid.IntRange(0, 6).Draw(r, "limit")
		steps := rapid.SliceOfN(rapid.IntRange(0, 1<<16), 1, 40).Draw(r, "steps")
		var difference string
		synctest.Test(t, func(*testing.T) { difference = checkQueueSet(config, limit, steps) })
		if difference != "" {
			r.Fatal(difference)
		}
	})
}

// checkQueueSet returns the first difference, or "".
func checkQueueSet(config fairqueuing.QueuingConfig, limit int, steps []int) string {
	factory := queueset.NewQueueSetFactory(eventclock.Real{})
	flow := &Control{config: Config{Informers: informers.NewSharedInformerFactory(nil, 0)}, queueSets: make(map[string]*queueSet), loaded: make(chan struct{})}
	theirs := newQueues(factory, config, limit)
	ours := newQueues(&queueSetFactory{flow, factory}, config, limit)
	both := []*queues{theirs, ours}
	defer synctest.Wait()
	defer func() {
		theirs.end()
		ours.end()
		time.Sleep(time.Second) // in the bubble: until no seat lingers
	}()
	many := config.DesiredNumQueues > 1
	var log []string
	for _, step := range steps {
		kind, n := step%8, step/8
		executing := theirs.in("executing")
		switch {
		case kind < 4:
			work := flowrequest.WorkEstimate{InitialSeats: uint64(1 + n%3)}
			if many {
				work = flowrequest.WorkEstimate{InitialSeats: 1}
			} else if kind == 0 {
				work.FinalSeats, work.AdditionalLatency = uint64(n/3%4), time.Duration(1+n%5)*time.Millisecond
			}
			log = append(log, fmt.Sprintf("start %+v", work))
			for _, q := range both {
				q.start(work, uint64(n), n%2 == 0)
				synctest.Wait()
			}
		case kind == 7:
			log = append(log, fmt.Sprint("limit ", n%7))
			for _, q := range both {
				q.limit(n % 7)
			}
		case kind == 6:
			log = append(log, "sleep")
			time.Sleep(time.Duration(n%20) * time.Millisecond)
		case len(executing) > 0:
			log = append(log, fmt.Sprint("end ", n%len(executing)))
			for _, q := range both {
				i := q.in("executing")[n%len(executing)]
				close(q.requests[i].done)
				q.requests[i].done = make(chan struct{})
			}
		}
		synctest.Wait()
		if !slices.Equal(ours.states(many), theirs.states(many)) {
			return fmt.Sprintf("after %q with %+v of %d at first:\ngot  %v\nwant %v", log, config, limit, ours.states(many), theirs.states(many))
		}
	}
	return ""
}

// TestUtilizationHasSeatsByCount checks that the utilization of a priority level includes seats that were given
// without the queues, and counts each seat once when the queues open.
func TestUtilizationHasSeatsByCount(t *testing.T) {
	flowmetrics.Register()
	synctest.Test(t, func(t *testing.T) {
		config := fairqueuing.QueuingConfig{Name: "utilized", DesiredNumQueues: 1, QueueLengthLimit: 10, HandSize: 1}
		factory := queueset.NewQueueSetFactory(eventclock.Real{})
		flow := &Control{config: Config{Informers: informers.NewSharedInformerFactory(nil, 0)}, queueSets: make(map[string]*queueSet), loaded: make(chan struct{})}
		for name, q := range map[string]*queues{
			"upstream": newQueues(factory, config, 5), "ours": newQueues(&queueSetFactory{flow, factory}, config, 5),
		} {
			began := time.Now()
			turn := func(n int) {
				for range n {
					q.start(flowrequest.WorkEstimate{InitialSeats: 1}, 1, true)
				}
				time.Sleep(200 * time.Millisecond)
				q.end()
				synctest.Wait()
				q.requests = nil
			}
			for range 50 {
				for range 3 { // they end one soon after the other
					q.start(flowrequest.WorkEstimate{InitialSeats: 1}, 1, true)
					time.Sleep(15 * time.Millisecond)
				}
				turn(0)
			}
			q.seats.Add(0)
			if mean := q.seats.sum / time.Since(began).Seconds(); math.Abs(mean-2.82) > 0.3 {
				t.Errorf("%s: %.2f seats on average, want 2.82", name, mean)
			}
			turn(7)
			if math.Abs(q.seats.now) > 1e-9 {
				t.Errorf("%s: %.2f seats after all queues were empty", name, q.seats.now)
			}
		}
	})
}

// lateClock is a clock whose events are a second late.
type lateClock struct{ eventclock.Real }

func (c lateClock) EventAfterDuration(f eventclock.EventFunc, d time.Duration) {
	c.Real.EventAfterDuration(f, d+time.Second)
}

// TestLingeringSeatsAreNotGivenTwice checks that the queues stay open until upstream has released the last seat, even
// if its timer is late. Requests that got seats without the queues would exceed the limit.
func TestLingeringSeatsAreNotGivenTwice(t *testing.T) {
	flowmetrics.Register()
	synctest.Test(t, func(t *testing.T) {
		flow := &Control{config: Config{Informers: informers.NewSharedInformerFactory(nil, 0)}, queueSets: make(map[string]*queueSet), loaded: make(chan struct{})}
		factory := &queueSetFactory{flow, queueset.NewQueueSetFactory(lateClock{})}
		q := newQueues(factory, fairqueuing.QueuingConfig{Name: "late", DesiredNumQueues: 0}, 1)
		start := func(latency time.Duration) {
			q.start(flowrequest.WorkEstimate{InitialSeats: 1, AdditionalLatency: latency}, 1, true)
			synctest.Wait()
		}
		start(time.Millisecond)
		start(0) // opens the queues
		close(q.requests[0].done)
		q.requests[0].done = make(chan struct{})
		time.Sleep(10 * time.Millisecond)
		start(0)
		start(0)
		time.Sleep(time.Second)
		start(0)
		if got, want := q.states(false), []string{"gone", "refused", "refused", "refused", "executing"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		q.end()
		synctest.Wait()
		if q.seats.now != 0 {
			t.Errorf("%v seats after all requests", q.seats.now)
		}
	})
}
