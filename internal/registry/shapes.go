package registry

import (
	"bytes"
	"hash/maphash"
	"maps"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/wire"
)

// knownShapes spares stored values the way through decoding, defaulting, conversion and
// encoding, where that is known to change nothing but the resourceVersion.
//
// A value's shape is its skeleton: everything but names, times and the like, which
// upstream's code carries along without looking into them. That the way changes
// nothing is learnt from a value that went it, and then known of all values of its
// shape. What is not certain to be carried along blindly is part of the shape: other
// defaults, unknown fields, another order or version make another one. So are keys of
// labels and annotations, and what equals what.
//
// Which contents are left out is said per kind in skeletonsOf, and TestShapes holds
// each of them against the long way.
type knownShapes struct {
	layout *wire.Fields
	slots  map[int]string // the selectable fields that are contents left out
	seeds  [2]maphash.Seed
	pool   sync.Pool // of *wire.Skeleton

	hits, misses atomic.Uint64

	mu    sync.RWMutex
	known map[shapeID]fields.Set // the selectable fields that the shape decides
}

// shapeID is a digest of a skeleton. Its seeds are this process's own, so nobody can
// make two values of one digest.
type shapeID [2]uint64

// maxShapes bounds what is remembered. Pods have about as many shapes as there are
// workloads.
const maxShapes = 16384

func newShapes(gr schema.GroupResource) *knownShapes {
	layout, slots := skeletonsOf(gr)
	if layout == nil {
		return nil
	}
	s := &knownShapes{
		layout: layout, slots: slots,
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		known: make(map[shapeID]fields.Set),
	}
	s.pool.New = func() any { return new(wire.Skeleton) }
	return s
}

// shaped is a stored value whose shape is being looked at.
type shaped struct {
	*wire.Skeleton
	id  shapeID
	raw []byte
}

// inspect finds the shape of plain stored data, and reports whether it has one. The
// caller gives it back with release.
func (s *knownShapes) inspect(data []byte) (v shaped, ok bool) {
	v.Skeleton = s.pool.Get().(*wire.Skeleton)
	if len(data) < len(protobufMagic) || string(data[:len(protobufMagic)]) != protobufMagic ||
		!v.Make(data[len(protobufMagic):], s.layout) {
		s.release(v)
		return shaped{}, false
	}
	for _, f := range v.Found {
		if f.Slot == slotObject {
			v.raw = f.Content
		}
	}
	v.id = shapeID{maphash.Bytes(s.seeds[0], v.Bytes), maphash.Bytes(s.seeds[1], v.Bytes)}
	return v, true
}

func (s *knownShapes) release(v shaped) {
	if invariants.Enabled {
		invariants.Overwrite(v.Bytes)
	}
	s.pool.Put(v.Skeleton)
}

// complete fills in config, if v's shape is known.
func (s *knownShapes) complete(v shaped, config *cache.ObjectConfig) bool {
	s.mu.RLock()
	decided, ok := s.known[v.id]
	s.mu.RUnlock()
	if !ok {
		s.misses.Add(1)
		return false
	}
	body, err := wire.AppendRevisionProtobuf(make([]byte, 0, len(v.raw)+maxRevision), v.raw, config.Revision)
	if err != nil {
		return false
	}
	s.hits.Add(1)
	config.Body, config.Labels = body, v.labels()
	config.Fields = maps.Clone(decided)
	s.undecided(v, config.Fields)
	return true
}

// learn remembers v's shape if the long way, which made config of it, left all but
// the resourceVersion as it was.
func (s *knownShapes) learn(v shaped, config *cache.ObjectConfig) {
	body, err := wire.AppendRevisionProtobuf(nil, v.raw, config.Revision)
	if err != nil || !bytes.Equal(body, config.Body) || !maps.Equal(v.labels(), config.Labels) {
		return
	}
	decided := maps.Clone(config.Fields)
	for _, name := range s.slots {
		delete(decided, name)
	}
	again := maps.Clone(decided)
	s.undecided(v, again)
	if !maps.Equal(again, config.Fields) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxShapes {
		clear(s.known)
	}
	s.known[v.id] = decided
}

// undecided sets the selectable fields that were left out of the shape.
func (s *knownShapes) undecided(v shaped, set fields.Set) {
	for _, name := range s.slots {
		set[name] = ""
	}
	for _, f := range v.Found {
		if name, ok := s.slots[f.Slot]; ok {
			set[name] = string(f.Content)
		}
	}
}

// labels are those of the object.
func (v shaped) labels() map[string]string {
	labels := make(map[string]string, 8)
	key := ""
	for _, f := range v.Found {
		switch f.Slot {
		case slotLabelKey:
			key = string(f.Content)
		case slotLabelValue:
			labels[key] = string(f.Content)
		}
	}
	return labels
}
