package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
)

// movingSource is a Source whose revision the writer raises only after it has applied a batch, as a subscription
// does.
type movingSource struct{ fresh atomic.Int64 }

func (s *movingSource) Fresh() int64                      { return s.fresh.Load() }
func (s *movingSource) Wait(context.Context, int64) error { return nil }

const concurrentKeys = 40

// writePairs applies batches that preserve an invariant: both objects of a pair have the same revision, or neither
// exists.
func writePairs(c *Cache, source *movingSource, revisions int64) {
	random := rand.New(rand.NewPCG(1, 2))
	load := func(revision int64) {
		var all []*Object
		for i := range concurrentKeys / 2 {
			all = append(all, pairObjects(c.schema, i, revision)...)
		}
		source.fresh.Store(0)
		c.Reset(all, revision)
		source.fresh.Store(revision)
	}
	load(1)
	for revision := int64(2); revision <= revisions; revision++ {
		if revision%2500 == 0 {
			load(revision)
			continue
		}
		pair := random.IntN(concurrentKeys / 2)
		batch := Batch{Revision: revision, Time: time.Unix(revision, 0)}
		for _, o := range pairObjects(c.schema, pair, revision) {
			change := Change{Key: o.Key(), Object: o}
			if revision%5 == 0 {
				change.Object = nil
			}
			batch.Changes = append(batch.Changes, change)
		}
		c.Apply(batch)
		source.fresh.Store(revision)
	}
}

func pairObjects(s *ResourceSchema, pair int, revision int64) (both []*Object) {
	for _, side := range []string{"left", "right"} {
		key := fmt.Sprintf("%s/%02d", side, pair)
		both = append(both, NewObject(ObjectConfig{
			Key: key, Revision: revision, Body: fmt.Appendf(nil, "%s@%d", key, revision),
			Fields: fields.Set{"pair": fmt.Sprint(pair)},
		}, s))
	}
	return both
}

// TestConcurrentReadersSeeConsistentStates runs readers of every kind concurrently with one writer.
func TestConcurrentReadersSeeConsistentStates(t *testing.T) {
	source := new(movingSource)
	c, err := New(Config{
		Schema: NewResourceSchema("pairs", NewBudget(4000), Index{Field: "pair"}),
		Source: source,
		Log:    LogConfig{MinEvents: 4, MaxEvents: 300, CheckpointEvery: 16},
	})
	if err != nil {
		t.Fatal(err)
	}
	revisions := int64(12_000)
	var done atomic.Bool
	var readers sync.WaitGroup
	for name, read := range map[string]func(*testing.T, *Cache) error{
		"lists": readLists, "follows": readFollowing, "past": readPast, "encodings": readEncodings,
	} {
		readers.Go(func() {
			if err := c.WaitReady(t.Context()); err != nil {
				t.Error(err)
				return
			}
			for !done.Load() {
				if err := read(t, c); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	writePairs(c, source, revisions)
	done.Store(true)
	readers.Wait()
	if got := c.Snapshot().Revision(); got != revisions {
		t.Errorf("ended at revision %d, want %d", got, revisions)
	}
}

// checkPairs checks the invariant of writePairs, and that no object is newer than limit.
func checkPairs(objects []*Object, limit int64) error {
	left := map[string]int64{}
	for _, o := range objects {
		if o.Revision() > limit {
			return fmt.Errorf("%s@%d in a state of revision %d", o.Key(), o.Revision(), limit)
		}
		if o.Namespace() == "left" {
			left[o.Name()] = o.Revision()
		} else if left[o.Name()] != o.Revision() {
			return fmt.Errorf("the objects of pair %s are at revisions %d and %d", o.Name(), left[o.Name()], o.Revision())
		} else {
			delete(left, o.Name())
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("one object of these pairs is missing: %v", left)
	}
	return nil
}

func readLists(_ *testing.T, c *Cache) error {
	before := c.config.Source.Fresh()
	s := c.Snapshot()
	if s.Revision() < before {
		return fmt.Errorf("snapshot of revision %d, but the source was at %d before", s.Revision(), before)
	}
	page, err := s.List(Query{}, nil)
	if err != nil {
		return err
	}
	if len(page.Objects) != s.Len() {
		return fmt.Errorf("listed %d of %d objects", len(page.Objects), s.Len())
	}
	if err := checkPairs(page.Objects, s.Revision()); err != nil {
		return err
	}
	pair := fmt.Sprint(rand.IntN(concurrentKeys / 2))
	page, err = s.List(Query{Field: fields.OneTermEqualSelector("pair", pair)}, nil)
	if err != nil || page.Index != "pair" || len(page.Objects)%2 != 0 {
		return fmt.Errorf("pair %s: listed %d objects by index %q: %w", pair, len(page.Objects), page.Index, err)
	}
	return checkPairs(page.Objects, s.Revision())
}

// readFollowing follows the Log from a snapshot for a while. Its copy must equal every later snapshot that it
// reaches.
func readFollowing(_ *testing.T, c *Cache) error {
	s := c.Snapshot()
	page, err := s.List(Query{}, nil)
	if err != nil {
		return err
	}
	mirror := map[string]*Object{}
	for _, o := range page.Objects {
		mirror[o.Key()] = o
	}
	position, revision := s.Position(), s.state.revision
	for range 50 {
		events, next, err := c.Log().Read(position, nil)
		if errors.Is(err, ErrReset) || errors.As(err, new(ErrTooOld)) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Revision < revision {
				return fmt.Errorf("event of %d after %d", e.Revision, revision)
			}
			if mirror[e.Key()] != e.Prev {
				return fmt.Errorf("event of %s at revision %d replaces another object than the current one", e.Key(), e.Revision)
			}
			revision = e.Revision
			if e.Object == nil {
				delete(mirror, e.Key())
			} else {
				mirror[e.Key()] = e.Object
			}
		}
		position = next
		now := c.Snapshot()
		if now.Epoch() == s.Epoch() && now.Position() < position {
			return fmt.Errorf("snapshot at %d is behind the log at %d", now.Position(), position)
		}
		if now.Position() != position {
			continue
		}
		all, _ := now.List(Query{}, nil)
		copied := map[string]*Object{}
		for _, o := range all.Objects {
			copied[o.Key()] = o
		}
		if !maps.Equal(copied, mirror) {
			return fmt.Errorf("the copy made from events differs from the snapshot at revision %d", revision)
		}
	}
	return nil
}

func readPast(_ *testing.T, c *Cache) error {
	revision := c.Snapshot().Revision() - rand.Int64N(150)
	s, err := c.At(revision)
	if errors.As(err, new(ErrTooOld)) || errors.As(err, new(errFuture)) {
		return nil
	}
	if err != nil {
		return err
	}
	page, err := s.List(Query{}, nil)
	if err != nil {
		return err
	}
	return checkPairs(page.Objects, revision)
}

func readEncodings(_ *testing.T, c *Cache) error {
	page, err := c.Snapshot().List(Query{Limit: 10}, nil)
	if err != nil {
		return err
	}
	for _, o := range page.Objects {
		id := EncodingID(1 + rand.IntN(3))
		got, err := o.Encoding(id, encodeTest(id))
		want, _ := encodeTest(id)(o)
		if err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("encoding %d of %s is %q: %w", id, o.Key(), got, err)
		}
	}
	events, _, err := c.Log().Read(c.Log().ring.First(), nil)
	if err != nil {
		return nil // lapped, or reloaded
	}
	for _, e := range events {
		frame, err := e.Frame(1, func() ([]byte, error) { return fmt.Appendf(nil, "frame %d", e.Pos), nil })
		if err != nil || string(frame) != fmt.Sprint("frame ", e.Pos) {
			return fmt.Errorf("frame of %d is %q: %w", e.Pos, frame, err)
		}
	}
	return nil
}

// TestAtFindsThePreviousStateDuringApply reads the revision just below the current one. At must reconstruct it even if
// the newest events are not in the Log yet.
func TestAtFindsThePreviousStateDuringApply(t *testing.T) {
	schema := NewResourceSchema("things", nil)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	c.Reset([]*Object{newTestObject(schema, "a")}, 1)
	seen := make(chan int64, 1)
	c.config.OnAppend = func() {
		current := c.current.Load()
		s, err := c.At(current.revision - 1)
		if err != nil || s.Revision() != current.revision-1 {
			t.Errorf("At(%d): %v", current.revision-1, err)
		}
		seen <- s.Revision()
	}
	for revision := int64(2); revision < 600; revision++ {
		c.Apply(Batch{Revision: revision, Changes: []Change{{"a", newTestObject(schema, "a")}}})
		if got := <-seen; got != revision-1 {
			t.Fatalf("At returned revision %d, want %d", got, revision-1)
		}
	}
	// Between the publication of a state and the publication of its events.
	current := c.current.Load()
	next := current.apply(Batch{Revision: 600, Changes: []Change{{Key: "a"}}}, 0)
	c.current.Store(next)
	if s, err := c.At(599); err != nil || s.Get("a") == nil {
		t.Errorf("the state before an event that is not in the log yet: %v", err)
	}
	if s, err := c.At(597); err != nil || s.Get("a") == nil {
		t.Errorf("an earlier state: %v", err)
	}
}
