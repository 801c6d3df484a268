package compare

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// elsewhere names the slowdown while another server is flooded. That server competes only for the processors.
const elsewhere = "p99 beside a flood of another server, of that alone"

// flood measures the reads of one user while another user of the same priority level, which has few seats, reads as
// much as possible. As a control, the other user reads from a second server of the same kind.
func (c *Comparison) flood() step {
	const rate, clients = 200, 32
	spec := newRow("B39",
		fmt.Sprintf("GET one pod by one user, %d requests/s, open loop, beside another's %d clients that LIST %d pods each, in a priority level of 5 seats", rate, clients, c.seed.Pods/c.seed.Namespaces),
		Figure{Name: "of the p99 alone", Unit: Times, of: value(bench.Slowdown)},
		Figure{Name: "control: flood of another server", Unit: Times, of: value(elsewhere)},
		latency("p99", 99), Figure{Name: "p99 alone", Unit: Seconds, of: value(bench.AloneP99)},
	)
	return step{rows: []*Row{spec}, run: func(ctx context.Context, kind string) (results []*bench.Result, err error) {
		server := c.servers[kind]
		quiet := c.started.Tenant(server, 0)
		if err := server.Target.AllowTenants(ctx, quiet); err != nil {
			return nil, err
		}
		config := bench.FloodConfig{
			Quiet: bench.ReadConfig{Name: spec.ID, Path: c.seed.PodPath(1), Accept: bench.Protobuf, Load: bench.Load{Operations: c.ops(kind, 600, 600), Clients: 8, Rate: rate}},
			By:    c.started.Tenant(server, 1), Path: namespacedPods, Accept: bench.Protobuf, Clients: clients,
		}
		r, err := bench.Flood(ctx, quiet, config)
		if err != nil {
			return nil, err
		}
		another, err := c.started.Start(ctx, kind, testservers.DefaultGuards())
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, another.Stop()) }()
		config.By = c.started.Tenant(another, 1)
		control, err := bench.Flood(ctx, quiet, config)
		if err != nil {
			return nil, err
		}
		r.Add(elsewhere, control.Value(bench.Slowdown), "")
		return one(r, nil)
	}}
}

// guarded lists the guards whose cost each row measures. The first row has none.
var guarded = []struct {
	id, what string
	guards   testservers.Guards
}{
	{"B40", "no access control, audit or flow control", testservers.Guards{}},
	{"B41", "RBAC alone", testservers.Guards{Access: true}},
	{"B42", "audit of metadata to a file alone", testservers.Guards{Audit: true}},
	{"B43", "flow control alone", testservers.Guards{Flow: true}},
	{"B44", "all three", testservers.Guards{Access: true, Audit: true, Flow: true}},
}

// guards measures one read by a user who is not an administrator, on servers with different guards.
func (c *Comparison) guards() step {
	var specs []*Row
	for _, g := range guarded {
		specs = append(specs, row(g.id, "GET one pod, resourceVersion=0, 4 clients: "+g.what))
	}
	return step{rows: specs, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		if err := c.servers[kind].Target.AllowTenants(ctx, c.started.Tenant(c.servers[kind], 0)); err != nil {
			return nil, err
		}
		var results []*bench.Result
		for _, g := range guarded {
			r, err := c.guardedReads(ctx, kind, g.id, g.guards)
			if err != nil {
				return nil, err
			}
			results = append(results, r)
		}
		return results, nil
	}}
}

func (c *Comparison) guardedReads(ctx context.Context, kind string, name string, g testservers.Guards) (r *bench.Result, err error) {
	server, err := c.started.Start(ctx, kind, g)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	read := bench.ReadConfig{
		Name: name, Path: c.seed.PodPath(1) + "?resourceVersion=0", Accept: bench.Protobuf,
		Load: bench.Load{Operations: c.ops(kind, 2000, 8000), Clients: 4},
	}
	tenant := c.started.Tenant(server, 0)
	// The first run is a warm-up: informers sync, and the server initializes parts on first use.
	if _, err := bench.Read(ctx, tenant, read); err != nil {
		return nil, err
	}
	return bench.Read(ctx, tenant, read)
}
