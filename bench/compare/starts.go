package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// starts stops all servers and runs the steps that start them.
func (c *Comparison) starts(ctx context.Context, steps []step) error {
	if _, err := c.end(Larder); err != nil {
		return err
	}
	if c.seed.Pods < c.config.StartPods && slices.ContainsFunc(steps, func(s step) bool { return s.rows[0].ID != emptyStart }) {
		c.config.Sayf("seeding up to %d pods", c.config.StartPods)
		more := c.seed
		more.Pods = c.config.StartPods
		if _, err := bench.Seed(ctx, c.servers[Larder].Target, more); err != nil {
			return err
		}
	}
	for _, server := range c.servers {
		if err := server.Stop(); err != nil {
			return err
		}
	}
	clear(c.servers)
	return c.each(ctx, steps)
}

// emptyStart is the row of starts without objects.
const emptyStart = "B31"

// startSteps are the workloads that start servers.
func (c *Comparison) startSteps() []step {
	n := c.config.StartPods
	spec := func(id, work string) *Row {
		return newRow(id, work, Figure{Unit: Seconds, of: wall}, Figure{Name: "CPU", Unit: Seconds, of: cpuPerOp}, Figure{Name: "RSS", Unit: Memory, of: resident})
	}
	empty := spec(emptyStart, "start to /readyz 200, empty; Larder with its own etcd")
	full := spec("B32", fmt.Sprintf("start to /readyz 200 with %d pods", n))
	under := newRow("B33", fmt.Sprintf("resident with %d pods under LIST load", n), Figure{Unit: Memory, of: resident},
		Figure{Name: "at most", Unit: Memory, of: func(r *bench.Result) float64 { return float64(r.Server.PeakRSS) }})
	open := newRow("B26", fmt.Sprintf("resident memory of one of %d open watches", c.config.openWatches()), Figure{Unit: Memory, of: value(bench.MemoryPerWatch)})
	open.worst = true
	return []step{
		{rows: []*Row{empty}, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
			server, err := c.started.StartEmpty(ctx, kind)
			if err != nil {
				return nil, err
			}
			r, err := started(empty.ID, server)
			return one(r, errors.Join(err, server.Stop()))
		}},
		{rows: []*Row{full, under, open}, run: c.startFull},
	}
}

// started returns the usage of a server from its start until now, just after its /readyz answered 200.
func started(id string, server *testservers.Server) (*bench.Result, error) {
	took := time.Since(server.Started)
	used, err := server.Process.Usage()
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	r := bench.NewResult(id, "start")
	r.Loop = bench.ClosedLoop
	r.Record(took, 0, nil)
	r.Wall, r.ServerCPU, r.Server = took, used.CPU, used
	return r, nil
}

// openWatches returns the number of watches. It is large, so that reused free memory hardly affects the result.
func (c *Config) openWatches() int { return c.watchers(5000) }

// startFull starts a server on the seeded etcd, opens watches before the server has free memory, and then lists all
// pods repeatedly with several clients.
func (c *Comparison) startFull(ctx context.Context, kind string) (_ []*bench.Result, err error) {
	server, err := c.started.Start(ctx, kind, testservers.Usual())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	full, err := started("B32", server)
	if err != nil {
		return nil, err
	}
	held := 5 * time.Second // long enough for the server to return memory to the system
	if c.config.Quick {
		held = 10 * time.Millisecond
	}
	open, err := bench.Hold(ctx, server.Target, bench.HoldConfig{Name: "B26", Path: pods, Accept: bench.Protobuf, Watchers: c.config.openWatches(), Idle: held})
	if err != nil {
		return nil, err
	}
	load, err := c.listLoad(ctx, server.Target)
	return []*bench.Result{full, load, open}, err
}

// listLoad lists all pods with several clients.
func (c *Comparison) listLoad(ctx context.Context, t *bench.Target) (*bench.Result, error) {
	var parts []*bench.Result
	for _, accept := range []string{bench.Protobuf, bench.JSON} {
		r, err := bench.Read(ctx, t, bench.ReadConfig{Name: "B33", Path: pods, Accept: accept, Load: bench.Load{Operations: c.ops(Larder, 8, 8), Clients: 4}})
		if err != nil {
			return nil, err
		}
		parts = append(parts, r)
	}
	return bench.Merge(parts...), nil
}
