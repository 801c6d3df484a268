package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// tail returns a row with the CPU time per operation and the latencies p99 and p99.9. Each figure is the median of
// all rounds.
func tail(id, work string, p99, p999 func(*bench.Result) float64) *Row {
	spec := row(id, work, Figure{Name: "p99", Unit: Seconds, of: p99}, Figure{Name: "p99.9", Unit: Seconds, of: p999})
	spec.median = true
	return spec
}

// stalledWatchers measures watchers while as many others never read. The latency of a delivery counts from the response
// to its change, because other rows measure the writes.
func (c *Comparison) stalledWatchers() step {
	const rate = 100
	watchers := c.config.watchers(50)
	spec := tail("B35", fmt.Sprintf("WATCH by %d watchers beside %d stuck ones, %d events/s, per delivery; latencies from the response to the change", watchers, watchers, rate), value(bench.LateP99), value(bench.LateP999))
	return c.watch(spec, false, func(kind string) bench.WatchConfig {
		return bench.WatchConfig{
			Watchers: watchers, Stuck: watchers, Objects: c.seed.PodPaths(min(50, c.seed.Pods)), Load: bench.Load{Operations: c.ops(kind, 1000, 1000), Rate: rate, Clients: 4},
		}
	})
}

// watch returns a step that measures a server's watches while a separate server makes changes. kube-apiserver could not
// make them at the full rate, and would use the measured server's CPU time. The limit makes its own changes.
func (c *Comparison) watch(spec *Row, limit bool, configure func(kind string) bench.WatchConfig) step {
	return c.undisturbed(step{rows: []*Row{spec}, limit: limit, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		config := configure(kind)
		config.Name, config.Path, config.Accept = spec.ID, pods, bench.Protobuf
		if kind != Limit {
			through, err := c.start(ctx, writer)
			if err != nil {
				return nil, err
			}
			config.Through = through.Target
		}
		return one(bench.Watch(ctx, c.servers[kind].Target, config))
	}})
}

// Names of the mixed load's Values: the latency of its small requests.
const (
	smallP99  = "p99 of small requests"
	smallP999 = "p99.9 of small requests"
)

// mixed is the load of a cluster, at a rate that both servers can keep up with.
func (c *Comparison) mixed() step {
	const rate = 300
	spec := tail("B36", fmt.Sprintf("mixed load, %d requests/s, open loop; latencies of GETs and of lists of a node", rate), value(smallP99), value(smallP999))
	return c.undisturbed(step{rows: []*Row{spec}, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		results, err := bench.Mixed(ctx, c.servers[kind].Target, bench.MixedConfig{Seed: c.seed, Load: bench.Load{Operations: c.ops(kind, 4500, 4500), Clients: 16, Rate: rate}})
		if err != nil {
			return nil, err
		}
		whole := results[0]
		small := bench.Merge(slices.DeleteFunc(slices.Clone(results[1:]), func(r *bench.Result) bool {
			return r.Name != bench.GetPod && r.Name != bench.ListNode
		})...)
		whole.Add(smallP99, small.Quantile(99).Seconds(), "s")
		whole.Add(smallP999, small.Quantile(99.9).Seconds(), "s")
		return one(whole, nil)
	}})
}

// writer names the separate Larder that makes changes, whichever server is measured.
const writer = "writer"

// start starts one of the servers that run for many steps, unless it runs.
func (c *Comparison) start(ctx context.Context, kind string) (*testservers.Server, error) {
	if s := c.servers[kind]; s != nil {
		return s, nil
	}
	program := kind
	if kind == writer {
		program = Larder
	}
	s, err := c.started.Start(ctx, program, testservers.DefaultGuards())
	if err == nil {
		c.servers[kind] = s
	}
	return s, err
}

// undisturbed stops the other servers while a step with writes measures one. Otherwise the other server would follow
// the writes, and might use more CPU time than the measured server. Pausing it is not enough, because etcd keeps
// trying to send events to a paused server. The measured server may have just started, so a tenth of the load runs
// first as a warm-up. The limit does not use etcd, and needs none of this.
func (c *Comparison) undisturbed(s step) step {
	plain := s.run
	s.run = func(ctx context.Context, kind string) (results []*bench.Result, err error) {
		if kind == Limit {
			return plain(ctx, kind)
		}
		back, err := c.end(kind)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, back(ctx)) }()
		c.warming = true
		_, err = plain(ctx, kind)
		c.warming = false
		if err != nil {
			return nil, err
		}
		if err := c.awaitIdle(ctx); err != nil {
			return nil, err
		}
		return plain(ctx, kind)
	}
	return s
}

// end stops the servers that follow etcd, except the measured one. back restarts them.
func (c *Comparison) end(measured string) (back func(context.Context) error, err error) {
	var ended []string
	back = func(ctx context.Context) error {
		for _, kind := range ended {
			again, err := c.servers[kind].Again(ctx)
			if err != nil {
				return err
			}
			c.servers[kind] = again
		}
		return c.awaitIdle(ctx)
	}
	for _, kind := range []string{Stock, Larder, writer} {
		if c.servers[kind] == nil || kind == measured {
			continue
		}
		if err := c.servers[kind].Stop(); err != nil {
			return nil, err
		}
		if kind == writer {
			delete(c.servers, writer) // the next step of watches starts another
			continue
		}
		ended = append(ended, kind)
	}
	return back, nil
}

// awaitIdle waits until the servers are idle, for a limited time, because other load on the machine may delay them.
func (c *Comparison) awaitIdle(ctx context.Context) error {
	const (
		interval = 250 * time.Millisecond
		maxUsed  = interval / 20
		longest  = 15 * time.Second
	)
	if c.config.Quick {
		return nil
	}
	used, err := c.used()
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, interval, longest, false, func(context.Context) (done bool, err error) {
		before := used
		used, err = c.used()
		return used-before < maxUsed, err
	})
	if ctx.Err() == nil && wait.Interrupted(err) {
		return nil
	}
	return err
}

func (c *Comparison) used() (sum time.Duration, err error) {
	for _, s := range c.servers {
		if s.CheckAlive() != nil {
			continue
		}
		cpu, err := s.Process.CPU()
		if err != nil {
			return 0, fmt.Errorf("compare: %w", err)
		}
		sum += cpu
	}
	return sum, nil
}
