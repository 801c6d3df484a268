package encoding

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/internal/registry/wire"
)

// fingerprints make cached objects from stored values without decoding, defaulting, converting and
// encoding, if similar values have been decoded before (E11).
//
// A fingerprint is a hash of a value's skeleton: everything in it except its tokens. Tokens are names,
// times and free text, which upstream's code copies and does not interpret. So upstream's code treats all
// values with one fingerprint alike. To make a rule, a value with unique tokens is decoded and encoded: the
// result shows the place of each token. A rule is discarded if it does not reproduce upstream's result for
// the original value.
//
// Everything that upstream's code may interpret is part of the skeleton: missing and unknown fields, the
// order of fields, the version, the keys of labels and annotations, and which names are equal.
//
// tokensOf lists the fields that hold tokens. TestFingerprintsDecodeToTheSameObject compares the results
// with those of decoding.
//
// Objects of one workload follow each other. So a value is first compared with the patterns of the rules
// that were used last, which is cheaper than a fingerprint.
type fingerprints struct {
	codec *Codec
	seeds [2]maphash.Seed
	pool  sync.Pool // of *inspected

	hits, misses atomic.Uint64

	kinds  sync.Map                                // of *storedKind, by schema.GroupVersionKind
	usual  atomic.Pointer[storedKind]              // the kind of the last value
	recent [recentRules]atomic.Pointer[recentRule] // the most recent first

	mu    sync.RWMutex
	known map[fingerprint]*rule // nil if there can be none
	bytes int                   // of rules
}

// storedKind describes the stored values of a kind and version.
type storedKind struct {
	head   []byte // of each value, up to the length of the object
	fields *wire.Fields
}

// recentRule is a fingerprint with its rule and a pattern of its values.
type recentRule struct {
	fingerprint fingerprint
	rule        *rule
	pattern     *wire.Template
}

// fingerprint is a hash of a skeleton. The seeds are random, so that an attacker cannot construct two
// skeletons with one fingerprint.
type fingerprint struct {
	kind *storedKind
	sum  [2]uint64
}

const (
	// maxFingerprints and maxRuleBytes limit the table. Pods have about as many fingerprints as there
	// are workloads.
	maxFingerprints = 16384
	maxRuleBytes    = 16 << 20

	// learnAfter is the number of values that are decoded before a rule is made. Making a rule costs
	// about as much as decoding that many values.
	learnAfter = 3

	// After worthAfter values, only one value in worthOne is inspected if fewer than that had a known
	// fingerprint.
	worthAfter = 4096
	worthOne   = 8

	// recentRules is the number of patterns. A pattern is made each patternAfter times that a
	// fingerprint is found, because making it costs as much as a few fingerprints.
	recentRules  = 2
	patternAfter = 8
)

// newFingerprints returns nil if the resource has no fingerprints.
func newFingerprints(c *Codec) *fingerprints {
	if !hasTokens[c.groupResource] {
		return nil
	}
	s := &fingerprints{
		codec: c,
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		known: make(map[fingerprint]*rule),
	}
	s.pool.New = func() any { return new(inspected) }
	return s
}

// inspected is a stored value whose fingerprint was taken.
type inspected struct {
	wire.Skeleton
	fingerprint fingerprint
	raw         []byte // the message of the object
	rule        *rule  // by the pattern that it matched; nil if it matched none

	contents [][]byte // of the tokens, and the revision
	revision [wire.MaxRevision]byte
}

// setContents sets contents.
func (v *inspected) setContents(revision int64) {
	v.contents = v.contents[:0]
	for i := range v.Tokens {
		v.contents = append(v.contents, v.Tokens[i].Content)
	}
	v.contents = append(v.contents, strconv.AppendInt(v.revision[:0], revision, 10))
}

// inspect takes the fingerprint of plain stored data. It returns nil if there is none, or if it is not
// worth the time. The caller releases the result. s may be nil.
func (s *fingerprints) inspect(data []byte) *inspected {
	if s == nil {
		return nil
	}
	hits, misses := s.hits.Load(), s.misses.Load()
	if misses > worthAfter && hits < misses/worthOne {
		if s.misses.Add(1)%worthOne != 0 {
			return nil
		}
	}
	f, raw := s.kindOf(data)
	if f == nil {
		return nil
	}
	v := s.pool.Get().(*inspected)
	v.raw, v.rule = raw, nil
	if s.match(v, f) {
		return v
	}
	if !v.Make(raw, f.fields) {
		s.release(v)
		return nil
	}
	v.fingerprint = fingerprint{f, [2]uint64{maphash.Bytes(s.seeds[0], v.Bytes), maphash.Bytes(s.seeds[1], v.Bytes)}}
	return v
}

// match reports whether v matches a recent pattern, and if so sets the tokens and the rule of v.
func (s *fingerprints) match(v *inspected, f *storedKind) bool {
	for i := range s.recent {
		known := s.recent[i].Load()
		if known == nil || known.fingerprint.kind != f || !known.pattern.Match(v.raw, &v.Skeleton) {
			continue
		}
		if i > 0 { // move it to the front
			s.recent[i].Store(s.recent[0].Swap(known))
		}
		v.fingerprint, v.rule = known.fingerprint, known.rule
		return true
	}
	return false
}

// found counts a use of r for v, and makes r a recent rule from time to time.
func (s *fingerprints) found(v *inspected, r *rule) {
	if r.found.Add(1)%patternAfter != 0 {
		return
	}
	pattern, ok := wire.NewPattern(v.raw, v.fingerprint.kind.fields)
	if !ok {
		return
	}
	last := s.recent[0].Swap(&recentRule{v.fingerprint, r, pattern})
	for i := 1; i < len(s.recent); i++ {
		last = s.recent[i].Swap(last)
	}
}

func (s *fingerprints) release(v *inspected) {
	if invariants.Enabled {
		invariants.Overwrite(v.Bytes)
	}
	s.pool.Put(v)
}

// kindOf returns the kind of data and the object's message, nil if data has no fingerprint.
func (s *fingerprints) kindOf(data []byte) (*storedKind, []byte) {
	if f := s.usual.Load(); f != nil {
		if raw, ok := f.open(data); ok {
			return f, raw
		}
	}
	_, apiVersion, kind, ok := wire.Unenvelope(data)
	if !ok {
		return nil, nil
	}
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	var f *storedKind
	if known, found := s.kinds.Load(gvk); found {
		f = known.(*storedKind)
	} else if f = s.learnKind(gvk); f == nil {
		return nil, nil
	}
	s.usual.Store(f)
	raw, ok := f.open(data)
	if !ok {
		return nil, nil
	}
	return f, raw
}

// learnKind makes the storedKind of a kind and version, nil if its values have no fingerprints.
func (s *fingerprints) learnKind(gvk schema.GroupVersionKind) *storedKind {
	layout := s.fieldsOf(gvk)
	if layout == nil {
		return nil // values may have any kind
	}
	f, _ := s.kinds.LoadOrStore(gvk, &storedKind{wire.Envelope(gvk.GroupVersion().String(), gvk.Kind), layout})
	return f.(*storedKind)
}

// fieldsOf returns the fields of a kind that hold tokens, nil if it has no protobuf encoding.
func (s *fingerprints) fieldsOf(gvk schema.GroupVersionKind) *wire.Fields {
	obj, err := s.codec.scheme.New(gvk)
	if err != nil {
		return nil
	}
	if _, ok := obj.(unmarshaler); !ok {
		return nil
	}
	return objectTokens(obj)
}

// open returns the object's message in data, if data is a value of this kind.
func (f *storedKind) open(data []byte) ([]byte, bool) { return wire.CutEnvelope(data, f.head) }

// value returns the stored value of an object's message.
func (f *storedKind) value(raw []byte) []byte {
	data := binary.AppendUvarint(bytes.Clone(f.head), uint64(len(raw)))
	return append(append(data, raw...), wire.EnvelopeTail...)
}

// complete completes config without decoding, if there is a rule for v. Otherwise learn reports whether
// the caller should make a rule.
func (s *fingerprints) complete(v *inspected, config *cache.ObjectConfig) (done, learn bool) {
	r, seen := v.rule, true
	if r == nil {
		s.mu.RLock()
		r, seen = s.known[v.fingerprint]
		s.mu.RUnlock()
	}
	if r == nil || r.wanted > 0 {
		s.misses.Add(1)
		switch {
		case !seen:
			s.remember(v.fingerprint, &rule{wanted: 1})
		case r != nil && r.wanted < learnAfter:
			s.remember(v.fingerprint, &rule{wanted: r.wanted + 1})
		case r != nil:
			return false, true
		}
		return false, false
	}
	if !r.make(v, config) {
		return false, false
	}
	s.hits.Add(1)
	if v.rule == nil {
		s.found(v, r)
	}
	return true, false
}

// learn makes the rule of v's fingerprint. config is the result of decoding and encoding v.
func (s *fingerprints) learn(v *inspected, config *cache.ObjectConfig) {
	s.remember(v.fingerprint, s.ruleOf(v, config))
}

func (s *fingerprints) remember(p fingerprint, r *rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxFingerprints || s.bytes > maxRuleBytes {
		clear(s.known)
		s.bytes = 0
	}
	s.known[p] = r
	s.bytes += r.size()
}
