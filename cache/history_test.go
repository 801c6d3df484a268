package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestLongHistory reads every revision of a log that is long compared with the
// distance of checkpoints, in random order.
func TestLongHistory(t *testing.T) {
	const revisions = 3000
	c := newTestCache(t, Config{
		Schema: NewSchema("things", nil, Index{Field: "metadata.name"}),
		Log:    LogConfig{CheckpointEvery: 4},
	})
	random := rand.New(rand.NewPCG(3, 4))
	present := map[string]int64{}
	c.Reset(nil, 0)
	states := []map[string]int64{{}}
	for revision := int64(1); revision <= revisions; revision++ {
		key := fmt.Sprint(random.IntN(40))
		change := Change{Key: key}
		if random.IntN(3) == 0 {
			delete(present, key)
		} else {
			change.Object = NewObject(ObjectConfig{Key: key, Revision: revision}, c.schema)
			present[key] = revision
		}
		c.Apply(Batch{Revision: revision, Changes: []Change{change}})
		states = append(states, maps.Clone(present))
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
			t.Fatalf("at %d: %v, want %v", revision, got, states[revision])
		}
	}
	// Dense near the present, sparse behind: far fewer than one in four events.
	list := c.history.list()
	if len(list) < 10 || len(list) > 60 {
		t.Errorf("%d checkpoints", len(list))
	}
	for i, s := range list {
		if s.indexes != nil || s.events != nil {
			t.Error("a checkpoint holds more than its objects")
		}
		if i > 0 && s.position-list[i-1].position > 2*32*4 {
			t.Errorf("a gap of %d events", s.position-list[i-1].position)
		}
	}
}
