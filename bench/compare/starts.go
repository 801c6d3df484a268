package compare

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// starts runs the steps that start servers: the others are stopped before.
func (c *Comparison) starts(ctx context.Context, steps []step) error {
	for _, kind := range []Kind{Limit, Stock} {
		if server := c.servers[kind]; server != nil {
			if err := server.Stop(); err != nil {
				return err
			}
			delete(c.servers, kind)
		}
	}
	larder := c.servers[Larder]
	if c.seed.Pods < c.config.StartPods && slices.ContainsFunc(steps, func(s step) bool { return s.rows[0].id != emptyStart }) {
		c.config.say("seeding up to %d pods", c.config.StartPods)
		c.shown.Store(larder.Target)
		more := c.seed
		more.Pods = c.config.StartPods
		if err := seedAll(ctx, larder.Target, more); err != nil {
			return err
		}
	}
	if err := larder.Stop(); err != nil {
		return err
	}
	delete(c.servers, Larder)
	return c.each(ctx, steps)
}

// emptyStart is the row of starts without objects.
const emptyStart = "B31"

// startSteps are the workloads that start servers.
func (c *Comparison) startSteps() []step {
	n := c.config.StartPods
	started := func(id, work string) rowSpec {
		return rowSpec{id: id, work: work, figures: []Figure{
			{Unit: Wall, of: wall}, {Name: "CPU", Unit: Seconds, of: cpuPerOp}, {Name: "RSS", Unit: Memory, of: resident},
		}}
	}
	empty := started(emptyStart, "start to /readyz 200, empty; Larder with its own etcd")
	full := started("B32", fmt.Sprintf("start to /readyz 200 with %d pods", n))
	under := rowSpec{
		id: "B33", work: fmt.Sprintf("resident with %d pods under LIST load", n),
		figures: []Figure{
			{Unit: Memory, of: resident},
			{Name: "at most", Unit: Memory, of: func(r *bench.Result) float64 { return float64(r.Server.PeakRSS) }},
		},
	}
	open := rowSpec{
		id: "B26", work: fmt.Sprintf("resident memory of one of %d open watches", c.config.openWatches()), worst: true,
		figures: []Figure{{Unit: Memory, of: value(bench.MemoryPerWatch)}},
	}
	return []step{
		{rows: []rowSpec{empty}, run: func(ctx context.Context, kind Kind) ([]*bench.Result, error) {
			return one(bench.Start(ctx, bench.StartConfig{Name: empty.id, Starts: 1, Launch: func(ctx context.Context) (*bench.Target, time.Time, func() error, error) {
				return launched(c.started.StartEmpty(ctx, string(kind)))
			}}))
		}},
		{rows: []rowSpec{full, under, open}, run: c.startFull},
	}
}

func launched(server *testservers.Server, err error) (*bench.Target, time.Time, func() error, error) {
	if err != nil {
		return nil, time.Time{}, nil, err
	}
	return server.Target, server.Started, server.Stop, nil
}

// openWatches is the number of watches: so many that memory that was free before does not matter. They are
// held long enough for the server to return memory to the system.
func (c *Config) openWatches() int { return c.watchers(5000) }

func (c *Config) held() time.Duration {
	if c.Quick {
		return 10 * time.Millisecond
	}
	return 5 * time.Second
}

// startFull starts a server on the seeded etcd, opens watches before it has free memory, and then lists all
// pods repeatedly with several clients.
func (c *Comparison) startFull(ctx context.Context, kind Kind) ([]*bench.Result, error) {
	var load, open *bench.Result
	started, err := bench.Start(ctx, bench.StartConfig{
		Name: "B32", Starts: 1,
		Launch: func(context.Context) (*bench.Target, time.Time, func() error, error) {
			return launched(c.started.Start(string(kind), testservers.Usual()))
		},
		Then: func(ctx context.Context, t *bench.Target) (err error) {
			c.shown.Store(t)
			open, err = bench.Hold(ctx, t, bench.HoldConfig{Name: "B26", Path: pods, Accept: bench.Protobuf, Watchers: c.config.openWatches(), Idle: c.config.held()})
			if err != nil {
				return err
			}
			load, err = c.listLoad(ctx, t)
			return err
		},
	})
	return []*bench.Result{started, load, open}, err
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
