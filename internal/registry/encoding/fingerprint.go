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

// ruleCache makes cached objects from stored values without decoding, defaulting, converting and encoding
// them, if it has a rule for their fingerprint (E11).
//
// A fingerprint is a hash of a value's skeleton: everything in the value except its tokens. Tokens are names, times and
// free text, which upstream's code copies and does not interpret. The skeleton has everything that upstream may
// interpret: missing and unknown fields, the order of fields, the version, the keys of labels and annotations, and
// which names are equal. So upstream treats all values with one fingerprint alike. tokensOf lists the fields that have
// tokens.
//
// A rule has the positions of a value's tokens in its cached object. To make a rule, the cache puts unique tokens into
// a value, decodes and encodes the result, and finds the tokens in it. It discards a rule that does not reproduce
// upstream's result for the original value.
//
// Successive values often belong to one workload. So the cache first compares a value with the patterns of the most
// recent rules, which is cheaper than a fingerprint.
type ruleCache struct {
	codec *Codec
	seeds [2]maphash.Seed
	pool  sync.Pool // of *inspected

	hits, misses atomic.Uint64 // values that a rule has completed, and lookups that found none

	kinds  []*storedKind // the canonical kind first
	recent [recentRules]atomic.Pointer[recentRule]

	mu    sync.RWMutex
	rules map[fingerprint]*rule // of the fingerprints that were seen; nil if no rule can be made
	bytes int                   // of rules
}

// storedKind describes the stored values of a kind and version.
type storedKind struct {
	head    []byte          // the envelope of each value, up to the length of the object's message
	layouts func() *layouts // of the message's fields, with tokens
}

// fingerprint is a hash of a skeleton. The seeds are random, so that an attacker cannot construct two
// skeletons with one fingerprint.
type fingerprint struct {
	kind *storedKind
	sum  [2]uint64
}

// recentRule is a rule with a pattern, which matches values with the rule's fingerprint.
type recentRule struct {
	fingerprint fingerprint
	rule        *rule
	pattern     *template
}

const (
	// maxFingerprints and maxRuleBytes limit the rules. Pods have about as many fingerprints as there are
	// workloads.
	maxFingerprints = 16384
	maxRuleBytes    = 16 << 20

	// missesBeforeRule is how many values with a fingerprint are decoded before its rule is made. Making a
	// rule costs about as much as decoding that many values.
	missesBeforeRule = 3

	// After missesBeforeSampling misses, and while there is less than one hit for sampleOneIn misses, only
	// one value in sampleOneIn is inspected.
	missesBeforeSampling = 4096
	sampleOneIn          = 8

	// recentRules is the number of patterns. Every lookupsPerPattern lookups of its fingerprint, a rule gets a
	// pattern. Making it costs as much as a few fingerprints.
	recentRules       = 2
	lookupsPerPattern = 8
)

// newRuleCache returns nil if the values of the resource have no fingerprints.
func newRuleCache(c *Codec) *ruleCache {
	if !hasTokens[c.GroupResource] {
		return nil
	}
	rc := &ruleCache{
		codec: c, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		pool: sync.Pool{New: func() any { return new(inspected) }}, rules: make(map[fingerprint]*rule),
	}
	rc.addKind(c.Canonical)
	for _, gv := range c.Scheme.VersionsForGroupKind(c.Canonical.GroupKind()) {
		if gv != c.Canonical.GroupVersion() {
			rc.addKind(gv.WithKind(c.Canonical.Kind))
		}
	}
	return rc
}

// addKind adds a version in which values may be stored, if it has a protobuf encoding.
func (rc *ruleCache) addKind(gvk schema.GroupVersionKind) {
	obj, err := rc.codec.Scheme.New(gvk)
	if _, ok := obj.(unmarshaler); err != nil || !ok {
		return
	}
	layouts := sync.OnceValue(func() *layouts { return objectLayouts(obj) })
	rc.kinds = append(rc.kinds, &storedKind{wire.Envelope(gvk.GroupVersion().String(), gvk.Kind), layouts})
}

// inspected is a stored value with its tokens and its fingerprint.
type inspected struct {
	skeleton
	fingerprint fingerprint
	raw         []byte // the object's message
	rule        *rule  // set if the value matched a recent pattern

	contents [][]byte // see setContents
	revision [wire.MaxRevision]byte
}

// setContents sets contents to the contents of the tokens, followed by the revision.
func (v *inspected) setContents(revision int64) {
	v.contents = v.contents[:0]
	for i := range v.tokens {
		v.contents = append(v.contents, v.tokens[i].content)
	}
	v.contents = append(v.contents, strconv.AppendInt(v.revision[:0], revision, 10))
}

// inspect finds the tokens and the fingerprint of plain stored data. It returns nil if there is no fingerprint, or if
// rules rarely match. The result refers to data. The caller releases it. rc may be nil.
func (rc *ruleCache) inspect(data []byte) *inspected {
	if rc == nil {
		return nil
	}
	hits, misses := rc.hits.Load(), rc.misses.Load()
	if misses > missesBeforeSampling && hits < misses/sampleOneIn && rc.misses.Add(1)%sampleOneIn != 0 {
		return nil
	}
	kind, raw := rc.kindOf(data)
	if kind == nil {
		return nil
	}
	v := rc.pool.Get().(*inspected)
	v.raw, v.rule = raw, nil
	if rc.matchRecent(v, kind) {
		return v
	}
	if !v.make(raw, kind.layouts()) {
		rc.release(v)
		return nil
	}
	v.fingerprint = fingerprint{kind, [2]uint64{maphash.Bytes(rc.seeds[0], v.bytes), maphash.Bytes(rc.seeds[1], v.bytes)}}
	return v
}

// matchRecent reports whether v matches a recent pattern, and if so sets the tokens, the fingerprint and the
// rule of v.
func (rc *ruleCache) matchRecent(v *inspected, kind *storedKind) bool {
	for i := range rc.recent {
		r := rc.recent[i].Load()
		if r == nil || r.fingerprint.kind != kind || !r.pattern.match(v.raw, &v.skeleton) {
			continue
		}
		if i > 0 { // move it to the front
			rc.recent[i].Store(rc.recent[0].Swap(r))
		}
		v.fingerprint, v.rule = r.fingerprint, r.rule
		return true
	}
	return false
}

// promote counts a lookup of r, the rule of v, and after lookupsPerPattern lookups makes r the most recent rule.
func (rc *ruleCache) promote(r *rule, v *inspected) {
	if r.lookups.Add(1)%lookupsPerPattern != 0 {
		return
	}
	pattern := v.template(func(_ int, t token) (int, bool) { return t.number, true })
	last := rc.recent[0].Swap(&recentRule{v.fingerprint, r, pattern})
	for i := 1; i < len(rc.recent); i++ {
		last = rc.recent[i].Swap(last)
	}
}

func (rc *ruleCache) release(v *inspected) {
	if invariants.Enabled {
		invariants.Overwrite(v.bytes)
	}
	rc.pool.Put(v)
}

// kindOf returns the kind of data and the object's message. The kind is nil if data has no fingerprint.
func (rc *ruleCache) kindOf(data []byte) (*storedKind, []byte) {
	for _, kind := range rc.kinds {
		if raw, ok := wire.CutEnvelope(data, kind.head); ok {
			return kind, raw
		}
	}
	return nil, nil
}

// value returns the stored value of an object's message.
func (k *storedKind) value(raw []byte) []byte {
	data := binary.AppendUvarint(bytes.Clone(k.head), uint64(len(raw)))
	return append(append(data, raw...), wire.EnvelopeTail...)
}

// complete completes config, which has a key, for plain stored data by a rule, and reports whether it could. It decodes
// the data only to make a rule. If config has no revision, the body may share memory with data, and its revision is
// arbitrary or missing. rc may be nil.
func (rc *ruleCache) complete(data []byte, config *cache.ObjectConfig) bool {
	v := rc.inspect(data)
	if v == nil {
		return false
	}
	defer rc.release(v)
	r := v.rule
	if r == nil {
		wanted := false
		if r, wanted = rc.lookUp(v.fingerprint); wanted {
			rc.store(v.fingerprint, rc.ruleOf(v, data, config.Key))
		}
	}
	if r == nil || !r.make(v, config) {
		return false
	}
	rc.hits.Add(1)
	if v.rule == nil {
		rc.promote(r, v)
	}
	return true
}

// lookUp returns the rule of a fingerprint, nil if there is none yet. Then it counts a miss, and wanted reports
// whether the fingerprint has had enough misses for a rule.
func (rc *ruleCache) lookUp(p fingerprint) (_ *rule, wanted bool) {
	rc.mu.RLock()
	r, seen := rc.rules[p]
	rc.mu.RUnlock()
	switch {
	case !seen:
		rc.store(p, &rule{misses: 1})
	case r == nil: // no rule can be made
	case r.misses == 0:
		return r, false
	case r.misses < missesBeforeRule:
		rc.store(p, &rule{misses: r.misses + 1})
	default:
		wanted = true
	}
	rc.misses.Add(1)
	return nil, wanted
}

// store stores the rule of a fingerprint. If there are too many rules, it first discards all of them.
func (rc *ruleCache) store(p fingerprint, r *rule) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if len(rc.rules) >= maxFingerprints || rc.bytes > maxRuleBytes {
		clear(rc.rules)
		rc.bytes = 0
	}
	rc.rules[p] = r
	rc.bytes += r.size()
}
