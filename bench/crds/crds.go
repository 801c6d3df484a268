package crds

import (
	"context"
	"errors"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Config says how many CRDs there are and which servers serve them.
type Config struct {
	testservers.Trials
	// Count is the number of CRDs, PerGroup the number of CRDs of a group, Fields the number of
	// fields of each CRD.
	Count, PerGroup, Fields int
	// Clients is the number of concurrent requests.
	Clients int
	// Used creates and reads one object of each CRD.
	Used bool
}

// Run measures each server. It returns the results so far with an error, too.
func Run(ctx context.Context, c Config) ([]*bench.Result, error) {
	if c.Count < 1 || c.PerGroup < 1 || c.Fields < 1 || c.Clients < 1 {
		return nil, errors.New("crds: want at least one CRD, one of each group, one field and one client")
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
