package watch

import "github.com/larder-io/larder/cache"

// maxPrefixes limits the first bytes of hashes, of 256, that a shard in a shardTable may touch. Groups with wider
// shards are examined for every event.
const maxPrefixes = 64

// shardTable has, for each first byte of a hash, the groups whose shards touch it. So the Hub examines few groups for
// an event.
type shardTable struct {
	prefixes [256][]*group
	groups   int
	watchers uint64
}

// isNarrow reports whether the shard of f touches at most maxPrefixes.
func isNarrow(f *filter) bool {
	n := 0
	for p := range 256 {
		if f.shard.Touches(uint8(p)) {
			n++
		}
	}
	return n <= maxPrefixes
}

// edit applies change to the groups at each prefix that g's shard touches.
func (t *shardTable) edit(g *group, change func([]*group) []*group) {
	for p := range t.prefixes {
		if g.shard.Touches(uint8(p)) {
			t.prefixes[p] = change(t.prefixes[p])
		}
	}
}

// visitCandidates calls visit once for each group that may select e. It returns the number of objects in e times the
// number of watchers that it has skipped.
func (t *shardTable) visitCandidates(key cache.ShardKey, e *cache.Event, visit func(*group)) uint64 {
	var first uint8
	states, passed := uint64(0), t.watchers
	for _, o := range [...]*cache.Object{e.Object, e.Prev} {
		if o == nil || o.Err() != nil {
			continue
		}
		prefix := key.Prefix(o)
		for _, g := range t.prefixes[prefix] {
			if states == 0 || !g.shard.Touches(first) {
				passed -= uint64(len(g.watchers))
				visit(g)
			}
		}
		first = prefix
		states++
	}
	return states * passed
}
