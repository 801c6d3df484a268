package cache

import (
	"fmt"
	"testing"
	"time"
)

// scan reads an encoding of every object, and returns the number of encodings that were made.
func scan(t *testing.T, objects []*Object, id EncodingID) (made int) {
	t.Helper()
	for _, o := range objects {
		if _, err := o.Encoding(id, func(*Object) ([]byte, error) { made++; return make([]byte, 1000), nil }); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func budgetObjects(schema *ResourceSchema, n int) []*Object {
	objects := make([]*Object, n)
	for i := range objects {
		objects[i] = newTestObject(schema, fmt.Sprint(i))
	}
	return objects
}

// TestScansBeyondTheBudgetKeepWhatFits repeatedly reads more encodings than fit into the budget. As many as fit must
// stay cached.
func TestScansBeyondTheBudgetKeepWhatFits(t *testing.T) {
	const room = 100
	for _, n := range []int{room, room * 3 / 2, room * 3} {
		budget := NewBudget(room * (1024 + keptOverhead))
		objects := budgetObjects(NewResourceSchema("things", budget), n)
		scan(t, objects, 1)
		made := 0
		for range 20 {
			made += scan(t, objects, 1)
		}
		if want := 20 * (n - room) * 11 / 10; made > want {
			t.Errorf("20 scans of %d objects made %d encodings, want at most %d", n, made, want)
		}
	}
}

// TestIdleEncodingsAreDropped checks that encodings that are no longer read make room for encodings that are.
func TestIdleEncodingsAreDropped(t *testing.T) {
	const n = 100
	budget := NewBudget(n * (1024 + keptOverhead))
	objects := budgetObjects(NewResourceSchema("things", budget), n)
	scan(t, objects, 1)
	for range 2 * idleRounds {
		scan(t, objects, 2)
	}
	if made := scan(t, objects, 2); made > n/10 {
		t.Errorf("a scan made %d of %d encodings again, want at most %d", made, n, n/10)
	}
}

// TestFramesAreKeptThoughAllEncodingsAreInUse checks that a frame is kept even if all encodings are in use.
func TestFramesAreKeptThoughAllEncodingsAreInUse(t *testing.T) {
	budget := NewBudget(10 * (1024 + keptOverhead))
	schema := NewResourceSchema("things", budget)
	objects := budgetObjects(schema, 20)
	scan(t, objects, 1)
	event, built := &Event{Object: objects[0]}, 0
	for range 3 {
		scan(t, objects, 1)
		if _, err := event.Frame(1, func() ([]byte, error) { built++; return make([]byte, 1000), nil }); err != nil {
			t.Fatal(err)
		}
	}
	if built != 1 {
		t.Errorf("the frame was built %d times, want 1", built)
	}
}

// TestEncodingsMakeRoomForTheLog checks that encodings are dropped before events. The Log drops events early only if
// it exceeds the budget alone.
func TestEncodingsMakeRoomForTheLog(t *testing.T) {
	const size = 1000
	budget := NewBudget(100 * size)
	schema := NewResourceSchema("things", budget)
	c, err := New(Config{Schema: schema, Log: LogConfig{MinEvents: 10}})
	if err != nil {
		t.Fatal(err)
	}
	object := func(key string, revision int64) *Object {
		return NewObject(ObjectConfig{Key: key, Revision: revision, Body: make([]byte, size)}, schema)
	}
	c.Reset([]*Object{object("a", 1), object("b", 1)}, 1)
	b := c.Snapshot().Get("b")
	scan(t, []*Object{b}, 1)
	apply := func(revision int64) {
		c.Apply(Batch{Revision: revision, Time: time.Unix(0, 0), Changes: []Change{{"a", object("a", revision)}}})
	}
	revision := int64(2)
	for ; budget.Used() > 0; revision++ {
		if c.Log().Oldest() != 1 {
			t.Fatal("the log dropped events before encodings were dropped")
		}
		apply(revision)
	}
	for end := revision + 200; revision < end; revision++ {
		apply(revision)
		if budget.LogBytes() != c.Log().Bytes() {
			t.Fatalf("the budget counts %d bytes of logs, the log has %d", budget.LogBytes(), c.Log().Bytes())
		}
		if budget.LogBytes() > budget.Limit() {
			t.Fatalf("the log has %d bytes, the limit is %d", budget.LogBytes(), budget.Limit())
		}
	}
	if c.Log().Len() < 50 {
		t.Errorf("the log has %d events, want at least 50", c.Log().Len())
	}
	if made := scan(t, []*Object{b}, 1); made != 1 {
		t.Error("the encoding is still cached although the log fills the budget")
	}
}

// TestEventsOfLargeObjectsFitTheBudget checks that a Log has fewer than MinEvents if the Budget has no room for them.
func TestEventsOfLargeObjectsFitTheBudget(t *testing.T) {
	const size = 1 << 20
	budget := NewBudget(20 * size)
	schema := NewResourceSchema("things", budget)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, size)
	c.Reset(nil, 1)
	for revision := int64(2); revision < 100; revision++ {
		object := NewObject(ObjectConfig{Key: "a", Revision: revision, Body: body}, schema)
		c.Apply(Batch{Revision: revision, Time: time.Unix(0, 0), Changes: []Change{{"a", object}}})
	}
	if bytes, length := budget.LogBytes(), c.Log().Len(); bytes > 20*size || length < 19 {
		t.Errorf("%d events have %d bytes, want at least 19 events and at most %d bytes", length, bytes, 20*size)
	}
}

// TestGrowingBudgetsFollowTheBodies checks that a growing budget follows the bodies of all caches that share it.
func TestGrowingBudgetsFollowTheBodies(t *testing.T) {
	budget := NewGrowingBudget(Growth{MinEncodings: 700, MinTotal: 1000, Max: 8000})
	var caches []*Cache
	for _, want := range []struct{ encodings, all int64 }{{700, 2500}, {1250, 5000}, {1875, 7500}, {2500, 8000}} {
		schema := NewResourceSchema("things", budget)
		c, err := New(Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		body := make([]byte, 1250)
		c.Reset([]*Object{NewObject(ObjectConfig{Key: "a", Revision: 1, Body: body}, schema)}, 1)
		caches = append(caches, c)
		if budget.Limit() != want.encodings || budget.TotalLimit() != want.all {
			t.Errorf("limits %d and %d, want %d", budget.Limit(), budget.TotalLimit(), want)
		}
	}
	for _, c := range caches {
		c.Apply(Batch{Revision: 2, Changes: []Change{{Key: "a"}}})
	}
	if budget.Limit() != 700 || budget.TotalLimit() != 1000 {
		t.Errorf("without objects the limits are %d and %d, want the minimum, 700 and 1000", budget.Limit(), budget.TotalLimit())
	}
}

// TestExpensiveEncodingsReplaceCheapOnes checks that encodings that are expensive to make replace cheap ones, and
// stay.
func TestExpensiveEncodingsReplaceCheapOnes(t *testing.T) {
	budget := NewBudget(10 * (1024 + keptOverhead))
	objects := budgetObjects(NewResourceSchema("things", budget), 20)
	scan(t, objects, 1)
	made := 0
	for range 5 {
		for _, o := range objects[:8] {
			if _, err := o.ExpensiveEncoding(2, func(*Object) ([]byte, error) { made++; return make([]byte, 1000), nil }); err != nil {
				t.Fatal(err)
			}
		}
		scan(t, objects, 1)
	}
	if made != 8 {
		t.Errorf("8 expensive encodings were made %d times, want 8", made)
	}
}

// TestEncodingsAreKeptAfterMakeRoom checks that an encoding is kept if MakeRoom has returned true.
func TestEncodingsAreKeptAfterMakeRoom(t *testing.T) {
	budget := NewBudget(10 * (1024 + keptOverhead))
	objects := budgetObjects(NewResourceSchema("things", budget), 40)
	fitted := 0
	for range 3 {
		for _, o := range objects {
			if _, ok := o.Kept(1); ok || !budget.MakeRoom(1000) {
				continue
			}
			fitted++
			scan(t, []*Object{o}, 1)
			if _, ok := o.Kept(1); !ok {
				t.Fatal("MakeRoom returned true, but the encoding was not kept")
			}
		}
	}
	if fitted < 10 || fitted > 20 {
		t.Errorf("MakeRoom returned true %d times with room for 10 encodings, want 10 to 20", fitted)
	}
	if !NewBudget(0).MakeRoom(1 << 40) {
		t.Error("MakeRoom returned false without a limit")
	}
}
