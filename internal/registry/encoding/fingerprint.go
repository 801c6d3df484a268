package encoding

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
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

// rule makes the cached object of a value with a certain fingerprint.
type rule struct {
	wanted         int            // uses before the rule was made; 0 once it is
	found          atomic.Uint32  // uses by fingerprint
	body           *wire.Template // of the tokens and the revision; nil if only the revision is set
	labels, fields []attribute
}

// attribute is a label or a selectable field. Its value is a token or constant.
type attribute struct {
	name, value string
	token       int // constant for none
}

const constant = -1

// size returns the approximate memory of r.
func (r *rule) size() int {
	const ruleSize, attributeSize = 128, 40
	if r == nil {
		return 0
	}
	n := ruleSize + attributeSize*(len(r.labels)+len(r.fields))
	if r.body != nil {
		n += r.body.Size()
	}
	return n
}

// make completes config for v and reports whether it could. If config has no revision, the body may be a
// part of v's value, and may have no revision or an arbitrary one.
func (r *rule) make(v *inspected, config *cache.ObjectConfig) bool {
	v.setContents(max(config.Revision, 1))
	switch {
	case r.body != nil:
		config.Body = r.body.Write(v.contents)
	case config.Revision == 0:
		config.Body = v.raw
	default:
		body, err := wire.AppendRevisionProtobuf(make([]byte, 0, len(v.raw)+wire.MaxRevision), v.raw, config.Revision)
		if err != nil {
			return false
		}
		config.Body = body
	}
	config.Labels, config.Fields = valuesOf(r.labels, v.contents), valuesOf(r.fields, v.contents)
	return true
}

func valuesOf(attributes []attribute, contents [][]byte) map[string]string {
	values := make(map[string]string, len(attributes))
	for _, a := range attributes {
		if a.token != constant {
			a.value = string(contents[a.token])
		}
		values[a.name] = a.value
	}
	return values
}

// markRevision is the revision of values with unique tokens.
const markRevision = 4611686018427387001

// ruleOf makes the rule of v's fingerprint. It returns nil if there is none.
func (s *fingerprints) ruleOf(v *inspected, config *cache.ObjectConfig) *rule {
	marks := newMarks(v.Tokens)
	next := -1
	unmarked, ok := wire.NewTemplate(v.raw, v.fingerprint.kind.fields, func([]byte, wire.Role) (int, bool) {
		next++
		return next, true
	})
	if !ok || next+1 != len(v.Tokens) {
		return nil
	}
	raw := unmarked.Write(marks.contents)
	made := cache.ObjectConfig{Key: config.Key, Revision: markRevision}
	if err := s.codec.complete(v.fingerprint.kind.value(raw), &made); err != nil {
		return nil
	}
	canonical := s.fieldsOf(s.codec.canonical)
	if canonical == nil {
		return nil
	}
	r := &rule{labels: attributesOf(made.Labels, marks), fields: attributesOf(made.Fields, marks)}
	if !unchanged(v.raw, config) || !unchanged(raw, &made) {
		if r.body, ok = wire.NewTemplate(made.Body, canonical, marks.tokenOf); !ok {
			return nil
		}
	}
	var again cache.ObjectConfig
	again.Revision = config.Revision
	if !r.make(v, &again) || !bytes.Equal(again.Body, config.Body) ||
		!maps.Equal(again.Labels, config.Labels) || !maps.Equal(again.Fields, config.Fields) {
		return nil
	}
	return r
}

// unchanged reports whether an object is stored as it is served, except for its revision.
func unchanged(raw []byte, config *cache.ObjectConfig) bool {
	body, err := wire.AppendRevisionProtobuf(nil, raw, config.Revision)
	return err == nil && bytes.Equal(body, config.Body)
}

// marks are unique contents that replace tokens.
type marks struct {
	contents [][]byte // by token, and the revision
	tokens   map[string]int
}

func newMarks(tokens []wire.Token) marks {
	m := marks{tokens: make(map[string]int, len(tokens)+1)}
	for i, t := range tokens {
		var content []byte
		switch t.Role {
		case wire.Name:
			content = fmt.Appendf(nil, "\x7fname-%d", t.Number)
		case wire.Time:
			content = timestamp(uint64(86400+i), 0)
		case wire.MicroTime:
			content = timestamp(uint64(86400+i), 1000) // shows if it becomes a Time
		default:
			content = fmt.Appendf(nil, "\x7fopaque-%d", i)
		}
		m.add(content)
	}
	m.add(strconv.AppendInt(nil, markRevision, 10))
	return m
}

// timestamp returns the message of a time.
func timestamp(seconds, nanos uint64) []byte {
	return binary.AppendUvarint(append(binary.AppendUvarint([]byte{1 << 3}, seconds), 2<<3), nanos)
}

func (m *marks) add(content []byte) {
	if _, known := m.tokens[string(content)]; !known { // a name that occurs twice
		m.tokens[string(content)] = len(m.contents)
	}
	m.contents = append(m.contents, content)
}

// tokenOf returns the token whose mark is content.
func (m *marks) tokenOf(content []byte, _ wire.Role) (int, bool) {
	token, ok := m.tokens[string(content)]
	return token, ok
}

// attributesOf returns the attributes with these values.
func attributesOf(values fields.Set, marks marks) []attribute {
	all := make([]attribute, 0, len(values))
	for name, value := range values {
		a := attribute{name: name, token: constant}
		if token, ok := marks.tokenOf([]byte(value), wire.Kept); ok {
			a.token = token
		} else {
			a.value = value
		}
		all = append(all, a)
	}
	return all
}
