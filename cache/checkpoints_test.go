package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"weak"
)

// TestEveryRevisionOfALongLogCanBeRead reads every revision of a log with many checkpoints, in random order.
func TestEveryRevisionOfALongLogCanBeRead(t *testing.T) {
	const revisions = 3000
	c := newTestCache(t, Config{
		Schema: NewResourceSchema("things", nil, Index{Field: "metadata.name"}),
		Log:    LogConfig{CheckpointEvery: 4},
	})
	random := rand.New(rand.NewPCG(3, 4))
	current := map[string]int64{}
	c.Reset(nil, 0)
	states := []map[string]int64{{}}
	for revision := int64(1); revision <= revisions; revision++ {
		key := fmt.Sprint(random.IntN(40))
		change := Change{Key: key}
		if random.IntN(3) == 0 {
			delete(current, key)
		} else {
			change.Object = NewObject(ObjectConfig{Key: key, Revision: revision}, c.schema)
			current[key] = revision
		}
		c.Apply(Batch{Revision: revision, Changes: []Change{change}})
		states = append(states, maps.Clone(current))
	}
	for _, revision := range random.Perm(revisions + 1) {
		s, err := c.At(int64(revision))
		if err != nil {
			t.Fatal(err)
		}
		page, err := s.List(Query{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, o := range page.Objects {
			got[o.Key()] = o.Revision()
		}
		if !maps.Equal(got, states[revision]) {
			t.Fatalf("at %d: got %v, want %v", revision, got, states[revision])
		}
	}
	// Checkpoints are dense near the current state and sparse before, so there are far fewer than one for four events.
	list := c.checkpoints.list()
	if len(list) < 10 || len(list) > 60 {
		t.Errorf("%d checkpoints, want 10 to 60", len(list))
	}
	for i, s := range list {
		if s.indexes != nil || s.events != nil {
			t.Error("a checkpoint holds more than its objects")
		}
		if i > 0 && s.position-list[i-1].position > 2*32*4 {
			t.Errorf("%d events between two checkpoints, want at most %d", s.position-list[i-1].position, 2*32*4)
		}
	}
}

// TestPastStatesReleaseDiscardedObjects checks that checkpoints and reconstructed states hold objects no longer than
// the Log does.
func TestPastStatesReleaseDiscardedObjects(t *testing.T) {
	for name, discard := range map[string]func(*Cache){
		"old events": func(c *Cache) { c.discardOld(time.Unix(1000, 0)) },
		"a reload":   func(c *Cache) { c.Reset(nil, 100) },
		"old events, then a new": func(c *Cache) {
			c.Apply(Batch{Revision: 100, Time: time.Unix(1000, 0)})
			c.discardOld(time.Unix(1000, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCache(t, Config{Log: LogConfig{MinEvents: 1, CheckpointEvery: 1}})
			first := NewObject(ObjectConfig{Key: "a", Revision: 1}, c.schema)
			gone := weak.Make(first)
			c.Reset([]*Object{first}, 1)
			first = nil
			for revision := int64(2); revision < 10; revision++ {
				o := NewObject(ObjectConfig{Key: "a", Revision: revision}, c.schema)
				c.Apply(Batch{Revision: revision, Time: time.Unix(0, 0), Changes: []Change{{"a", o}}})
			}
			if s, err := c.At(1); err != nil || s.Get("a") != gone.Value() {
				t.Fatalf("the state at 1: %v", err)
			}
			discard(c)
			runtime.GC()
			if gone.Value() != nil {
				t.Error("an object of a discarded state is still in memory")
			}
			if _, err := c.At(1); err == nil {
				t.Error("a discarded state can still be read")
			}
		})
	}
}
