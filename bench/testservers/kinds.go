package testservers

import (
	"fmt"
	"slices"
)

// Kinds of servers that workloads compare.
const (
	Stock  = "kube-apiserver"
	Larder = "Larder"
)

// CheckKinds returns an error if one of servers is neither Stock nor Larder.
func CheckKinds(servers []string) error {
	for _, s := range servers {
		if s != Stock && s != Larder {
			return fmt.Errorf("testservers: %q is no server: want %s or %s", s, Stock, Larder)
		}
	}
	return nil
}

// Turns returns servers in the order of a round, which counts from 0: as they are given in the
// first, backwards in the second, and so on, so that what changes with time favours none.
func Turns(servers []string, round int) []string {
	order := slices.Clone(servers)
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// Start starts a server of a kind on the Servers's etcd: [Servers.StartStockWith] or
// [Servers.StartLarderWith].
func (f *Servers) Start(kind string, g Guards) (*Server, error) {
	if err := CheckKinds([]string{kind}); err != nil {
		return nil, err
	}
	if kind == Stock {
		return f.StartStockWith(g)
	}
	return f.StartLarderWith(g)
}
