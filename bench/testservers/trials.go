package testservers

import (
	"errors"
	"fmt"
	"slices"

	"github.com/larder-io/larder/bench"
)

// Kinds of measured servers.
const (
	Stock  = "kube-apiserver"
	Larder = "Larder"
)

// Trials configures which servers are measured, in turn.
type Trials struct {
	// TestServers names the programs of the servers.
	TestServers Config
	// Servers are Stock and Larder, or one of them. Rounds is how often each is measured.
	Servers []string
	Rounds  int
	// Say, unless nil, is called with each line of progress.
	Say func(string)
}

// Check returns an error if a server is unknown or Rounds is less than 1.
func (t *Trials) Check() error {
	for _, s := range t.Servers {
		if s != Stock && s != Larder {
			return fmt.Errorf("testservers: unknown server %q: want %s or %s", s, Stock, Larder)
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

// Each calls do for each server in each round, counted from 1, until one fails. It returns all
// results, and an error that names the server. Every second round runs the servers in reverse order, so that a change
// in the machine's speed favours none.
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
