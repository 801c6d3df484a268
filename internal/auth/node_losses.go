package auth

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
)

// losses counts changes after which nodes may be allowed less than before. When a pod is deleted, only
// the node that it is on may lose access. Large clusters delete pods every second, and each node
// watches many objects that its pods need. Authorizing the watches of all nodes each time was a quarter
// of a server's work.
//
// Nodes whose names have the same hash share a count, so that reading it needs neither a lock nor the
// names of nodes. Such nodes are authorized again more often than necessary.
type losses struct {
	all   atomic.Uint64 // every change
	any   atomic.Uint64 // those that may concern any node
	nodes [1 << 10]atomic.Uint64
	seed  maphash.Seed // of the hashes of nodes' names
}

// count counts a change that concerns one node, or any node if name is "". The caller has changed the
// graph.
func (l *losses) count(name string) {
	if name == "" {
		l.any.Add(1)
	} else {
		l.of(name).Add(1)
	}
	l.all.Add(1)
}

func (l *losses) of(name string) *atomic.Uint64 {
	return &l.nodes[maphash.String(l.seed, name)%uint64(len(l.nodes))]
}

// node returns the number of changes that may concern who, if who is a node.
func (l *losses) node(who user.Info) uint64 {
	const prefix = "system:node:" // kubernetes pkg/auth/nodeidentifier/default.go
	return l.any.Load() + l.of(strings.TrimPrefix(who.GetName(), prefix)).Load()
}
