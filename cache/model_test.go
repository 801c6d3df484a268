package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

// The model stores every past state as a map, and filters slices. Caches with very different configurations get the
// same random operations and must agree with the model.

var errCorrupt = errors.New("corrupt")

// modelObject is an object of the model.
type modelObject struct {
	revision int64
	node     string
	labels   labels.Set
	corrupt  bool
}

func (m modelObject) object(s *ResourceSchema, key string) *Object {
	config := ObjectConfig{Key: key, Revision: m.revision}
	if m.corrupt {
		config.Err = errCorrupt
	} else {
		config.Body = fmt.Appendf(nil, "%s@%d", key, m.revision)
		config.Labels = m.labels
		config.Fields = fields.Set{"spec.nodeName": m.node, "metadata.name": key[strings.LastIndex(key, "/")+1:]}
	}
	return NewObject(config, s)
}

type modelObjects map[string]modelObject

// modelState is the model at a revision, with the events that led to it.
type modelState struct {
	revision int64
	time     time.Time
	objects  modelObjects
	events   int
}

type model struct {
	epoch  int
	states []modelState // of the current epoch, oldest first
	fresh  int64
}

func (m *model) now() *modelState { return &m.states[len(m.states)-1] }

// at returns the state at a revision of the current epoch.
func (m *model) at(revision int64) *modelState {
	for i := len(m.states) - 1; i >= 0; i-- {
		if m.states[i].revision <= revision {
			return &m.states[i]
		}
	}
	return nil
}

// eventsAfter counts events later than a revision.
func (m *model) eventsAfter(revision int64) (n int) {
	for _, s := range m.states {
		if s.revision > revision {
			n += s.events
		}
	}
	return n
}

// list is a simple implementation of Snapshot.List. next is the key of the object that filled the page, or "" on
// the last page.
func (m modelObjects) list(q Query) (found []string, next string, remaining int64, corrupt bool) {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if strings.HasPrefix(key, q.Prefix) && key >= q.From {
			keys = append(keys, key)
		}
	}
	for i, key := range keys {
		x := m[key]
		if x.corrupt {
			return nil, "", 0, true
		}
		name := key[strings.LastIndex(key, "/")+1:]
		if q.Shard != nil {
			hash := hashOf(key)
			if q.Shard.Key() == ByNamespace {
				hash = hashOf(key[:max(strings.LastIndex(key, "/"), 0)])
			}
			if in, _ := q.Shard.overlap(hash, hash); !in {
				continue
			}
		}
		if q.Label != nil && !q.Label.Matches(x.labels) ||
			q.Field != nil && !q.Field.Matches(fields.Set{"spec.nodeName": x.node, "metadata.name": name}) {
			continue
		}
		found = append(found, key)
		if len(found) == q.Limit && i+1 < len(keys) {
			return found, key, int64(len(keys) - i - 1), false
		}
	}
	return found, "", 0, false
}

// fakeSource is a Source whose revision the test sets.
type fakeSource struct{ fresh int64 }

func (s *fakeSource) Fresh() int64                      { return s.fresh }
func (s *fakeSource) Wait(context.Context, int64) error { return nil }

// subject is one cache under test, with a follower of its log.
type subject struct {
	name   string
	cache  *Cache
	config LogConfig
	budget int64 // 0: no bound
	source fakeSource

	mirror   map[string]*Object
	position Position
	buffer   int
}

func newSubjects(t *rapid.T) []*subject {
	indexes := map[string][]Index{
		"plain":   nil,
		"indexed": {{Field: "spec.nodeName"}, {Label: "app"}},
		"names":   {{Label: "tier"}, {Field: "metadata.name"}},
	}
	logs := map[string]LogConfig{
		"default": {},
		"short":   {KeepFor: 30 * time.Second, MinEvents: 1, CheckpointEvery: 1},
		"few":     {MinEvents: 2, MaxEvents: 5, CheckpointEvery: 3},
		"small":   {MinEvents: 1, MaxBytes: 900, CheckpointEvery: 2},
		"poor":    {MinEvents: 3, CheckpointEvery: 2},
	}
	budgets := map[string]int64{"poor": 900}
	var all []*subject
	for _, i := range slices.Sorted(maps.Keys(indexes)) {
		for n, l := range slices.Sorted(maps.Keys(logs)) {
			s := &subject{name: i + "," + l, config: logs[l].withDefaults(), budget: budgets[l], buffer: n}
			schema := NewResourceSchema("things", NewBudget(s.budget), indexes[i]...)
			if i != "names" { // without IdentifyBy the keys are the identities
				schema.IdentifyBy(func(head []byte) []byte {
					key, _, _ := bytes.Cut(head, []byte("@"))
					return key
				})
			}
			c, err := New(Config{Schema: schema, Log: logs[l], Source: &s.source})
			if err != nil {
				t.Fatal(err)
			}
			s.cache = c
			all = append(all, s)
		}
	}
	return all
}

func drawKey(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a/", "a-b/", "b/", ""}).Draw(t, "namespace") +
		rapid.SampledFrom([]string{"v", "w", "x", "y", "z"}).Draw(t, "name")
}

func drawObject(t *rapid.T, revision int64) modelObject {
	return modelObject{
		revision: revision,
		node:     rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"),
		labels: rapid.SampledFrom([]labels.Set{
			nil, {"app": "p"}, {"app": "q", "tier": "t"}, {"tier": "t"}, {"app": ""},
		}).Draw(t, "labels"),
		corrupt: rapid.IntRange(0, 19).Draw(t, "corrupt") == 0,
	}
}

func drawQuery(t *rapid.T) Query {
	q := Query{
		Prefix: rapid.SampledFrom([]string{"", "a/", "a-b/", "c/"}).Draw(t, "prefix"),
		From:   rapid.SampledFrom([]string{"", "a/x", "a/x\x00", "b/"}).Draw(t, "from"),
		Limit:  rapid.IntRange(0, 4).Draw(t, "limit"),
	}
	if text := rapid.SampledFrom([]string{"none", "", "app=p", "app in (p,q)", "!app", "tier=t,app=q", "app="}).Draw(t, "label"); text != "none" {
		q.Label, _ = labels.Parse(text)
	}
	if text := rapid.SampledFrom([]string{"none", "", "spec.nodeName=n1", "spec.nodeName!=n1", "spec.nodeName=", "metadata.name=x,spec.nodeName=n2"}).Draw(t, "field"); text != "none" {
		q.Field = fields.ParseSelectorOrDie(text)
	}
	if first := rapid.Uint64().Draw(t, "shard"); first%2 == 0 {
		q.Shard = NewShard(ShardKey(first/2%2), HashRange{first, max(first, first+1<<62)}, HashRange{first / 2, first/2 + 1<<60})
	}
	return q
}

// machine is one run of the model and its subjects.
type machine struct {
	model    model
	subjects []*subject
	clock    time.Time
}

func (m *machine) reset(t *rapid.T) {
	revision := rapid.Int64Range(1, 50).Draw(t, "revision")
	objects := modelObjects{}
	for range rapid.IntRange(0, 8).Draw(t, "objects") {
		objects[drawKey(t)] = drawObject(t, rapid.Int64Range(1, revision).Draw(t, "modified"))
	}
	m.model.epoch++
	m.model.fresh = 0
	m.model.states = []modelState{{revision: revision, objects: objects, time: m.clock}}
	for _, s := range m.subjects {
		s.source.fresh = 0
		var all []*Object
		for key, x := range objects {
			all = append(all, x.object(s.cache.schema, key))
		}
		s.cache.Reset(all, revision)
		if m.model.epoch == 1 {
			s.start()
		}
	}
}

func (m *machine) apply(t *rapid.T) {
	now := m.model.now()
	revision := max(now.revision, m.model.fresh) + rapid.Int64Range(1, 3).Draw(t, "step")
	m.clock = m.clock.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
	next := modelState{revision: revision, objects: maps.Clone(now.objects), time: m.clock}
	type change struct {
		key    string
		object *modelObject // nil: deleted
	}
	var changes []change
	seen := map[string]bool{}
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		key := drawKey(t)
		if seen[key] {
			continue
		}
		seen[key] = true
		if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
			if _, exists := next.objects[key]; exists {
				next.events++
			}
			delete(next.objects, key)
			changes = append(changes, change{key: key})
			continue
		}
		x := drawObject(t, revision)
		next.objects[key] = x
		next.events++
		changes = append(changes, change{key, &x})
	}
	m.model.states = append(m.model.states, next)
	for _, s := range m.subjects {
		batch := Batch{Revision: revision, Time: m.clock}
		for _, c := range changes {
			change := Change{Key: c.key}
			if c.object != nil {
				change.Object = c.object.object(s.cache.schema, c.key)
			}
			batch.Changes = append(batch.Changes, change)
		}
		s.cache.Apply(batch)
	}
}

// stale applies a batch that the cache already has.
func (m *machine) stale(t *rapid.T) {
	revision := m.model.now().revision - rapid.Int64Range(0, 2).Draw(t, "back")
	for _, s := range m.subjects {
		s.cache.Apply(Batch{Revision: revision, Time: m.clock, Changes: []Change{{Key: "a/x"}}})
	}
}

// progress raises the store's revision without a change of this resource.
func (m *machine) progress(t *rapid.T) {
	m.model.fresh = max(m.model.now().revision, m.model.fresh) + rapid.Int64Range(0, 3).Draw(t, "progress")
	for _, s := range m.subjects {
		s.source.fresh = m.model.fresh
	}
}

func (m *machine) discardOld(t *rapid.T) {
	m.clock = m.clock.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "idle")) * time.Second)
	for _, s := range m.subjects {
		s.cache.discardOld(m.clock)
	}
}

// repair decodes some corrupt objects, in all states that have them.
func (m *machine) repair(t *rapid.T) {
	now := m.model.now().objects
	for _, key := range slices.Sorted(maps.Keys(now)) {
		x := now[key]
		if !x.corrupt || rapid.Bool().Draw(t, "later") {
			continue
		}
		for _, s := range m.model.states {
			if y := s.objects[key]; y.corrupt && y.revision == x.revision {
				y.corrupt = false
				s.objects[key] = y
			}
		}
		for _, s := range m.subjects {
			r := repair{s.cache.Snapshot().Get(key), now[key].object(s.cache.schema, key)}
			s.cache.publishRepaired([]repair{r})
			if s.mirror[key] == r.corrupt { // there is no event
				s.mirror[key] = r.sound
			}
		}
	}
}

func (m *machine) list(t *rapid.T) {
	q := drawQuery(t)
	revision := max(m.model.now().revision, m.model.fresh) - rapid.Int64Range(0, 12).Draw(t, "age")
	for _, s := range m.subjects {
		snapshot, err := s.cache.At(revision)
		if revision < s.cache.Log().Oldest() {
			if !errors.As(err, new(ErrTooOld)) {
				t.Fatalf("%s: At(%d) with oldest %d: %v", s.name, revision, s.cache.Log().Oldest(), err)
			}
			continue
		}
		if err != nil || snapshot.Revision() != revision {
			t.Fatalf("%s: At(%d): revision %d, %v", s.name, revision, snapshot.Revision(), err)
		}
		s.compareList(t, snapshot, q, m.model.at(revision).objects)
	}
}

func (m *machine) follow(t *rapid.T) {
	for _, s := range m.subjects {
		s.follow(t)
		s.compare(t, s.mirror, m.model.now().objects)
	}
}

// check runs after every action.
func (m *machine) check(t *rapid.T) {
	if m.model.epoch == 0 {
		return
	}
	now, label := m.model.now(), max(m.model.now().revision, m.model.fresh)
	for _, s := range m.subjects {
		snapshot := s.cache.Snapshot()
		if snapshot.Revision() != label || snapshot.Len() != len(now.objects) || snapshot.Epoch() != uint64(m.model.epoch) {
			t.Fatalf("%s: revision %d, want %d; %d objects, want %d; epoch %d, want %d", s.name,
				snapshot.Revision(), label, snapshot.Len(), len(now.objects), snapshot.Epoch(), m.model.epoch)
		}
		if _, err := s.cache.At(label + 1); !errors.As(err, new(errFuture)) {
			t.Fatalf("%s: At a future revision: got error %v, want errFuture", s.name, err)
		}
		snapshot.state.check()
		s.checkLog(t, &m.model, m.clock)
	}
}

// checkLog checks that the Log has exactly the events that its config and budget require.
func (s *subject) checkLog(t *rapid.T, m *model, now time.Time) {
	log, last := s.cache.Log(), m.now()
	if log.Len() > max(s.config.MaxEvents, last.events) {
		t.Fatalf("%s: the log has %d events, want at most %d", s.name, log.Len(), s.config.MaxEvents)
	}
	if log.Bytes() > s.config.MaxBytes && log.Len() > last.events {
		t.Fatalf("%s: the log has %d bytes, want at most %d", s.name, log.Bytes(), s.config.MaxBytes)
	}
	if s.budget > 0 && log.Bytes() > s.budget && log.Len() > max(s.config.MinEvents, last.events) {
		t.Fatalf("%s: the log has %d bytes and %d events, the budget is %d", s.name, log.Bytes(), log.Len(), s.budget)
	}
	if log.Len() != m.eventsAfter(log.Oldest()) {
		t.Fatalf("%s: the log has %d events since %d, want %d", s.name, log.Len(), log.Oldest(), m.eventsAfter(log.Oldest()))
	}
	// The newest discarded state must have been too old, or in excess of the limits.
	discarded := m.at(log.Oldest())
	if discarded.revision == m.states[0].revision {
		return
	}
	kept := m.eventsAfter(log.Oldest())
	young := now.Sub(discarded.time) <= s.config.KeepFor || kept+discarded.events <= s.config.MinEvents
	size := log.Bytes() + int64(discarded.events)*(eventOverhead+64)
	fits := kept+discarded.events <= s.config.MaxEvents && size <= s.config.MaxBytes &&
		(s.budget == 0 || size <= s.budget || kept+discarded.events <= s.config.MinEvents)
	if young && fits && discarded.revision == log.Oldest() {
		t.Fatalf("%s: revision %d of %s was discarded too early, at %s; the log has %d events", s.name, log.Oldest(), discarded.time, now, kept)
	}
}

// start copies a snapshot for the follower.
func (s *subject) start() {
	snapshot := s.cache.Snapshot()
	s.position, s.mirror = snapshot.Position(), map[string]*Object{}
	snapshot.state.objects.Ascend(func(o *Object) bool {
		s.mirror[o.Key()] = o
		return true
	})
}

// follow updates the follower's copy from the Log alone, if that is possible.
func (s *subject) follow(t *rapid.T) {
	for {
		events, next, err := s.cache.Log().Read(s.position, make([]*Event, 0, s.buffer))
		if errors.Is(err, ErrReset) || errors.As(err, new(ErrTooOld)) {
			s.start()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			return
		}
		if !events[len(events)-1].Last {
			t.Fatalf("%s: revision %d was split", s.name, events[len(events)-1].Revision)
		}
		for i, e := range events {
			if e.Pos != s.position+Position(i) || e.Prev != s.mirror[e.Key()] {
				t.Fatalf("%s: event %d at %d replaces the wrong object", s.name, e.Pos, s.position+Position(i))
			}
			if e.Object == nil {
				delete(s.mirror, e.Key())
			} else {
				s.mirror[e.Key()] = e.Object
			}
		}
		s.position = next
	}
}

func (s *subject) compare(t *rapid.T, got map[string]*Object, want modelObjects) {
	if len(got) != len(want) {
		t.Fatalf("%s: the copy made from events has %d objects, want %d", s.name, len(got), len(want))
	}
	for key, x := range want {
		o := got[key]
		if o == nil || o.Revision() != x.revision || (o.Err() != nil) != x.corrupt {
			t.Fatalf("%s: %s is %+v, want %+v", s.name, key, o, x)
		}
	}
}

// compareList pages through a query in the cache and the model.
func (s *subject) compareList(t *rapid.T, snapshot Snapshot, q Query, w modelObjects) {
	for {
		found, next, remaining, corrupt := w.list(q)
		page, err := snapshot.List(q, nil)
		if corrupt {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("%s: %+v covers a corrupt object: %v", s.name, q, err)
			}
			return
		}
		if errors.Is(err, errCorrupt) && page.Index != "" {
			// If an index shows that nothing more matches, the page covers the whole range, including a corrupt object
			// that a scan would reach only on a later page.
			if _, _, _, corrupt := w.list(Query{Prefix: q.Prefix, From: q.From}); corrupt {
				return
			}
		}
		if err != nil {
			t.Fatalf("%s: %+v: %v", s.name, q, err)
		}
		var keys []string
		for _, o := range page.Objects {
			keys = append(keys, o.Key())
			if snapshot.Get(o.Key()) != o {
				t.Fatalf("%s: Get(%q) differs from List", s.name, o.Key())
			}
		}
		if !slices.Equal(keys, found) {
			t.Fatalf("%s: %+v gives %q, want %q", s.name, q, keys, found)
		}
		if page.Index == "" {
			wantNext := ""
			if next != "" {
				wantNext = next + "\x00"
			}
			if q.Label != nil && !q.Label.Empty() || q.Field != nil && !q.Field.Empty() {
				remaining = 0
			}
			if page.Next != wantNext || page.Remaining != remaining {
				t.Fatalf("%s: %+v: next %q remaining %d, want %q and %d", s.name, q, page.Next, page.Remaining, wantNext, remaining)
			}
		} else if page.Next == "" && next != "" {
			// With an index the end of the matches may be known earlier.
			rest, _, _, _ := w.list(Query{Prefix: q.Prefix, From: next + "\x00", Label: q.Label, Field: q.Field})
			if len(rest) > 0 {
				t.Fatalf("%s: %+v: the list by index %s lacks %q", s.name, q, page.Index, rest)
			}
			return
		}
		if page.Next == "" {
			return
		}
		q.From = page.Next
	}
}

func TestCacheMatchesItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{subjects: newSubjects(t), clock: time.Unix(1000, 0)}
		m.reset(t)
		t.Repeat(map[string]func(*rapid.T){
			"apply":    m.apply,
			"apply2":   m.apply,
			"apply3":   m.apply,
			"stale":    m.stale,
			"progress": m.progress,
			"age":      m.discardOld,
			"list":     m.list,
			"list2":    m.list,
			"follow":   m.follow,
			"repair":   m.repair,
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "really") == 0 {
					m.reset(t)
				}
			},
			"": m.check,
		})
	})
}
