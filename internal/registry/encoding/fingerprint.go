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

// fingerprints spare stored values decoding, defaulting, conversion and encoding, where it is
// known what all this would make of them (E11).
//
// A fingerprint is the digest of a value's skeleton: of everything but names, times, texts
// and the like, its tokens, which upstream's code copies without looking into them. Of all
// values with a fingerprint, upstream's code therefore makes the same, but for the tokens.
// Which token it puts where is found out by decoding and encoding such a value once more, with
// tokens in it that occur nowhere else: the result is a recipe. A recipe is kept only if it
// makes of the value what upstream's code did, too. All that upstream's code may look at is
// part of the skeleton: missing fields, unknown fields, another order or another version make
// another fingerprint. So do other keys of labels and annotations, and other pairs of equal
// names.
//
// tokensOf says which fields hold tokens, and TestFingerprintsDecodeToTheSameObject compares
// the result with that of decoding.
//
// Objects of one workload follow each other. So before a fingerprint is taken, a value is held
// against the patterns of the shapes that came last, which is cheaper.
type fingerprints struct {
	codec *Codec
	seeds [2]maphash.Seed
	pool  sync.Pool // of *inspected

	hits, misses atomic.Uint64

	mu    sync.RWMutex
	forms map[schema.GroupVersionKind]*form // by what values say they are
	usual atomic.Pointer[form]              // the one that was found last

	recent [recentShapes]atomic.Pointer[recentShape] // the first was seen last
	known  map[fingerprint]*recipe                   // nil where there is none
	bytes  int                                       // of recipes
}

// form is how values of a kind and version are stored.
type form struct {
	head   []byte // of each value, up to the length of the object
	fields *wire.Fields
}

// recentShape is a fingerprint with its recipe and the pattern of its values.
type recentShape struct {
	fingerprint fingerprint
	recipe      *recipe
	pattern     *wire.Template
}

// fingerprint is a digest of a skeleton. Its seeds are this process's own, so that an
// attacker cannot make two skeletons of one fingerprint.
type fingerprint struct {
	form *form
	sum  [2]uint64
}

const (
	// maxFingerprints and maxRecipeBytes bound what is remembered. Pods have about as many
	// fingerprints as there are workloads.
	maxFingerprints = 16384
	maxRecipeBytes  = 16 << 20

	// learnAfter is how many values are decoded before their recipe is made, which costs about
	// as much as decoding that many.
	learnAfter = 3

	// Where fewer than one value in worthOne has a known fingerprint, among worthAfter or
	// more, only one in worthOne is inspected: the others would only cost more.
	worthAfter = 4096
	worthOne   = 8

	// recentShapes is how many patterns there are. One is made of a fingerprint each
	// patternAfter times that it is found: making it costs as much as taking a few.
	recentShapes = 2
	patternAfter = 8
)

// newFingerprints returns nil for resources that have none.
func newFingerprints(c *Codec) *fingerprints {
	if !hasTokens[c.groupResource] {
		return nil
	}
	s := &fingerprints{
		codec: c,
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		forms: make(map[schema.GroupVersionKind]*form),
		known: make(map[fingerprint]*recipe),
	}
	s.pool.New = func() any { return new(inspected) }
	return s
}

// inspected is a stored value whose fingerprint was taken.
type inspected struct {
	wire.Skeleton
	fingerprint fingerprint
	raw         []byte  // the message of the object
	recipe      *recipe // by the pattern that it matched; nil if it matched none

	contents [][]byte // of the tokens, and the revision
	revision [wire.MaxRevision]byte
}

// setContents fills in contents.
func (v *inspected) setContents(revision int64) {
	v.contents = v.contents[:0]
	for i := range v.Tokens {
		v.contents = append(v.contents, v.Tokens[i].Content)
	}
	v.contents = append(v.contents, strconv.AppendInt(v.revision[:0], revision, 10))
}

// inspect takes the fingerprint of plain stored data. It returns nil if it has none, or is not
// worth the time. The caller releases the result.
func (s *fingerprints) inspect(data []byte) *inspected {
	hits, misses := s.hits.Load(), s.misses.Load()
	if misses > worthAfter && hits < misses/worthOne {
		if s.misses.Add(1)%worthOne != 0 {
			return nil
		}
	}
	f, raw := s.formOf(data)
	if f == nil {
		return nil
	}
	v := s.pool.Get().(*inspected)
	v.raw, v.recipe = raw, nil
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

// match reports whether v has one of the recent shapes, and fills v in then.
func (s *fingerprints) match(v *inspected, f *form) bool {
	for i := range s.recent {
		known := s.recent[i].Load()
		if known == nil || known.fingerprint.form != f || !known.pattern.Match(v.raw, &v.Skeleton) {
			continue
		}
		if i > 0 { // two that come in turns are found first in turns
			s.recent[i].Store(s.recent[0].Swap(known))
		}
		v.fingerprint, v.recipe = known.fingerprint, known.recipe
		return true
	}
	return false
}

// found counts that v's fingerprint was found, and makes it a recent shape from time to time.
func (s *fingerprints) found(v *inspected, r *recipe) {
	if r.found.Add(1)%patternAfter != 0 {
		return
	}
	pattern, ok := wire.NewPattern(v.raw, v.fingerprint.form.fields)
	if !ok {
		return
	}
	last := s.recent[0].Swap(&recentShape{v.fingerprint, r, pattern})
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

// formOf returns the form of data and the message of the object in it, nil if it has no
// fingerprint.
func (s *fingerprints) formOf(data []byte) (*form, []byte) {
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
	s.mu.RLock()
	f, found := s.forms[gvk]
	s.mu.RUnlock()
	if !found {
		f = s.learnForm(gvk)
	}
	if f == nil {
		return nil, nil
	}
	s.usual.Store(f)
	raw, ok := f.open(data)
	if !ok {
		return nil, nil
	}
	return f, raw
}

// learnForm makes the form of a kind and version; nil if there is none.
func (s *fingerprints) learnForm(gvk schema.GroupVersionKind) *form {
	layout := s.fieldsOf(gvk)
	if layout == nil {
		return nil // values may name any kinds
	}
	head, err := newEnvelope(gvk)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.forms[gvk]; other != nil {
		return other
	}
	f := &form{head, layout}
	s.forms[gvk] = f
	return f
}

// fieldsOf says where objects of a kind have tokens; nil if they are no protobuf.
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

// open returns the message of the object in data, if data is a value of this form.
func (f *form) open(data []byte) ([]byte, bool) { return cutEnvelope(data, f.head) }

// value returns the value of the message of an object.
func (f *form) value(raw []byte) []byte {
	data := binary.AppendUvarint(bytes.Clone(f.head), uint64(len(raw)))
	return append(append(data, raw...), envelopeEnd...)
}

// complete fills in config without decoding, if it is known how. Otherwise it says whether the
// fingerprint should be learnt.
func (s *fingerprints) complete(v *inspected, config *cache.ObjectConfig) (done, learn bool) {
	r, seen := v.recipe, true
	if r == nil {
		s.mu.RLock()
		r, seen = s.known[v.fingerprint]
		s.mu.RUnlock()
	}
	if r == nil || r.wanted > 0 {
		s.misses.Add(1)
		switch {
		case !seen:
			s.remember(v.fingerprint, &recipe{wanted: 1})
		case r != nil && r.wanted < learnAfter:
			s.remember(v.fingerprint, &recipe{wanted: r.wanted + 1})
		case r != nil:
			return false, true
		}
		return false, false
	}
	if !r.make(v, config) {
		return false, false
	}
	s.hits.Add(1)
	if v.recipe == nil {
		s.found(v, r)
	}
	return true, false
}

// learn makes a recipe of v's fingerprint. Decoding and encoding v has made config.
func (s *fingerprints) learn(v *inspected, config *cache.ObjectConfig) {
	r := s.recipeOf(v, config)
	s.remember(v.fingerprint, r)
}

func (s *fingerprints) remember(p fingerprint, r *recipe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxFingerprints || s.bytes > maxRecipeBytes {
		clear(s.known)
		s.bytes = 0
	}
	s.known[p] = r
	s.bytes += r.size()
}

// recipe is how to make the cached object of a value with a certain fingerprint.
type recipe struct {
	wanted         int            // how often it was wanted, of one that is not made yet
	found          atomic.Uint32  // how often it was found by a fingerprint that was taken
	body           *wire.Template // of the tokens and the revision; nil: the value with its revision
	labels, fields []attribute
}

// attribute is a label or a selectable field. Its value is a token, or the same for all.
type attribute struct {
	name, value string
	token       int // constant for none
}

const constant = -1

// size is about how much memory r takes.
func (r *recipe) size() int {
	const recipeSize, attributeSize = 128, 40
	if r == nil {
		return 0
	}
	n := recipeSize + attributeSize*(len(r.labels)+len(r.fields))
	if r.body != nil {
		n += r.body.Size()
	}
	return n
}

// make fills in config with what v decodes to, and reports whether it could. If config has no
// revision, the body has none or one to be replaced, and may be part of v's value.
func (r *recipe) make(v *inspected, config *cache.ObjectConfig) bool {
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

// markRevision is the revision of values with tokens that occur nowhere else.
const markRevision = 4611686018427387001

// recipeOf returns the recipe of v's fingerprint, nil if there is none.
func (s *fingerprints) recipeOf(v *inspected, config *cache.ObjectConfig) *recipe {
	marks := newMarks(v.Tokens)
	next := -1
	unmarked, ok := wire.NewTemplate(v.raw, v.fingerprint.form.fields, func([]byte, wire.Role) (int, bool) {
		next++
		return next, true
	})
	if !ok || next+1 != len(v.Tokens) {
		return nil
	}
	raw := unmarked.Write(marks.contents)
	made := cache.ObjectConfig{Key: config.Key, Revision: markRevision}
	if err := s.codec.complete(v.fingerprint.form.value(raw), &made); err != nil {
		return nil
	}
	canonical := s.fieldsOf(s.codec.canonical)
	if canonical == nil {
		return nil
	}
	r := &recipe{labels: attributesOf(made.Labels, marks), fields: attributesOf(made.Fields, marks)}
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

// unchanged reports whether an object is stored as it is served, but for its revision.
func unchanged(raw []byte, config *cache.ObjectConfig) bool {
	body, err := wire.AppendRevisionProtobuf(nil, raw, config.Revision)
	return err == nil && bytes.Equal(body, config.Body)
}

// marks are contents that are put in the place of tokens.
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

// timestamp is the message of a time.
func timestamp(seconds, nanos uint64) []byte {
	return binary.AppendUvarint(append(binary.AppendUvarint([]byte{1 << 3}, seconds), 2<<3), nanos)
}

func (m *marks) add(content []byte) {
	if _, known := m.tokens[string(content)]; !known { // a name that stands there again
		m.tokens[string(content)] = len(m.contents)
	}
	m.contents = append(m.contents, content)
}

// tokenOf returns the token whose mark content is.
func (m *marks) tokenOf(content []byte, _ wire.Role) (int, bool) {
	token, ok := m.tokens[string(content)]
	return token, ok
}

// attributesOf finds the tokens among values.
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
