package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// simulation is one cluster's components at one server, which may be restarted meanwhile.
type simulation struct {
	*dataset
	started *testservers.Servers
	host    string
	byHTTP2 bool    // otherwise by HTTP/1.1
	churn   float64 // pods to replace per second

	phase atomic.Pointer[phase]
	seed  maphash.Seed

	over      context.Context // ends everything
	end       context.CancelFunc
	running   sync.WaitGroup
	replacing sync.WaitGroup // unfinished chains of requests
	draining  atomic.Bool    // no new chains begin

	lost, events, received, expired atomic.Int64

	nodes   []*node
	control *control

	mu    sync.Mutex
	bound map[string]sent // pods whose kubelets shall see them soon
}

// sent says when something was due and in which phase. arrived is closed when it has arrived.
type sent struct {
	due     time.Time
	phase   *phase
	arrived chan struct{}
}

func newSimulation(ctx context.Context, w *dataset, f *testservers.Servers, host string, byHTTP2 bool, churn float64) *simulation {
	sim := &simulation{
		dataset: w, started: f, host: host, byHTTP2: byHTTP2, churn: churn,
		seed: maphash.MakeSeed(), bound: make(map[string]sent),
	}
	sim.phase.Store(newPhase())
	sim.over, sim.end = context.WithCancel(ctx)
	return sim
}

// close ends everything and waits for it.
func (sim *simulation) close() {
	sim.mu.Lock()
	sim.end()
	sim.mu.Unlock()
	sim.running.Wait()
	for _, n := range sim.nodes { // timers that have not fired refer to nodes
		if n != nil {
			n.all, n.mounts = nil, nil
		}
	}
	sim.control = nil
}

// at calls act with due, at that time, in a new goroutine. Operations do not wait for each other, so a slow
// server does not reduce the load.
func (sim *simulation) at(due time.Time, act func(due time.Time)) {
	time.AfterFunc(time.Until(due), func() {
		sim.mu.Lock()
		over := sim.over.Err() != nil
		if !over {
			sim.running.Add(1)
		}
		sim.mu.Unlock()
		if !over {
			defer sim.running.Done()
			act(due)
		}
	})
}

// client returns one component's client.
func (sim *simulation) client(agent, user string, groups ...string) (*client, error) {
	identity, err := sim.started.Identity(user, groups...)
	if err != nil {
		return nil, err
	}
	return newClient(sim.over, sim.host, agent, identity, sim.byHTTP2), nil
}

// mostStarting is how many informers may wait for their first objects while nodes start.
const mostStarting = 400

// open starts all components, and waits until all informers have synced.
func (sim *simulation) open(ctx context.Context, limit time.Duration) (err error) {
	if sim.control, err = sim.newControl(); err != nil {
		return err
	}
	sim.nodes = make([]*node, sim.size.nodes)
	group := errgroup.Group{}
	group.SetLimit(8)
	for i := range sim.nodes {
		group.Go(func() (err error) {
			sim.nodes[i], err = sim.newNode(i)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sim.control.start()
	for _, n := range sim.nodes {
		for sim.lost.Load() > mostStarting {
			if bench.Sleep(ctx, time.Millisecond) != nil {
				return fmt.Errorf("cluster: %d informers wait for their first objects: %w", sim.lost.Load(), ctx.Err())
			}
		}
		n.start()
	}
	return sim.awaitAll(ctx, limit)
}

// begin begins the load: heartbeats, and pods that come and go.
func (sim *simulation) begin() {
	start := time.Now()
	for _, n := range sim.nodes {
		n.beat(start)
	}
	sim.control.beat(start)
	sim.renewTokens(start)
	if sim.churn <= 0 {
		return
	}
	between := time.Duration(float64(time.Second) / sim.churn)
	sim.every(start.Add(between), between, func(due time.Time) {
		if !sim.draining.Load() {
			sim.replacePod(due)
		}
	})
}

// drain stops replacing pods and waits, for a limited time, until the replacements in flight are done.
func (sim *simulation) drain(limit time.Duration) {
	sim.draining.Store(true)
	done := make(chan struct{})
	sim.running.Go(func() {
		defer close(done)
		sim.replacing.Wait()
	})
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// Timeouts of requests: heartbeats use the interval of the node's status, others the server's default.
const (
	usualTimeout = 60 * time.Second
	beatTimeout  = 10 * time.Second
)

// retryAfter is about how long a component waits after a failure.
const retryAfter = 500 * time.Millisecond

// errGaveUp is the error of a request that a retry cannot help.
var errGaveUp = errors.New("cluster: the request cannot succeed")

// send is exchange for requests whose answers do not matter.
func (sim *simulation) send(kind requestKind, due time.Time, c *client, build func() *bench.Request) error {
	_, err := sim.exchange(kind, due, c, build)
	return err
}

// exchange sends a request that was due at a certain time, and retries after failures as the work queues of
// components do. build makes the request of each try, and each try counts.
func (sim *simulation) exchange(kind requestKind, due time.Time, c *client, build func() *bench.Request) ([]byte, error) {
	for {
		at := sim.phase.Load()
		ctx, cancel := context.WithTimeout(sim.over, usualTimeout)
		body, err := c.do(ctx, build())
		cancel()
		if sim.over.Err() != nil {
			return nil, sim.over.Err()
		}
		code := bench.StatusOf(err)
		if err != nil && (code == http.StatusConflict && kind != podCreation || code == http.StatusNotFound) {
			// These are not failures: components read the object again, or have nothing left to do.
			at.record(kind, time.Since(due), code, nil)
		} else {
			at.record(kind, time.Since(due), code, err)
		}
		switch {
		case err == nil:
			return body, nil
		case code == http.StatusNotFound, code == http.StatusConflict && kind == podCreation, code == http.StatusUnprocessableEntity, code == http.StatusBadRequest:
			return nil, fmt.Errorf("%w: %w", errGaveUp, err)
		}
		if bench.Sleep(sim.over, retryAfter) != nil {
			return nil, sim.over.Err()
		}
		due = time.Now()
	}
}

// step is something that is due some time after a chain began.
type step struct {
	after time.Duration
	do    func(due time.Time) error
}

// chain runs steps one after the other, each when it is due and the previous one is done. It ends with the first step
// that fails.
func (sim *simulation) chain(start time.Time, steps ...step) (done bool) {
	for _, s := range steps {
		due := start.Add(s.after)
		if bench.Sleep(sim.over, time.Until(due)) != nil || s.do(due) != nil {
			return false
		}
	}
	return true
}

// expect notes that a kubelet waits for a pod. The channel is closed when the kubelet's watch receives it.
func (sim *simulation) expect(name string, due time.Time) (arrived <-chan struct{}) {
	s := sent{due, sim.phase.Load(), make(chan struct{})}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.bound[name] = s
	return s.arrived
}

// seen notes that a kubelet's watch has received a pod.
func (sim *simulation) seen(name string) {
	sim.mu.Lock()
	s, ok := sim.bound[name]
	delete(sim.bound, name)
	sim.mu.Unlock()
	if ok {
		close(s.arrived)
		s.phase.record(delivery, time.Since(s.due), 0, nil)
	}
}

// forget ends the wait for a pod that was deleted.
func (sim *simulation) forget(name string) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if s, ok := sim.bound[name]; ok {
		delete(sim.bound, name)
		close(s.arrived)
	}
}
