package encoding

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

// fingerprints spare stored values decoding, defaulting, conversion and encoding, where
// it is known that all this would change nothing but the resourceVersion (E11).
//
// A fingerprint is the digest of a value's skeleton: of everything but names, times and
// the like, which upstream's code copies without looking into them. A value that came out
// of decoding and encoding unchanged proves that all values with its fingerprint do. All
// that upstream's code may look at is part of the skeleton: other defaults, unknown fields,
// another order or another version make another fingerprint. So do other keys of labels and
// annotations, and other pairs of equal names.
//
// skeletonsOf says for each kind what its skeleton leaves out, and
// TestFingerprintsDecodeToTheSameObject compares the result with that of decoding.
type fingerprints struct {
	layout *wire.Fields
	slots  map[int]string // the selectable fields that the skeleton leaves out
	seeds  [2]maphash.Seed
	pool   sync.Pool // of *wire.Skeleton

	hits, misses atomic.Uint64

	mu    sync.RWMutex
	known map[fingerprint]fields.Set // the selectable fields that are part of the skeleton
}

// fingerprint is a digest of a skeleton. Its seeds are this process's own, so that an
// attacker cannot make two skeletons of one fingerprint.
type fingerprint [2]uint64

// maxFingerprints bounds how many are remembered. Pods have about as many as there are
// workloads.
const maxFingerprints = 16384

// newFingerprints returns nil for resources that have no skeletons.
func newFingerprints(gr schema.GroupResource) *fingerprints {
	layout, slots := skeletonsOf(gr)
	if layout == nil {
		return nil
	}
	s := &fingerprints{
		layout: layout, slots: slots,
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		known: make(map[fingerprint]fields.Set),
	}
	s.pool.New = func() any { return new(wire.Skeleton) }
	return s
}

// inspected is a stored value whose fingerprint was taken.
type inspected struct {
	*wire.Skeleton
	fingerprint fingerprint
	raw         []byte // the message of the object
}

// inspect takes the fingerprint of plain stored data, and reports whether it has one. The
// caller releases the result.
func (s *fingerprints) inspect(data []byte) (v inspected, ok bool) {
	v.Skeleton = s.pool.Get().(*wire.Skeleton)
	if len(data) < len(protobufMagic) || string(data[:len(protobufMagic)]) != protobufMagic ||
		!v.Make(data[len(protobufMagic):], s.layout) {
		s.release(v)
		return inspected{}, false
	}
	for _, f := range v.Found {
		if f.Slot == slotObject {
			v.raw = f.Content
		}
	}
	v.fingerprint = fingerprint{maphash.Bytes(s.seeds[0], v.Bytes), maphash.Bytes(s.seeds[1], v.Bytes)}
	return v, true
}

func (s *fingerprints) release(v inspected) {
	if invariants.Enabled {
		invariants.Overwrite(v.Bytes)
	}
	s.pool.Put(v.Skeleton)
}

// complete fills in config without decoding, if v's fingerprint is known.
func (s *fingerprints) complete(v inspected, config *cache.ObjectConfig) bool {
	s.mu.RLock()
	decided, ok := s.known[v.fingerprint]
	s.mu.RUnlock()
	if !ok {
		s.misses.Add(1)
		return false
	}
	body, err := wire.AppendRevisionProtobuf(make([]byte, 0, len(v.raw)+wire.MaxRevision), v.raw, config.Revision)
	if err != nil {
		return false
	}
	s.hits.Add(1)
	config.Body, config.Labels = body, v.labels()
	config.Fields = maps.Clone(decided)
	s.undecided(v, config.Fields)
	return true
}

// learn remembers v's fingerprint if decoding and encoding v, which made config, left all
// but the resourceVersion as it was.
func (s *fingerprints) learn(v inspected, config *cache.ObjectConfig) {
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
	if len(s.known) >= maxFingerprints {
		clear(s.known)
	}
	s.known[v.fingerprint] = decided
}

// undecided sets the selectable fields that the skeleton leaves out.
func (s *fingerprints) undecided(v inspected, set fields.Set) {
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
func (v inspected) labels() map[string]string {
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
