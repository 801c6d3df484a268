package definitions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Config says how many definitions there are and who serves them.
type Config struct {
	// TestServers is what servers are started from.
	TestServers testservers.Config
	// Count is how many definitions there are, PerGroup how many of them share a group, Fields
	// how many fields each has.
	Count, PerGroup, Fields int
	// Clients is how many requests are under way at a time.
	Clients int
	// Used says that one object of each is made and read.
	Used bool
	// Servers are testservers.Stock and testservers.Larder. Rounds is how often all is done, the servers in turn.
	Servers []string
	Rounds  int
	// Profiles is a directory that profiles of each step are written to; "" for none. Steps are
	// then further apart.
	Profiles string
	// Command is the command line that the table shows.
	Command string
	// Say is called with each line about what happens.
	Say func(string)
}

// check returns an error for what cannot be.
func (c *Config) check() error {
	if c.Count < 1 || c.PerGroup < 1 || c.Fields < 1 || c.Clients < 1 || c.Rounds < 1 {
		return errors.New("definitions: want at least one definition, one of each group, one field, one client and one round")
	}
	if err := testservers.CheckKinds(c.Servers); err != nil {
		return fmt.Errorf("definitions: %w", err)
	}
	return nil
}

// Run measures at each server. What was measured is returned with an error, too.
func Run(ctx context.Context, c Config) (*Table, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Table{Date: time.Now(), Machine: bench.Machine(), Command: c.Command, Count: c.Count}
	var failed []error
	for round := range c.Rounds {
		for _, kind := range testservers.Turns(c.Servers, round) {
			r := &Result{Server: kind, Round: round + 1}
			t.Results = append(t.Results, r)
			if err := c.measure(ctx, r); err != nil {
				failed = append(failed, fmt.Errorf("definitions: %s: %w", kind, err))
			}
			if ctx.Err() != nil {
				return t, errors.Join(failed...)
			}
		}
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
	p := &play{config: c, result: r, started: servers}
	return p.run(ctx, server)
}

func (c *Config) say(format string, args ...any) {
	if c.Say != nil {
		c.Say(fmt.Sprintf(format, args...))
	}
}
