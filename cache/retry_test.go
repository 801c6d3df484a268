package cache

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// corruptObjects returns n objects that cannot be decoded, and the same objects after decoding works.
func corruptObjects(schema *ResourceSchema, n int) (corrupt, sound []*Object) {
	for i := range n {
		key := fmt.Sprintf("ns/%06d", i)
		corrupt = append(corrupt, NewObject(ObjectConfig{Key: key, Revision: 1, Err: errCorrupt}, schema))
		sound = append(sound, NewObject(ObjectConfig{Key: key, Revision: 1, Labels: labels.Set{"app": fmt.Sprint(i % 100)}}, schema))
	}
	return corrupt, sound
}

// allocated returns the number of bytes that work allocates.
func allocated(work func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	work()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestIndexFindsObjectsRepairedWhileItWasBuilt checks objects that were corrupt in the state from which an index was
// built, and were repaired meanwhile.
func TestIndexFindsObjectsRepairedWhileItWasBuilt(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	corrupt, sound := corruptObjects(schema, 200)
	c.Reset(append(sound[:100:100], corrupt[100]), 1)
	base := c.current.Load()
	ix, ok := base.buildIndex("app")
	if !ok {
		t.Fatal("no index of the label")
	}
	c.Apply(Batch{Revision: 2, Changes: []Change{{Key: corrupt[101].Key(), Object: corrupt[101]}}})
	c.publishRepaired([]repair{{corrupt[100], sound[100]}, {corrupt[101], sound[101]}})
	if !c.adopt(base, ix) {
		t.Fatal("the index was not adopted")
	}
	for i, app := range []string{"0", "1"} {
		page, err := c.Snapshot().List(Query{Label: selector(t, "app="+app)}, nil)
		if err != nil || page.Index != "app" || len(page.Objects) != 2 || page.Objects[1] != sound[100+i] {
			t.Errorf("app=%s: %d objects by index %q, error %v; want 2 by app", app, len(page.Objects), page.Index, err)
		}
	}
}

func TestPastStatesHaveRepairedObjects(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	c, err := New(Config{Schema: schema, Log: LogConfig{CheckpointEvery: 1}})
	if err != nil {
		t.Fatal(err)
	}
	corrupt, sound := corruptObjects(schema, 1)
	c.Reset(corrupt, 1)
	const last = 4
	for revision := int64(2); revision <= last; revision++ {
		o := NewObject(ObjectConfig{Key: "other", Revision: revision}, schema)
		c.Apply(Batch{Revision: revision, Changes: []Change{{Key: o.Key(), Object: o}}})
	}
	c.publishRepaired([]repair{{corrupt[0], sound[0]}})
	for revision := range int64(last) {
		past, err := c.At(revision + 1)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := past.List(Query{}, nil); err != nil || !slices.Contains(page.Objects, sound[0]) {
			t.Errorf("revision %d: %d objects without the repaired one, error %v", revision+1, len(page.Objects), err)
		}
	}
}

// TestPastStatesReadDuringARepairAreNotReused checks that a past state that a slow reader reconstructs during a repair is
// not returned to later readers, because it has the corrupt object.
func TestPastStatesReadDuringARepairAreNotReused(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	corrupt, sound := corruptObjects(schema, 1)
	c.Reset(corrupt, 1)
	o := NewObject(ObjectConfig{Key: "other", Revision: 2}, schema)
	c.Apply(Batch{Revision: 2, Changes: []Change{{Key: o.Key(), Object: o}}})
	before := c.current.Load()
	c.publishRepaired([]repair{{corrupt[0], sound[0]}})
	if _, err := c.past(before, 1); err != nil {
		t.Fatal(err)
	}
	past, err := c.At(1)
	if err != nil {
		t.Fatal(err)
	}
	if page, err := past.List(Query{}, nil); err != nil || !slices.Equal(page.Objects, sound) {
		t.Errorf("%d objects, error %v; want the repaired one", len(page.Objects), err)
	}
}

// TestRepairsReplaceObjectsInEvents checks that a repair replaces the corrupt object in its event, and changes nothing
// else.
func TestRepairsReplaceObjectsInEvents(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	corrupt, sound := corruptObjects(schema, 4)
	for i := range corrupt {
		corrupt[i] = NewObject(ObjectConfig{Key: corrupt[i].Key(), Revision: 3, Err: errCorrupt}, schema)
		sound[i] = NewObject(ObjectConfig{Key: sound[i].Key(), Revision: 3}, schema)
	}
	other := NewObject(ObjectConfig{Key: "other", Revision: 2}, schema)
	c.Reset(nil, 1)
	c.Apply(Batch{Revision: 2, Changes: []Change{{Key: other.Key(), Object: other}}})
	var changes []Change
	for _, o := range corrupt {
		changes = append(changes, Change{Key: o.Key(), Object: o})
	}
	c.Apply(Batch{Revision: 3, Changes: changes})
	c.Apply(Batch{Revision: 4, Changes: []Change{{Key: corrupt[3].Key()}}})
	read := func() []*Event {
		at, err := c.log.After(1)
		if err != nil {
			t.Fatal(err)
		}
		events, _, err := c.log.Read(at, make([]*Event, 0, 16))
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	before := read()
	c.publishRepaired([]repair{{corrupt[1], sound[1]}, {corrupt[2], sound[2]}, {corrupt[3], sound[3]}})
	after := read()
	if len(after) != 6 || len(before) != 6 {
		t.Fatalf("%d events, %d before the repair; want 6", len(after), len(before))
	}
	for i, want := range []*Object{other, corrupt[0], sound[1], sound[2], corrupt[3], nil} {
		e, was := after[i], before[i]
		if e.Object != want || e.Prev != was.Prev || e.Pos != was.Pos || e.Revision != was.Revision || e.Last != was.Last || e.time != was.time {
			t.Errorf("event %d is %+v, before the repair %+v; want object %v", i, e, was, want)
		}
	}
	if o := before[2].Object; o != corrupt[1] {
		t.Error("the repair changed an event that was read before")
	}
}

// TestCorruptObjectsCostLinearly checks that allocations for loading, applying, repairing and deleting corrupt
// objects grow linearly with their number.
func TestCorruptObjectsCostLinearly(t *testing.T) {
	measure := func(n int) map[string]uint64 {
		schema := NewResourceSchema("things", nil, Index{Label: "app"})
		c, err := New(Config{Schema: schema, Log: LogConfig{MaxEvents: 100}})
		if err != nil {
			t.Fatal(err)
		}
		corrupt, sound := corruptObjects(schema, n)
		var changes, deletes []Change
		var repaired []repair
		for i, o := range corrupt {
			changes = append(changes, Change{Key: o.Key(), Object: o})
			deletes = append(deletes, Change{Key: o.Key()})
			repaired = append(repaired, repair{o, sound[i]})
		}
		return map[string]uint64{
			"load":       allocated(func() { c.Reset(corrupt, 1) }),
			"delete all": allocated(func() { c.Apply(Batch{Revision: 2, Changes: deletes}) }),
			"apply all":  allocated(func() { c.Apply(Batch{Revision: 3, Changes: changes}) }),
			"repair":     allocated(func() { c.publishRepaired(repaired) }),
		}
	}
	few, many := measure(4000), measure(100_000)
	for what, cost := range few {
		t.Logf("%s: %d bytes for 4,000 objects, %d for 100,000", what, cost, many[what])
		if many[what] > 50*cost {
			t.Errorf("%s costs %d bytes for 4,000 objects and %d for 100,000, want at most 50 times as many", what, cost, many[what])
		}
	}
}

// TestCorruptObjectsAreRetriedAFewAtATime checks the rate at which many corrupt values are read again, and that all are
// repaired soon after they can be decoded.
func TestCorruptObjectsAreRetriedAFewAtATime(t *testing.T) {
	const n = 10_000
	synctest.Test(t, func(t *testing.T) {
		m := newMirror(t)
		var down atomic.Bool
		down.Store(true)
		inner := m.cache.config.Decode
		m.cache.config.Decode = func(ctx context.Context, key string, value []byte, revision int64) *Object {
			if down.Load() && strings.HasPrefix(string(value), "locked") {
				return NewObject(ObjectConfig{Key: key, Revision: revision, Err: errCorrupt}, m.cache.schema)
			}
			return inner(ctx, key, value, revision)
		}
		many := map[string][]byte{}
		for i := range n {
			many[fmt.Sprintf("%sns/%05d", testPrefix, i)] = []byte("locked")
		}
		m.store.PutAll(many)
		m.start(t)
		if err := m.cache.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		var reads atomic.Int64
		m.store.SetHook(func(op, key string) error {
			if op == "get" && strings.HasPrefix(key, testPrefix) {
				reads.Add(1)
			}
			return nil
		})
		const minutes = 10
		time.Sleep(minutes * time.Minute)
		if most := int64(minutes * 60 / 10 * maxRetries); reads.Load() == 0 || reads.Load() > most {
			t.Errorf("%d reads in %d minutes, want at most %d", reads.Load(), minutes, most)
		}
		down.Store(false)
		reads.Store(0)
		time.Sleep(2 * maintainEvery)
		m.awaitStore(t)
		if _, err := m.cache.Snapshot().List(Query{}, nil); err != nil {
			t.Errorf("list after all values can be decoded: %v", err)
		}
		if reads.Load() > n+maxRetries {
			t.Errorf("%d reads to repair %d objects, want at most %d", reads.Load(), n, n+maxRetries)
		}
	})
}
