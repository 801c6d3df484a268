package cache

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/google/btree"
)

// ShardKey is the property of objects that is hashed to divide them into shards.
type ShardKey uint8

const (
	// ByIdentity hashes the identity ([ResourceSchema.IdentifyBy]), by default the key.
	ByIdentity ShardKey = iota
	// ByNamespace hashes the namespace.
	ByNamespace
)

// NumShardKeys is the number of ShardKeys.
const NumShardKeys = 2

// HashRange is the range of hashes from First to Last, inclusive.
type HashRange struct{ First, Last uint64 }

// Shard selects the objects whose hash lies in one of its ranges. The hash is 64-bit FNV-1a.
// A Shard is immutable.
type Shard struct {
	by ShardKey
	// Invariant: ranges are sorted, and neither overlap nor touch.
	ranges []HashRange
	text   string
}

// NewShard makes a Shard. The ranges may be in any order and overlap.
func NewShard(by ShardKey, ranges ...HashRange) *Shard {
	s := &Shard{by: by}
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b HashRange) int { return cmp.Compare(a.First, b.First) })
	for _, r := range sorted {
		if last := len(s.ranges) - 1; last >= 0 && (s.ranges[last].Last == math.MaxUint64 || r.First <= s.ranges[last].Last+1) {
			s.ranges[last].Last = max(s.ranges[last].Last, r.Last)
			continue
		}
		s.ranges = append(s.ranges, r)
	}
	text := new(strings.Builder)
	fmt.Fprint(text, by)
	for _, r := range s.ranges {
		fmt.Fprintf(text, " %x-%x", r.First, r.Last)
	}
	s.text = text.String()
	return s
}

// Key returns the property that is hashed.
func (s *Shard) Key() ShardKey { return s.by }

// String returns a text that is equal for Shards that select the same hashes.
func (s *Shard) String() string { return s.text }

// Matches reports whether o, which is not corrupt, is in the Shard.
func (s *Shard) Matches(o *Object) bool {
	if s.by == ByIdentity && o.schema.identify != nil {
		low := o.cells.hashBits()
		high := low | (1<<(64-hashWidth) - 1)
		if some, all := s.overlap(low, high); some == all {
			return all
		}
	}
	hash := s.by.hash(o)
	_, in := s.overlap(hash, hash)
	return in
}

// Touches reports whether any hash that begins with the byte prefix is in the Shard.
func (s *Shard) Touches(prefix uint8) bool {
	low := uint64(prefix) << 56
	some, _ := s.overlap(low, low|math.MaxUint64>>8)
	return some
}

// overlap reports whether some and whether all of the hashes from low to high are in the Shard.
func (s *Shard) overlap(low, high uint64) (some, all bool) {
	i := 0
	if len(s.ranges) > 1 {
		i, _ = slices.BinarySearchFunc(s.ranges, low, func(r HashRange, low uint64) int { return cmp.Compare(r.Last, low) })
	} else if len(s.ranges) == 1 && s.ranges[0].Last < low {
		return false, false
	}
	if i == len(s.ranges) || s.ranges[i].First > high {
		return false, false
	}
	return true, s.ranges[i].First <= low && high <= s.ranges[i].Last
}

// Prefix returns the first byte of the hash of o, which is not corrupt.
func (k ShardKey) Prefix(o *Object) uint8 {
	if k == ByIdentity && o.schema.identify != nil {
		return uint8(o.cells.hashBits() >> 56)
	}
	return uint8(k.hash(o) >> 56)
}

func (k ShardKey) hash(o *Object) uint64 {
	switch {
	case k == ByNamespace:
		return fnv1a(o.Namespace())
	case o.schema.identify == nil:
		return fnv1a(o.Key())
	default:
		return fnv1a(o.schema.identify(o.Head()))
	}
}

// fnv1a is hash/fnv's New64a without the allocation.
func fnv1a[T string | []byte](text T) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(text) {
		hash = (hash ^ uint64(text[i])) * 1099511628211
	}
	return hash
}

// The first bits of the hash of an object's identity are stored in [cells.state], beside its flag. They nearly always
// decide whether the object is in a Shard, and take no additional memory.
const (
	hashWidth = 30
	hashShift = 32 - hashWidth
)

func (cs *cells) setHash(hash uint64) { cs.state.Or(uint32(hash>>(64-hashWidth)) << hashShift) }

// hashBits returns the smallest hash that begins with the stored bits.
func (cs *cells) hashBits() uint64 { return uint64(cs.state.Load()>>hashShift) << (64 - hashWidth) }

// hashed is an object and the first bits of its hashes, each in the upper bits of a number. For objects of other
// Shards, a List reads only these bits.
type hashed struct {
	object *Object
	hashes [NumShardKeys]uint32
}

func lessHashed(a, b hashed) bool { return lessObject(a.object, b.object) }

// reindexHash replaces prev by next in a tree of hashes; either may be nil.
func reindexHash(tree *btree.BTreeG[hashed], prev, next *Object) {
	switch {
	case next == nil:
		tree.Delete(hashed{object: prev})
	case next.Err() != nil:
		tree.ReplaceOrInsert(hashed{object: next})
	default:
		tree.ReplaceOrInsert(hashed{next, [NumShardKeys]uint32{
			ByIdentity: uint32(next.cells.hashBits() >> 32), ByNamespace: uint32(ByNamespace.hash(next) >> 32),
		}})
	}
}

// scanHashes visits the objects of a Shard. It examines objects of other shards only to find the end of a prefix or
// page.
func (l *lister) scanHashes(start string, pivot *Object) {
	shard := l.query.Shard
	l.state.hashes.AscendGreaterOrEqual(hashed{object: pivot}, func(h hashed) bool {
		if l.last == nil && l.query.Prefix == "" {
			// If the stored bits do not decide, visit does.
			low := uint64(h.hashes[shard.by]>>hashShift) << (64 - hashWidth)
			if some, _ := shard.overlap(low, low|(1<<(64-hashWidth)-1)); !some {
				l.page.Scanned++
				l.page.OutsideShard++
				return true
			}
		}
		return l.visit(h.object)
	})
	l.checkCorrupt(start)
}
