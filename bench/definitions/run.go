package definitions

import (
	"context"
	"errors"
	"fmt"

	"github.com/larder-io/larder/bench/testservers"
)

// Config says how many CRDs there are and which servers serve them.
type Config struct {
	testservers.Trials
	// Count is how many definitions there are, PerGroup how many of them share a group, Fields
	// how many fields each has.
	Count, PerGroup, Fields int
	// Clients is how many requests are under way at a time.
	Clients int
	// Used says that one object of each is made and read.
	Used bool
	// Profiles is a directory that profiles of each step are written to; "" for none. Steps are
	// then further apart.
	Profiles string
}

// check returns an error for what cannot be.
func (c *Config) check() error {
	if c.Count < 1 || c.PerGroup < 1 || c.Fields < 1 || c.Clients < 1 {
		return errors.New("definitions: want at least one definition, one of each group, one field and one client")
	}
	if err := c.Check(); err != nil {
		return fmt.Errorf("definitions: %w", err)
	}
	return nil
}

// Run measures at each server. What was measured is returned with an error, too.
func Run(ctx context.Context, c Config) (*Table, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Table{Head: c.Head(), Count: c.Count}
	var failed []error
	ended := c.Each(func(kind string, round int) error {
		r := &Result{Server: kind, Round: round}
		t.Results = append(t.Results, r)
		if err := c.measure(ctx, r); err != nil {
			failed = append(failed, fmt.Errorf("definitions: %s: %w", kind, err))
		}
		return ctx.Err()
	})
	if ended != nil && len(failed) == 0 {
		failed = append(failed, ended)
	}
	return t, errors.Join(failed...)
}

// measure starts one server on an etcd of its own and measures it.
func (c *Config) measure(ctx context.Context, r *Result) (err error) {
	servers, err := testservers.NewBelow(c.TestServers, fmt.Sprintf("%s-%d", r.Server, r.Round))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	if err := servers.StartEtcd(ctx); err != nil {
		return err
	}
	server, err := servers.Start(r.Server, testservers.Usual())
	if err != nil {
		return err
	}
	p := &measurement{config: c, result: r, started: servers}
	return p.run(ctx, server)
}
