package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

func selector(tb testing.TB, text string) labels.Selector {
	tb.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// learnIndex makes the cache learn an index of a label.
func (c *Cache) learnIndex(key string) {
	c.learner.mu.Lock()
	defer c.learner.mu.Unlock()
	c.learner.candidates[key] = 1 << 40
}

// learntIndexes returns the names of the learnt indexes.
func (c *Cache) learntIndexes() (names []string) {
	for _, ix := range c.current.Load().indexes {
		if ix.learnt != nil {
			names = append(names, ix.Label)
		}
	}
	slices.Sort(names)
	return names
}

// TestLearntIndexesEqualScans builds indexes, also from older states, and drops them. Meanwhile every page of every list
// of every state must equal a scan's. Corrupt objects fail lists until they can be decoded, and are then found like
// others.
func TestLearntIndexesEqualScans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		schema := NewResourceSchema("things", nil, Index{Label: "zone"})
		c, err := New(Config{Schema: schema, Log: LogConfig{MaxEvents: 12, MinEvents: 1}})
		if err != nil {
			t.Fatal(err)
		}
		c.limitLearning(learnConfig{minScan: 1, maxIndexes: 2})
		objects, revision, epochs := map[string]labels.Set{}, int64(1), 0
		c.Reset(nil, revision)
		corrupt := map[string]*Object{}
		type past struct {
			snapshot Snapshot
			objects  map[string]labels.Set
			corrupt  []string // keys
		}
		var pasts []past
		var building []func()
		object := func(key string) *Object {
			return NewObject(ObjectConfig{Key: key, Revision: revision, Labels: objects[key]}, schema)
		}
		keys := rapid.SampledFrom([]string{"app", "tier", "zone", "nobody"})
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				revision++
				batch := Batch{Revision: revision}
				for range rapid.IntRange(1, 3).Draw(t, "changes") {
					key := fmt.Sprintf("ns/%d", rapid.IntRange(0, 30).Draw(t, "key"))
					if slices.ContainsFunc(batch.Changes, func(change Change) bool { return change.Key == key }) {
						continue
					}
					delete(corrupt, key)
					if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
						delete(objects, key)
						batch.Changes = append(batch.Changes, Change{Key: key})
						continue
					}
					set := labels.Set{}
					for _, label := range []string{"app", "tier", "zone"} {
						if value := rapid.SampledFrom([]string{"-", "", "a", "b", "c", "d"}).Draw(t, label); value != "-" {
							set[label] = value
						}
					}
					objects[key] = set
					o := object(key)
					if rapid.IntRange(0, 5).Draw(t, "corrupt") == 0 {
						o = NewObject(ObjectConfig{Key: key, Revision: revision, Err: errCorrupt}, schema)
						corrupt[key] = o
					}
					batch.Changes = append(batch.Changes, Change{Key: key, Object: o})
				}
				c.Apply(batch)
			},
			"repair": func(t *rapid.T) {
				for key, o := range corrupt {
					sound := NewObject(ObjectConfig{Key: key, Revision: o.Revision(), Labels: objects[key]}, schema)
					c.publishRepaired([]repair{{o, sound}})
				}
				clear(corrupt)
			},
			"reset": func(t *rapid.T) {
				if epochs++; epochs%5 != 0 {
					return
				}
				revision++
				var all []*Object
				for key := range objects {
					all = append(all, object(key))
				}
				clear(corrupt)
				c.Reset(all, revision)
			},
			"learn": func(t *rapid.T) {
				c.learnIndex(keys.Draw(t, "label"))
				c.learn()
			},
			"begin to build": func(t *rapid.T) {
				base, key := c.current.Load(), keys.Draw(t, "label")
				ix, _ := base.buildIndex(key)
				building = append(building, func() {
					if c.current.Load().labelIndex(key) < 0 {
						c.adopt(base, ix)
					}
				})
			},
			"finish building": func(t *rapid.T) {
				if len(building) > 0 {
					building[0]()
					building = building[1:]
				}
			},
			"drop unused": func(*rapid.T) {
				for range maxIdle / 4 {
					c.review()
				}
			},
			"snapshot": func(t *rapid.T) {
				pasts = append(pasts[max(0, len(pasts)-3):], past{c.Snapshot(), maps.Clone(objects), slices.Sorted(maps.Keys(corrupt))})
			},
			"": func(t *rapid.T) {
				if names := c.learntIndexes(); len(names) > 2 {
					t.Fatalf("learnt indexes %q, want at most 2", names)
				}
				c.current.Load().check()
				text := rapid.SampledFrom([]string{"app=a", "app=", "tier in (b)", "tier=a,app=b", "zone=a,tier=c", "app in (a,b)", "!app", "app=a,app!=a", "nobody=x", "tier!=a"}).Draw(t, "selector")
				limit := rapid.IntRange(0, 3).Draw(t, "limit")
				all := append(pasts[:len(pasts):len(pasts)], past{c.Snapshot(), objects, slices.Sorted(maps.Keys(corrupt))})
				for _, p := range all {
					comparePages(t, p.snapshot, p.objects, p.corrupt, text, limit)
				}
			},
		})
	})
}

// comparePages lists page by page and compares the result with a filtered map. Since the labels of corrupt objects
// are unknown, the first page that reaches the first corrupt object must fail.
func comparePages(t *rapid.T, s Snapshot, objects map[string]labels.Set, corrupt []string, text string, limit int) {
	q := Query{Label: labels.SelectorFromSet(nil), Limit: limit}
	var err error
	if q.Label, err = labels.Parse(text); err != nil {
		t.Fatal(err)
	}
	var want, got, used []string
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if q.Label.Matches(objects[key]) && (len(corrupt) == 0 || key < corrupt[0]) {
			want = append(want, key)
		}
	}
	failed := false
	for {
		page, err := s.List(q, nil)
		if failed = err != nil; failed {
			if !errors.Is(err, errCorrupt) {
				t.Fatal(err)
			}
			break
		}
		for _, o := range page.Objects {
			got = append(got, o.Key())
		}
		used = append(used, page.Index)
		if q.From = page.Next; q.From == "" {
			break
		}
	}
	if failed != (len(corrupt) > 0) {
		t.Fatalf("list of %s by index %q failed: %v, with corrupt objects %q", text, used, failed, corrupt)
	}
	// The failed page may begin with objects before the corrupt one, but too few to fill it.
	if failed && len(got) < len(want) && (limit == 0 || len(want)-len(got) <= limit) {
		want = want[:len(got)]
	}
	if !slices.Equal(got, want) {
		t.Fatalf("list of %s by index %q: got %q, want %q", text, used, got, want)
	}
}

// limitLearning sets the limits that are not 0.
func (c *Cache) limitLearning(config learnConfig) {
	own := &c.learner.config
	*own = learnConfig{
		cmp.Or(config.maxIndexes, own.maxIndexes), cmp.Or(config.maxEntries, own.maxEntries), cmp.Or(config.minScan, own.minScan),
	}
}

// learnFrom fills a cache with objects whose labels have different numbers of values.
func learnFrom(t testing.TB, n int, config learnConfig) *Cache {
	t.Helper()
	schema := NewResourceSchema("things", nil, Index{Label: "zone"}) // does not count as learnt
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	c.limitLearning(config)
	all := make([]*Object, n)
	for i := range all {
		all[i] = NewObject(ObjectConfig{Key: fmt.Sprintf("ns/%05d", i), Revision: 1, Labels: labels.Set{
			"app": fmt.Sprint(i % 100), "pod": fmt.Sprint(i), "tier": "backend",
			"a": fmt.Sprint(i % 50), "b": fmt.Sprint(i % 51), "c": fmt.Sprint(i % 52), "d": fmt.Sprint(i % 53),
		}}, schema)
	}
	c.Reset(all, 1)
	return c
}

// query lists a number of times and returns the index that the last list used.
func query(t *testing.T, c *Cache, text string, times int) (index string) {
	t.Helper()
	for range times {
		page, err := c.Snapshot().List(Query{Label: selector(t, text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		index = page.Index
	}
	return index
}

// TestRepeatedQueriesCreateIndexes checks which queries make the cache learn which indexes.
func TestRepeatedQueriesCreateIndexes(t *testing.T) {
	for _, c := range []struct {
		query  string
		times  int
		config learnConfig
		want   []string
		index  string // used by the query, if there are several
	}{
		{query: "app=7", times: 4, want: nil}, // matching objects do not count as scanned in vain
		{query: "app=7", times: 5, want: []string{"app"}},
		{query: "app in (7)", times: 5, want: []string{"app"}},
		{query: "app in (7,8)", times: 50, want: nil},
		{query: "app!=7", times: 50, want: nil},
		{query: "tier=backend", times: 50, want: nil},
		{query: "tier=frontend", times: 50, want: nil}, // nearly all objects have the same value
		{query: "nobody=x", times: 5, want: []string{"nobody"}},
		{query: "tier=backend,app=7", times: 5, want: []string{"app"}},
		{query: "app=7,pod=7", times: 5, want: []string{"app", "pod"}, index: "pod"},
		{query: "app=7", times: 50, config: learnConfig{maxIndexes: -1}, want: nil},
		{query: "app=7", times: 50, config: learnConfig{maxEntries: 500}, want: nil},
		{query: "app=7", times: 50, config: learnConfig{minScan: 1001}, want: nil},
	} {
		cache := learnFrom(t, 1000, c.config)
		query(t, cache, c.query, c.times)
		cache.learn()
		if got := cache.learntIndexes(); !slices.Equal(got, c.want) {
			t.Errorf("%s, %d times: learnt indexes %q, want %q", c.query, c.times, got, c.want)
		}
		index := c.index
		if index == "" && len(c.want) > 0 {
			index = c.want[0]
		}
		if got := query(t, cache, c.query, 1); got != index {
			t.Errorf("%s uses index %q, want %q", c.query, got, index)
		}
	}
}

// TestNewIndexReplacesARarelyUsedOne checks that the number of learnt indexes is limited, and that a new index replaces
// the least used one only if that is rarely used.
func TestNewIndexReplacesARarelyUsedOne(t *testing.T) {
	cache := learnFrom(t, 1000, learnConfig{maxIndexes: 3})
	for i, label := range []string{"a", "b", "c"} {
		query(t, cache, label+"=1", 5)
		cache.learn()
		query(t, cache, label+"=1", 3-i)
	}
	query(t, cache, "d=1", 5)
	cache.learn()
	if got, want := cache.learntIndexes(), []string{"a", "b", "d"}; !slices.Equal(got, want) {
		t.Errorf("learnt indexes %q, want %q", got, want)
	}
	for _, label := range []string{"a", "b", "d"} {
		query(t, cache, label+"=1", 50)
	}
	query(t, cache, "app=1", 5)
	cache.learn()
	if got, want := cache.learntIndexes(), []string{"a", "b", "d"}; !slices.Equal(got, want) {
		t.Errorf("learnt indexes %q, want %q", got, want)
	}
	refused := cache.learner.candidates["app"]
	query(t, cache, "app=1", 50)
	cache.review()
	if score := cache.learner.candidates["app"]; refused >= 0 || score != refused/2 {
		t.Errorf("a label without room for its index has score %d, later %d; want a negative one, then half of it", refused, score)
	}
	for i := range 2 * maxCandidates {
		query(t, cache, fmt.Sprintf("other%d=1", i), 1)
	}
	if n := len(cache.learner.candidates); n != maxCandidates {
		t.Errorf("%d labels are candidates, want %d", n, maxCandidates)
	}
	for range 2 * maxIdle {
		query(t, cache, "b=1", 1)
		cache.review()
	}
	if got, want := cache.learntIndexes(), []string{"b"}; !slices.Equal(got, want) {
		t.Errorf("learnt indexes %q after b alone was used, want %q", got, want)
	}
}

func TestRareQueriesCreateNoIndex(t *testing.T) {
	cache := learnFrom(t, 1000, learnConfig{})
	for range 100 {
		query(t, cache, "app=7", 1)
		cache.review()
		cache.learn()
	}
	if got := cache.learntIndexes(); got != nil {
		t.Errorf("learnt indexes %q, want none", got)
	}
}

// TestReflectorBuildsAndDropsIndexes checks that a running cache builds and drops indexes by itself, and that they
// survive a reload.
func TestReflectorBuildsAndDropsIndexes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		m.cache.config.Decode = func(_ context.Context, key string, value []byte, revision int64) *Object {
			return NewObject(ObjectConfig{Key: key, Revision: revision, Body: value, Labels: labels.Set{"app": string(value)}}, m.cache.schema)
		}
		many := map[string][]byte{}
		for i := range 1000 {
			many[fmt.Sprintf("%sns/%04d", testPrefix, i)] = fmt.Append(nil, i%100)
		}
		m.store.PutAll(many)
		m.start(t)
		m.awaitStore(t)
		query(t, m.cache, "app=7", 5)
		synctest.Wait()
		if got := query(t, m.cache, "app=7", 1); got != "app" {
			t.Errorf("the list uses index %q, want app", got)
		}
		m.store.Restore(2, true)
		time.Sleep(time.Second)
		m.awaitStore(t)
		m.put(t, testPrefix+"ns/0000", "7")
		s := m.awaitStore(t)
		page, err := s.List(Query{Label: selector(t, "app=7")}, nil)
		if err != nil || s.Epoch() != 2 || page.Index != "app" || len(page.Objects) != 11 {
			t.Errorf("after a reload: %d objects by index %q in epoch %d, error %v; want 11 by app in 2", len(page.Objects), page.Index, s.Epoch(), err)
		}
		time.Sleep(time.Hour)
		if got := m.cache.learntIndexes(); got != nil {
			t.Errorf("learnt indexes %q after an hour without lists, want none", got)
		}
	})
}

// TestConcurrentListsEqualScans lists and writes while indexes are built and dropped. Each list must equal a scan of its
// snapshot.
func TestConcurrentListsEqualScans(t *testing.T) {
	c := learnFrom(t, 1000, learnConfig{maxIndexes: 2})
	stop := make(chan struct{})
	var workers sync.WaitGroup
	background := func(step func(i int)) {
		workers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					step(i)
				}
			}
		})
	}
	background(func(i int) {
		o := NewObject(ObjectConfig{Key: fmt.Sprintf("ns/%05d", i*7919%1000), Revision: int64(i + 2), Labels: labels.Set{
			"app": fmt.Sprint(i % 90), "a": fmt.Sprint(i % 40),
		}}, c.schema)
		c.Apply(Batch{Revision: int64(i + 2), Time: time.Now(), Changes: []Change{{o.Key(), o}}})
	})
	background(func(i int) {
		c.learnIndex([]string{"app", "a", "b"}[i%3])
		c.learn()
		for range maxIdle / 8 {
			c.review()
		}
	})
	for i := range 3000 {
		s := c.Snapshot()
		text := fmt.Sprintf("%s=%d", []string{"app", "a", "b"}[i%3], i%40)
		page, err := s.List(Query{Label: selector(t, text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		s.state.objects.Ascend(func(o *Object) bool {
			if key, value, _ := strings.Cut(text, "="); o.Labels().Has(key) && o.Labels().Get(key) == value {
				want = append(want, o.Key())
			}
			return true
		})
		got := make([]string, len(page.Objects))
		for i, o := range page.Objects {
			got[i] = o.Key()
		}
		if !slices.Equal(got, want) {
			t.Fatalf("list of %s by index %q: got %q, want %q", text, page.Index, got, want)
		}
	}
	close(stop)
	workers.Wait()
}
