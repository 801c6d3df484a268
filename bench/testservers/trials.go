package testservers

import (
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
	// TestServers names the programs to start servers from.
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

// Each calls do for each server in each round, which count from 1, until one fails. It returns all
// results, with an error that names the server. Servers are in the order in which they are given in the
// first round, backwards in the second, and so on, so that a trend of the machine favours none.
func (t *Trials) Each(do func(server string, round int) ([]*bench.Result, error)) (all []*bench.Result, err error) {
	for round := range t.Rounds {
		order := slices.Clone(t.Servers)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, server := range order {
			found, err := do(server, round+1)
			all = append(all, found...)
			if err != nil {
				return all, fmt.Errorf("%s: %w", server, err)
			}
		}
	}
	return all, nil
}
