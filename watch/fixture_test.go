package watch_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/watchtest"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// fixture is a resource with its history: the Cache and the Hub under test, and the expected results.
type fixture struct {
	cache   *cache.Cache
	hub     *watch.Hub
	history *watchtest.History
	objects map[string]*watchtest.State
	last    int64 // newest revision
	fresh   atomic.Int64
}

// Fresh and Wait make a fixture the Source of its Cache.
func (f *fixture) Fresh() int64                      { return f.fresh.Load() }
func (f *fixture) Wait(context.Context, int64) error { return errors.ErrUnsupported }

// config has the parameters that vary between tests.
type config struct {
	backlog, events int
}

func newFixture(t interface{ Fatal(...any) }, c config) *fixture {
	f := &fixture{}
	schema := cache.NewResourceSchema("pods", nil, cache.Index{Field: "spec.nodeName"})
	schema.IdentifyBy(func(head []byte) []byte { return head }) // each write changes the identity
	var err error
	f.cache, err = cache.New(cache.Config{
		Schema:   schema,
		Source:   f,
		Log:      cache.LogConfig{KeepFor: 24 * time.Hour, MinEvents: 1, MaxEvents: c.events},
		OnAppend: func() { f.hub.Notify() },
	})
	if err != nil {
		t.Fatal(err)
	}
	f.hub, err = watch.New(watch.Config{Cache: f.cache}.WithBacklog(c.backlog))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// reset begins a new epoch with the current objects.
func (f *fixture) reset() {
	f.last++
	states, changes := f.objects, []watchtest.Change(nil)
	f.objects, f.history = make(map[string]*watchtest.State), new(watchtest.History)
	var objects []*cache.Object
	for key, s := range states {
		s = &watchtest.State{Key: key, Revision: f.last, Labels: s.Labels, Fields: s.Fields, Digest: digest(key, f.last)}
		f.objects[key] = s
		objects = append(objects, f.object(s))
		changes = append(changes, watchtest.Change{Key: key, State: s})
	}
	f.history.Add(f.last, changes...)
	f.cache.Reset(objects, f.last)
}

func digest(key string, revision int64) string { return fmt.Sprintf("%s@%d", key, revision) }

func (f *fixture) object(s *watchtest.State) *cache.Object {
	return cache.NewObject(cache.ObjectConfig{
		Key: s.Key, Revision: s.Revision, Body: []byte(s.Digest), Labels: s.Labels, Fields: s.Fields,
	}, f.cache.Schema())
}

// change is the new state of a key. Attributes are "k=v,...".
type change struct {
	key            string
	labels, fields string
	gone, bad      bool // deleted; corrupt
}

var errBad = errors.New("the value does not decode")

// apply applies the changes of one revision.
func (f *fixture) apply(changes ...change) {
	f.last++
	batch := cache.Batch{Revision: f.last, Time: time.Unix(f.last, 0)}
	var truth []watchtest.Change
	for _, c := range changes {
		next := cache.Change{Key: c.key}
		expected := watchtest.Change{Key: c.key}
		if c.gone {
			delete(f.objects, c.key)
		} else {
			expected.State = &watchtest.State{
				Key: c.key, Revision: f.last, Digest: digest(c.key, f.last),
				Labels: attributes(c.labels), Fields: attributes(c.fields),
			}
			f.objects[c.key] = expected.State
			next.Object = f.object(expected.State)
		}
		if c.bad {
			next.Object = cache.NewObject(cache.ObjectConfig{Key: c.key, Revision: f.last, Err: errBad}, f.cache.Schema())
		}
		truth = append(truth, expected)
		batch.Changes = append(batch.Changes, next)
	}
	f.history.Add(f.last, truth...)
	f.cache.Apply(batch)
}

func attributes(text string) map[string]string {
	set := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		if key, value, found := strings.Cut(pair, "="); found {
			set[key] = value
		}
	}
	return set
}

// filter is a filter in text form.
type filter struct{ namespace, name, label, field, shard string }

func (f filter) options() watch.Options {
	o := watch.Options{Namespace: f.namespace, Name: f.name, Bookmarks: true}
	if f.label != "" {
		o.Label = mustSelect(labels.Parse(f.label))
	}
	if f.field != "" {
		o.Field = mustSelect(fields.ParseSelector(f.field))
	}
	if f.shard != "" {
		key, ranges := f.hashes()
		o.Shard = cache.NewShard(key, ranges...)
	}
	return o
}

// hashes parses a shard: the first letter of its key, then the first bytes of the hashes.
func (f filter) hashes() (key cache.ShardKey, ranges []cache.HashRange) {
	if f.shard[0] == 'n' {
		key = cache.ByNamespace
	}
	for text := range strings.FieldsSeq(f.shard[1:]) {
		var first, last uint64
		fmt.Sscanf(text, "%x-%x", &first, &last)
		ranges = append(ranges, cache.HashRange{First: first << 56, Last: last<<56 | math.MaxUint64>>8})
	}
	return key, ranges
}

func (f filter) inShard(namespace string, s *watchtest.State) bool {
	if f.shard == "" {
		return true
	}
	key, ranges := f.hashes()
	text := s.Digest
	if key == cache.ByNamespace {
		text = namespace
	}
	h := fnv.New64a()
	h.Write([]byte(text))
	return slices.ContainsFunc(ranges, func(r cache.HashRange) bool { return r.First <= h.Sum64() && h.Sum64() <= r.Last })
}

func mustSelect[S any](selector S, err error) S {
	if err != nil {
		panic(err)
	}
	return selector
}

// predicate is the filter for the checker, implemented without the code under test.
func (f filter) predicate() func(*watchtest.State) bool {
	o := f.options()
	return func(s *watchtest.State) bool { return f.selects(o, s) }
}

func (f filter) selects(o watch.Options, s *watchtest.State) bool {
	namespace, name, found := strings.Cut(s.Key, "/")
	if !found {
		namespace, name = "", s.Key
	}
	all := fields.Set{"metadata.name": name, "metadata.namespace": namespace}
	maps.Copy(all, s.Fields)
	return (f.namespace == "" || f.namespace == namespace) && (f.name == "" || f.name == name) && f.inShard(namespace, s) &&
		(o.Label == nil || o.Label.Matches(labels.Set(s.Labels))) && (o.Field == nil || o.Field.Matches(all))
}

// reportOf returns a delivery as a client sees it.
func reportOf(d watch.Delivery) watchtest.Report {
	r := watchtest.Report{Type: watchtest.Type(d.Type.String()), Revision: d.Revision}
	if d.Object != nil {
		r.Key, r.Digest = d.Object.Key(), string(d.Object.Body())
	}
	return r
}

func reports(ds []watch.Delivery) (rs []watchtest.Report) {
	for _, d := range ds {
		rs = append(rs, reportOf(d))
	}
	return rs
}

// publishAll makes the Hub publish all events.
func (f *fixture) publishAll() {
	for f.hub.Step() {
	}
}

// must returns a watcher, which is closed at the end of the test.
func (f *fixture) must(t testing.TB, o watch.Options) *watch.Watcher {
	t.Helper()
	watcher, err := f.hub.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watcher.Close)
	return watcher
}
