package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// simulation simulates the components of one cluster at one server, which may restart meanwhile.
type simulation struct {
	*dataset
	started *testservers.Servers
	host    string
	byHTTP2 bool    // false means HTTP/1.1
	churn   float64 // pods to replace per second

	phase atomic.Pointer[phase]
	seed  maphash.Seed

	over      context.Context // ends with the simulation
	end       context.CancelFunc
	running   sync.WaitGroup
	replacing sync.WaitGroup // unfinished chains of requests
	draining  atomic.Bool    // whether to begin no more chains

	lost, events, received, expired atomic.Int64

	nodes   []*node
	control *control

	mu    sync.Mutex
	bound map[string]sentBinding // bound pods that their kubelets' watches have not received, by name
}

// sentBinding is a binding, with its due time and phase. arrived is closed when the kubelet's watch has received the pod.
type sentBinding struct {
	due     time.Time
	phase   *phase
	arrived chan struct{}
}

func newSimulation(ctx context.Context, w *dataset, f *testservers.Servers, host string, byHTTP2 bool, churn float64) *simulation {
	sim := &simulation{
		dataset: w, started: f, host: host, byHTTP2: byHTTP2, churn: churn,
		seed: maphash.MakeSeed(), bound: make(map[string]sentBinding),
	}
	sim.phase.Store(newPhase())
	sim.over, sim.end = context.WithCancel(ctx)
	return sim
}

func (sim *simulation) close() {
	sim.mu.Lock()
	sim.end()
	sim.mu.Unlock()
	sim.running.Wait()
	for _, n := range sim.nodes { // pending timers keep nodes alive
		if n != nil {
			n.all, n.mounts = nil, nil
		}
	}
	sim.control = nil
}

// schedule calls act in a new goroutine when it is due. Operations do not wait for each other, so a slow server does not
// reduce the load.
func (sim *simulation) schedule(due time.Time, act func(due time.Time)) {
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
func (sim *simulation) open(ctx context.Context) (err error) {
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
	sim.control.start()
	for _, n := range sim.nodes {
		if err := sim.awaitSynced(ctx, mostStarting); err != nil {
			return err
		}
		n.start()
	}
	return sim.awaitSynced(ctx, 0)
}

// begin starts the load: heartbeats, token renewals and the replacement of pods.
func (sim *simulation) begin() {
	start := time.Now()
	for _, n := range sim.nodes {
		n.heartbeat(start)
	}
	sim.control.renewLeases(start)
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

// Timeouts of heartbeats and of other requests.
const (
	usualTimeout = 60 * time.Second
	beatTimeout  = 10 * time.Second
)

// retryAfter is how long a component waits after a failure.
const retryAfter = 500 * time.Millisecond

// send calls exchange and discards the response.
func (sim *simulation) send(kind requestKind, due time.Time, c *client, build func() bench.Request) error {
	_, err := sim.exchange(kind, due, c, build)
	return err
}

// sending returns an action that calls send.
func (sim *simulation) sending(kind requestKind, c *client, build func() bench.Request) func(due time.Time) error {
	return func(due time.Time) error { return sim.send(kind, due, c, build) }
}

// exchange sends a request that was due at a certain time. After failures it retries, like the work queues of
// components. build makes the request of each try. Each try is recorded.
func (sim *simulation) exchange(kind requestKind, due time.Time, c *client, build func() bench.Request) ([]byte, error) {
	for {
		at := sim.phase.Load()
		ctx, cancel := context.WithTimeout(sim.over, usualTimeout)
		body, err := c.do(ctx, build())
		cancel()
		if sim.over.Err() != nil {
			return nil, sim.over.Err()
		}
		code, failure := bench.StatusOf(err), err
		if code == http.StatusConflict && kind != podCreation || code == http.StatusNotFound {
			failure = nil // a component reads the object again, or has nothing left to do
		}
		at.record(kind, time.Since(due), code, failure)
		switch {
		case err == nil:
			return body, nil
		case code == http.StatusNotFound, code == http.StatusConflict && kind == podCreation, code == http.StatusUnprocessableEntity, code == http.StatusBadRequest:
			return nil, err // a retry cannot help
		}
		if bench.Sleep(sim.over, retryAfter) != nil {
			return nil, sim.over.Err()
		}
		due = time.Now()
	}
}

// step is an action that is due some time after its chain began.
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

// expect registers a pod that a kubelet's watch must receive. The channel is closed when that happens.
func (sim *simulation) expect(name string, due time.Time) (arrived <-chan struct{}) {
	s := sentBinding{due, sim.phase.Load(), make(chan struct{})}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.bound[name] = s
	return s.arrived
}

// seen records that a kubelet's watch has received a pod.
func (sim *simulation) seen(name string) {
	if s, ok := sim.endWait(name); ok {
		s.phase.record(delivery, time.Since(s.due), 0, nil)
	}
}

// endWait ends the wait for a pod, which has arrived or was deleted. It returns the pod's binding, if there was a wait.
func (sim *simulation) endWait(name string) (s sentBinding, waited bool) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if s, waited = sim.bound[name]; waited {
		delete(sim.bound, name)
		close(s.arrived)
	}
	return s, waited
}

// client sends the requests of one component. Over HTTP/2, all requests share one connection, as in client-go; over
// HTTP/1.1, each watch has a connection.
type client struct {
	origin, agent string
	transport     http.RoundTripper
}

// newClient returns a client whose connections close when ctx ends.
func newClient(ctx context.Context, host, agent string, identity tls.Certificate, byHTTP2 bool) *client {
	config := &tls.Config{Certificates: []tls.Certificate{identity}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	return &client{origin: "https://" + host, agent: agent, transport: bench.NewTransport(ctx, config, byHTTP2)}
}

func (c *client) send(ctx context.Context, r bench.Request) (*http.Response, error) {
	return bench.Send(ctx, c.transport, c.origin, c.agent, r)
}

func (c *client) do(ctx context.Context, r bench.Request) ([]byte, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", r.Method, r.Path, err)
	}
	return body, nil
}
