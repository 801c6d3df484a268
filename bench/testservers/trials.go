package testservers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/larder-io/larder/bench"
)

// Kinds of servers that are measured.
const (
	Stock  = "kube-apiserver"
	Larder = "Larder"
)

// Trials says which servers take turns to be measured.
type Trials struct {
	// TestServers is what servers are started from.
	TestServers Config
	// Servers are Stock and Larder, or one of them. Rounds is how often each is measured.
	Servers []string
	Rounds  int
	// Say is called with each line about what happens; it may be nil.
	Say func(string)
}

// Check returns an error if a server is not known or there is no round.
func (t *Trials) Check() error {
	for _, s := range t.Servers {
		if s != Stock && s != Larder {
			return fmt.Errorf("testservers: %q is no server: want %s or %s", s, Stock, Larder)
		}
	}
	if t.Rounds < 1 {
		return errors.New("testservers: want at least one round")
	}
	return nil
}

// Sayf formats a line and calls Say.
func (t *Trials) Sayf(format string, args ...any) {
	if t.Say != nil {
		t.Say(fmt.Sprintf(format, args...))
	}
}

// Each calls do for each server in each round, which count from 1, and returns all results with all
// errors. Only the end of ctx ends it early. Servers are in the order in which they are given in the
// first round, backwards in the second, and so on, so that a trend of the machine favours none.
func (t *Trials) Each(ctx context.Context, do func(server string, round int) ([]*bench.Result, error)) (all []*bench.Result, err error) {
	for round := range t.Rounds {
		order := slices.Clone(t.Servers)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, server := range order {
			found, failed := do(server, round+1)
			all = append(all, found...)
			if failed != nil {
				t.Sayf("failed: %s: %v", server, failed)
				err = errors.Join(err, fmt.Errorf("%s: %w", server, failed))
			}
			if ctx.Err() != nil {
				return all, cmp.Or(err, ctx.Err())
			}
		}
	}
	return all, err
}
