package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Protocols.
const (
	HTTP2 = "h2"
	HTTP1 = "h1"
)

// protocols holds the names of the protocols in results.
var protocols = map[string]string{HTTP2: "HTTP/2", HTTP1: "HTTP/1.1"}

// Config configures the simulated clusters.
type Config struct {
	testservers.Trials
	// Nodes lists the sizes of the clusters. Each node has PodsPerNode pods.
	Nodes       []int
	PodsPerNode int
	// Churn is the number of pods to replace per second; a negative one replaces one for 250 nodes.
	Churn     float64
	Protocols []string
	// Duration is how long the load is measured before the server is restarted.
	Duration time.Duration
	Kill     bool
}

func (c *Config) check() error {
	switch {
	case len(c.Nodes) == 0 || slices.Min(c.Nodes) < 1 || c.PodsPerNode < 1:
		return errors.New("cluster: --nodes and --pods-per-node must be at least 1")
	case c.Duration <= 0:
		return errors.New("cluster: --duration must be more than 0")
	}
	for _, p := range c.Protocols {
		if protocols[p] == "" {
			return fmt.Errorf("cluster: --protocol=%s: want %s or %s", p, HTTP2, HTTP1)
		}
	}
	return c.Check()
}

// Run simulates all clusters, with each server and each protocol. With an error it also returns the results so far.
func Run(ctx context.Context, c Config) (all []*bench.Result, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	for _, nodes := range c.Nodes {
		found, err := c.runSize(ctx, size{nodes, c.PodsPerNode})
		all = append(all, found...)
		if err != nil {
			return all, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return all, nil
}

func (c *Config) runSize(ctx context.Context, s size) (all []*bench.Result, err error) {
	c.Sayf("%d nodes: starting etcd", s.nodes)
	servers, err := testservers.New(ctx, c.TestServers, fmt.Sprint(s.nodes))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	w, err := c.makeDataset(ctx, servers, s)
	if err != nil {
		return nil, err
	}
	for _, protocol := range c.Protocols {
		found, err := c.Each(func(kind string, _ int) ([]*bench.Result, error) {
			run := &trial{config: c, started: servers, dataset: w, kind: kind, protocol: protocol}
			err := run.run(ctx)
			return run.results, err
		})
		all = append(all, found...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", protocol, err)
		}
	}
	return all, nil
}

// makeDataset creates the objects through a Larder, and stops it.
func (c *Config) makeDataset(ctx context.Context, f *testservers.Servers, s size) (_ *dataset, err error) {
	c.Sayf("%d nodes: creating %d pods and their objects", s.nodes, s.pods())
	server, err := f.Start(ctx, testservers.Larder, testservers.DefaultGuards())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	p := newSimulation(ctx, newDataset(s), f, server.Target.Address(), true, 0)
	defer p.close()
	admin, err := p.client("larder-bench", "admin", "system:masters")
	if err != nil {
		return nil, err
	}
	return p.dataset, p.dataset.seed(ctx, admin)
}

// trial is one simulation at one server.
type trial struct {
	config         *Config
	started        *testservers.Servers
	dataset        *dataset
	kind, protocol string
	results        []*bench.Result

	server     *testservers.Server
	simulation *simulation
}

func (t *trial) name() string {
	return fmt.Sprintf("%s: %d nodes, %s", t.kind, t.dataset.nodes, protocols[t.protocol])
}

// Time limits of a run.
const (
	openLimit    = 4 * time.Minute
	restartLimit = 3 * time.Minute
	verifyLimit  = 30 * time.Second
	mostSettling = 3 * time.Second
)

// run starts the server, simulates the cluster, restarts the server and stops both.
func (t *trial) run(ctx context.Context) (err error) {
	guards := testservers.DefaultGuards()
	guards.Nodes = true
	t.config.Sayf("%s: starting", t.name())
	if t.server, err = t.started.Start(ctx, t.kind, guards); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.server.Stop()) }()
	churn := t.config.Churn
	if churn < 0 {
		churn = float64(t.dataset.nodes) / 250 // with ten pods on each node, a pod lives for 40 minutes
	}
	t.simulation = newSimulation(ctx, t.dataset, t.started, t.server.Target.Address(), t.protocol == HTTP2, churn)
	defer t.simulation.close()
	for _, step := range []func(context.Context) error{t.open, t.steady, t.restart} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	t.simulation.drain(verifyLimit)
	differ, first, err := t.simulation.verify(ctx, verifyLimit)
	if differ > 0 {
		restart := t.results[len(t.results)-1]
		restart.Errors, restart.FirstError = differ, "the contents of an informer are wrong: "+first
	}
	return err
}

func (t *trial) settling() time.Duration { return min(t.config.Duration, mostSettling) }

func (t *trial) open(ctx context.Context) error {
	result, err := t.measured(ctx, "connecting all", func(*bench.Meter) error {
		ctx, cancel := context.WithTimeout(ctx, openLimit)
		defer cancel()
		return t.simulation.open(ctx)
	})
	if err != nil {
		return err
	}
	result.Ops = t.simulation.watches()
	result.Add("watches", float64(result.Ops), "")
	return nil
}

func (t *trial) steady(ctx context.Context) error {
	t.simulation.begin()
	if err := bench.Sleep(ctx, t.settling()); err != nil { // the first requests open connections, and read Leases
		return err
	}
	at := newPhase()
	whole, err := t.measured(ctx, "steady", func(*bench.Meter) error {
		t.simulation.phase.Store(at)
		t.simulation.events.Store(0)
		return bench.Sleep(ctx, t.config.Duration)
	})
	t.simulation.phase.Store(newPhase())
	if err != nil {
		return err
	}
	// Wait for requests that were due in this part and are still in flight, so that they count.
	if err := bench.Sleep(ctx, t.settling()); err != nil {
		return err
	}
	kinds := at.results(whole)
	for _, k := range kinds {
		if !strings.HasSuffix(k.Name, string(delivery)) {
			whole.Ops += k.Ops
		}
	}
	t.results = append(t.results, kinds...)
	perMinute(whole)
	whole.Add("requests a second", whole.Rate(), "")
	whole.Add("events a second", float64(t.simulation.events.Load())/(whole.Wall+t.settling()).Seconds(), "")
	return nil
}

func (t *trial) restart(ctx context.Context) error {
	at := newPhase()
	var down, ready time.Duration
	result, err := t.measured(ctx, "restart", func(m *bench.Meter) error {
		t.simulation.phase.Store(at)
		t.simulation.expired.Store(0)
		t.simulation.received.Store(0)
		old, began := t.server, time.Now()
		end := old.Stop
		if t.config.Kill {
			end = old.Kill
		}
		if err := end(); err != nil {
			return err
		}
		down = time.Since(began)
		next, err := old.Again(ctx)
		if err != nil {
			return err
		}
		t.server = next
		m.Replace(old.Used(), next.Target)
		ready = time.Since(began)
		// Clients have noticed the end of the old server by now, because their connections close before its process ends.
		ctx, cancel := context.WithTimeout(ctx, restartLimit)
		defer cancel()
		return t.simulation.awaitSynced(ctx, 0)
	})
	if err != nil {
		return err
	}
	t.simulation.phase.Store(newPhase())
	result.Add("ended after", down.Seconds(), "s")
	result.Add("ready after", ready.Seconds(), "s")
	result.Add("informers that listed again", float64(t.simulation.expired.Load()), "")
	result.Add("sent to watches", float64(t.simulation.received.Load()), "B")
	failures, refused := 0, 0
	for _, k := range at.results(result) {
		failures, refused = failures+k.Failures(), refused+k.Refused
		result.Ops += k.Ops
	}
	result.Add("requests failed", float64(failures), "")
	result.Add("of them with 429", float64(refused), "")
	return bench.Sleep(ctx, t.settling())
}
