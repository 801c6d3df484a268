package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/larder-io/larder/bench/testservers"
)

// Protocols.
const (
	HTTP2 = "h2"
	HTTP1 = "h1"
)

// Config says which clusters are simulated.
type Config struct {
	testservers.Trials
	// Nodes are the numbers of nodes, each of PodsPerNode pods. Above StockNodes only Larder
	// is asked.
	Nodes                   []int
	PodsPerNode, StockNodes int
	// Churn is how many pods are replaced in a second; negative for one of 250 nodes.
	Churn float64
	// Protocols are HTTP2 and HTTP1; Connections is how many each component has by HTTP2.
	Protocols   []string
	Connections int
	// Duration is how long the load is measured before the server is restarted.
	Duration time.Duration
}

// UsualChurn is the churn of a cluster whose pods live for 40 minutes on average when each node
// has ten.
func UsualChurn(nodes int) float64 { return float64(nodes) / 250 }

// check returns an error for what cannot be.
func (c *Config) check() error {
	switch {
	case len(c.Nodes) == 0 || slices.Min(c.Nodes) < 1 || c.PodsPerNode < 1:
		return errors.New("cluster: want at least one node and one pod of each")
	case c.Connections < 1 || c.Duration <= 0:
		return errors.New("cluster: want at least one connection, and a duration")
	}
	for _, p := range c.Protocols {
		if p != HTTP1 && p != HTTP2 {
			return fmt.Errorf("cluster: %q is no protocol: want %s or %s", p, HTTP2, HTTP1)
		}
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// Run simulates all clusters, at each server by each protocol. What was measured is returned with
// an error, too.
func Run(ctx context.Context, c Config) (*Table, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Table{Head: c.Head()}
	for _, nodes := range c.Nodes {
		if err := c.runSize(ctx, t, size{nodes, c.PodsPerNode}); err != nil {
			return t, err
		}
	}
	return t, errors.Join(t.failed...)
}

// runSize simulates clusters of one size, over one etcd.
func (c *Config) runSize(ctx context.Context, t *Table, s size) (err error) {
	servers, err := testservers.NewBelow(c.TestServers, fmt.Sprint(s.nodes))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	c.Sayf("%d nodes: starting etcd", s.nodes)
	if err := servers.StartEtcd(ctx); err != nil {
		return err
	}
	w, err := c.makeDataset(ctx, servers, s)
	if err != nil {
		return err
	}
	for _, protocol := range c.Protocols {
		connections := 0
		if protocol == HTTP2 {
			connections = c.Connections
		}
		if n := s.files(connections); n > openFiles() {
			c.Sayf("%d nodes by HTTP/1.1: left out: about %d connections, and %d open files are allowed", s.nodes, n, openFiles())
			continue
		}
		err := c.Each(func(kind string, round int) error {
			if kind == testservers.Stock && s.nodes > c.StockNodes {
				return nil
			}
			run := &trial{config: c, started: servers, dataset: w, kind: kind, connections: connections, result: &Result{Server: kind, Nodes: s.nodes, Protocol: protocol, Round: round}}
			err := run.run(ctx)
			t.Results = append(t.Results, run.result)
			if ctx.Err() != nil {
				return fmt.Errorf("cluster: %s: %w", run.name(), err)
			}
			if err != nil { // the others are worth having
				run.result.Failure = err.Error()
				t.failed = append(t.failed, fmt.Errorf("cluster: %s: %w", run.name(), err))
				c.Sayf("%s: failed: %v", run.name(), err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// makeDataset makes the objects through a Larder that ends then.
func (c *Config) makeDataset(ctx context.Context, f *testservers.Servers, s size) (_ *dataset, err error) {
	c.Sayf("%d nodes: making %d pods and what belongs to them", s.nodes, s.pods())
	server, err := f.Start(testservers.Larder, testservers.Usual())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := server.Ready(ctx); err != nil {
		return nil, err
	}
	p := newSimulation(ctx, newDataset(s), f, server.Address(), 4, 0)
	defer p.close()
	admin, err := p.client("larder-bench", "admin", "system:masters")
	if err != nil {
		return nil, err
	}
	return p.dataset, p.dataset.seed(ctx, admin)
}

// files is about how many connections there are.
func (s size) files(connections int) int {
	if connections > 0 {
		return 2*s.nodes*connections + 100
	}
	const each = 11 // watches and one connection more of a kubelet and a kube-proxy
	return s.nodes*(each+s.podsPerNode*5/2) + 300
}

// openFiles is how many files a process may have open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Max, 1<<30))
}

// trial is one simulation at one server.
type trial struct {
	config      *Config
	started     *testservers.Servers
	dataset     *dataset
	kind        string
	connections int
	result      *Result

	server     *testservers.Server
	simulation *simulation
}

func (r *trial) name() string {
	return strings.Join([]string{fmt.Sprintf("%d nodes", r.dataset.nodes), r.result.protocol(), r.kind}, ", ")
}

// How long things may take before a run is given up.
const (
	openLimit    = 4 * time.Minute
	restartLimit = 3 * time.Minute
	verifyLimit  = 30 * time.Second
	mostSettling = 3 * time.Second
)

// run starts the server, simulates the cluster, restarts the server and stops both.
func (r *trial) run(ctx context.Context) (err error) {
	guards := testservers.Usual()
	guards.Nodes = true
	r.config.Sayf("%s: starting", r.name())
	if r.server, err = r.started.Start(r.kind, guards); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.server.Stop()) }()
	if err := r.server.Ready(ctx); err != nil {
		return err
	}
	churn := r.config.Churn
	if churn < 0 {
		churn = UsualChurn(r.dataset.nodes)
	}
	r.simulation = newSimulation(ctx, r.dataset, r.started, r.server.Address(), r.connections, churn)
	defer r.simulation.close()
	steps := []func(context.Context) error{r.open, r.steady, r.restart}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	r.simulation.drain(verifyLimit)
	differ, first, err := r.simulation.verify(ctx, verifyLimit)
	if err != nil {
		return err
	}
	r.result.Differing, r.result.FirstDiffering = differ, first
	r.config.Sayf("%s: %s", r.name(), r.result.summary())
	return nil
}

// settling is for how long requests that are due may still be under way.
func (r *trial) settling() time.Duration { return min(r.config.Duration, mostSettling) }

// open connects all components.
func (r *trial) open(ctx context.Context) error {
	m, err := r.measure()
	if err != nil {
		return err
	}
	err = r.simulation.open(ctx, openLimit)
	cost, failed := m.end()
	r.result.Open = Part{Cost: cost, Kinds: r.simulation.phase.Load().results()}
	r.result.Watches = r.simulation.watches()
	return errors.Join(err, failed)
}

// steady is the load as it is from day to day.
func (r *trial) steady(ctx context.Context) error {
	r.simulation.begin()
	if err := pause(ctx, r.settling()); err != nil { // the first requests open connections, and read Leases
		return err
	}
	m, err := r.measure()
	if err != nil {
		return err
	}
	at := newPhase()
	r.simulation.phase.Store(at)
	events := r.simulation.events.Load()
	if err := pause(ctx, r.config.Duration); err != nil {
		return err
	}
	cost, err := m.end()
	r.simulation.phase.Store(newPhase())
	if err != nil {
		return err
	}
	// Requests that were due in this part may still be under way: those that take longer are
	// counted with it.
	if err := pause(ctx, r.settling()); err != nil {
		return err
	}
	r.result.Steady = Part{Cost: cost, Kinds: at.results()}
	r.result.EventsPerSecond = float64(r.simulation.events.Load()-events) / (cost.Wall + r.settling()).Seconds()
	return nil
}

// restart ends the server and starts it again, while the load goes on.
func (r *trial) restart(ctx context.Context) error {
	m, err := r.measure()
	if err != nil {
		return err
	}
	at := newPhase()
	r.simulation.phase.Store(at)
	expired := r.simulation.expired.Load()
	received := r.simulation.received.Load()
	old := r.server
	if err := old.Stop(); err != nil {
		return err
	}
	down := time.Since(m.began)
	if r.server, err = r.started.Again(old); err != nil {
		return err
	}
	m.also(old, r.server)
	if err := r.server.Ready(ctx); err != nil {
		return err
	}
	ready := time.Since(m.began)
	// The clients notice that the server has gone before it has ended.
	if err := r.simulation.awaitAll(ctx, restartLimit); err != nil {
		return err
	}
	cost, err := m.end()
	if err != nil {
		return err
	}
	r.simulation.phase.Store(newPhase())
	r.result.Restart = Part{Cost: cost, Kinds: at.results()}
	r.result.Down, r.result.Ready = down, ready
	r.result.Expired, r.result.Received = r.simulation.expired.Load()-expired, r.simulation.received.Load()-received
	return pause(ctx, r.settling())
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	if !sleep(ctx, d) {
		return fmt.Errorf("cluster: %w", ctx.Err())
	}
	return nil
}
