package auth

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
)

// losses counts changes after which nodes may be allowed less than before. All paths of the
// graph end at nodes, those over a pod at the node that it is on: when that pod goes, no other
// node loses anything. In a cluster some pod goes every second, and each node watches what many
// pods need, so that asking about all nodes each time was a quarter of what a server did.
//
// A node's count is shared with those nodes whose names happen to have the same hash, so that
// the names of nodes need not be kept, and nobody waits to read one: they are asked about once
// too often.
type losses struct {
	all   atomic.Uint64 // every change
	any   atomic.Uint64 // those that may concern any node
	nodes [1 << 10]atomic.Uint64
	seed  maphash.Seed // of the hashes of nodes' names
}

// count counts a change that concerns one node, or any if name is "". The graph has changed
// already.
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

// node counts the changes that may concern the node that who is, if it is one.
func (l *losses) node(who user.Info) uint64 {
	const prefix = "system:node:" // kubernetes pkg/auth/nodeidentifier/default.go
	return l.any.Load() + l.of(strings.TrimPrefix(who.GetName(), prefix)).Load()
}
