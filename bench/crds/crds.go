package crds

import (
	"context"
	"errors"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Config configures a measurement.
type Config struct {
	testservers.Trials
	// Count is the number of CRDs, Clients the number of concurrent requests.
	Count, Clients int
	// Used creates, reads and lists one object of each CRD.
	Used bool
}

// Run measures each server. With an error it also returns the results so far.
func Run(ctx context.Context, c Config) ([]*bench.Result, error) {
	if c.Count < 1 || c.Clients < 1 {
		return nil, errors.New("crds: want at least one CRD and one client")
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	return c.Each(func(kind string, round int) ([]*bench.Result, error) {
		p := &measurement{config: &c, kind: kind, round: round}
		err := p.run(ctx)
		return p.results, err
	})
}
