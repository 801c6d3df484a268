package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTestCache(t *testing.T, config Config) *Cache {
	t.Helper()
	if config.Schema == nil {
		config.Schema = NewSchema("things", nil)
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewRefuses(t *testing.T) {
	for name, config := range map[string]Config{
		"no schema":       {},
		"empty index":     {Schema: NewSchema("things", nil, Index{})},
		"two-sided index": {Schema: NewSchema("things", nil, Index{Field: "a", Label: "b"})},
	} {
		if _, err := New(config); err == nil || !strings.HasPrefix(err.Error(), "cache: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestApplyBeforeReset(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a batch without a state to apply it to was accepted")
		}
	}()
	newTestCache(t, Config{}).Apply(Batch{Revision: 1})
}

func TestWaitReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCache(t, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.WaitReady(ctx); !errors.Is(err, ErrNotReady) || !errors.Is(err, context.DeadlineExceeded) || c.Ready() {
			t.Errorf("not loaded: %v, ready %t", err, c.Ready())
		}
		if err := c.Wait(ctx, 0); !errors.Is(err, ErrNotReady) {
			t.Errorf("waiting for a revision: %v", err)
		}
		done := make(chan error)
		go func() { done <- c.WaitReady(t.Context()) }()
		synctest.Wait()
		c.Reset(nil, 1)
		if err := <-done; err != nil || !c.Ready() {
			t.Errorf("loaded: %v, ready %t", err, c.Ready())
		}
		c.Reset(nil, 2)
		if !c.Ready() {
			t.Error("loading anew made the cache not ready")
		}
	})
}

// TestWaitWithoutSource: waiters return once their revision is applied, each in
// its turn, and when their context ends.
func TestWaitWithoutSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCache(t, Config{})
		c.Reset(nil, 1)
		done := make([]chan error, 5)
		for i := range done {
			done[i] = make(chan error, 1)
			go func() { done[i] <- c.Wait(t.Context(), int64(i)) }()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		impatient := make(chan error, 1)
		go func() { impatient <- c.Wait(ctx, 4) }()
		for revision := int64(2); revision <= 4; revision++ {
			synctest.Wait()
			for i := range done {
				if returned := len(done[i]) == 1; returned != (int64(i) < revision) {
					t.Errorf("before revision %d: the waiter for %d has returned: %t", revision, i, returned)
				}
			}
			if revision == 3 {
				cancel()
				synctest.Wait()
				if err := <-impatient; !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled: %v", err)
				}
			}
			c.Apply(Batch{Revision: revision})
		}
		for i := range done {
			if err := <-done[i]; err != nil {
				t.Error(err)
			}
		}
	})
}

// stubSource answers as it is told.
type stubSource struct {
	onFresh func() int64
	err     error
}

func (s *stubSource) Fresh() int64                      { return s.onFresh() }
func (s *stubSource) Wait(context.Context, int64) error { return s.err }

func TestWaitAsksSource(t *testing.T) {
	failure := errors.New("too late")
	c := newTestCache(t, Config{Source: &stubSource{err: failure}})
	c.Reset(nil, 10)
	if err := c.Wait(t.Context(), 5); !errors.Is(err, failure) {
		t.Errorf("a revision that the cache has passed: %v", err)
	}
}

// TestSnapshotRevisionIsNotAheadOfItsState: a change between reading the source and reading the
// state must end up in the snapshot, never be counted without being there.
func TestSnapshotRevisionIsNotAheadOfItsState(t *testing.T) {
	source := new(stubSource)
	c := newTestCache(t, Config{Source: source})
	c.Reset(nil, 1)
	source.onFresh = func() int64 {
		c.Apply(Batch{Revision: 5, Changes: []Change{{"a", newTestObject(c.schema, "a")}}})
		return 4
	}
	if s := c.Snapshot(); s.Revision() != 5 || s.Get("a") == nil {
		t.Errorf("revision %d, a is %v", s.Revision(), s.Get("a"))
	}
	// The store was replaced by an older one and loaded meanwhile: what the source
	// said before is of another history.
	source.onFresh = func() int64 {
		c.Reset(nil, 3)
		return 5
	}
	if s := c.Snapshot(); s.Revision() != 3 {
		t.Errorf("revision %d of the new epoch", s.Revision())
	}
}

// TestChangedIsClosedByWhateverReadsWouldShow: the channel is closed by whatever makes a
// Read give something new.
func TestChangedIsClosedByWhateverReadsWouldShow(t *testing.T) {
	appended := 0
	c := newTestCache(t, Config{OnAppend: func() { appended++ }})
	c.Reset(nil, 1)
	for revision := int64(2); revision < 5; revision++ {
		changed, same := c.Log().whenChanged(), c.Log().whenChanged()
		select {
		case <-changed:
			t.Fatal("changed before anything happened")
		default:
		}
		if revision == 4 {
			c.Reset(nil, 4)
		} else {
			c.Apply(Batch{Revision: revision, Changes: []Change{{"a", newTestObject(c.schema, "a")}}})
		}
		<-changed
		<-same
	}
	if appended != 4 {
		t.Errorf("OnAppend was called %d times", appended)
	}
}

// TestOffersDoNotPileUp: offers that nobody takes do not pile up.
func TestOffersDoNotPileUp(t *testing.T) {
	c := newTestCache(t, Config{})
	c.Reset(nil, 1)
	offer := func(key string, revision int64, size int) {
		c.Offer(key, revision, 0, NewObject(ObjectConfig{Key: key, Revision: revision, Body: make([]byte, size)}, c.schema))
	}
	check := func(what string) {
		t.Helper()
		bytes := 0
		for _, o := range c.offers.objects {
			bytes += len(o.body)
		}
		if len(c.offers.objects) > maxOffers || bytes > maxOfferBytes || bytes != c.offers.bytes || len(c.offers.order) > 2*maxOffers {
			t.Errorf("%s: %d offers of %d bytes, %d counted, %d in order", what, len(c.offers.objects), bytes, c.offers.bytes, len(c.offers.order))
		}
	}
	offer("late", 1, 10)
	if len(c.offers.objects) != 0 {
		t.Error("an offer of what was applied already is kept")
	}
	for i := range 3 * maxOffers {
		offer(fmt.Sprint(i), int64(i+2), 10)
	}
	check("many")
	if c.offers.take(fmt.Sprint(3*maxOffers-1), 3*maxOffers+1) == nil {
		t.Error("the newest offer was dropped")
	}
	if c.offers.take("0", 2) != nil {
		t.Error("the oldest offer was kept")
	}
	for i := range 40 {
		offer("large", int64(10_000+i), 1<<20)
	}
	check("large")
	for i := range 3 * maxOffers { // offered and taken: nothing stays
		revision := int64(20_000 + i)
		offer("taken", revision, 10)
		if c.offers.take("taken", revision) == nil || c.offers.take("taken", revision) != nil {
			t.Fatal("an offer is to be taken once")
		}
	}
	check("taken")
	c.Apply(Batch{Revision: 1 << 20})
	offer("next", 1<<20+1, 10)
	if len(c.offers.objects) != 1 {
		t.Errorf("%d offers are left of the past", len(c.offers.objects))
	}
}

// TestOffersEndWithTheirStore: what was written to a store that was replaced is not what
// the new one has at the same revision.
func TestOffersEndWithTheirStore(t *testing.T) {
	c := newTestCache(t, Config{})
	c.Reset(nil, 10)
	history := uint64(0)
	offer := func(revision int64) {
		c.Offer("a", revision, history, NewObject(ObjectConfig{Key: "a", Revision: revision, Body: []byte("x")}, c.schema))
	}
	offer(12)
	c.reset(nil, 5, 0, 1)
	offer(7) // by a write of before, whose answer comes late
	for _, revision := range []int64{12, 7} {
		if c.offers.take("a", revision) != nil {
			t.Errorf("the offer of %d outlived its store", revision)
		}
	}
	history = 1
	offer(7)
	if c.offers.take("a", 7) == nil || c.offers.bytes != 0 {
		t.Errorf("the offer behind it was not taken, or %d bytes are left", c.offers.bytes)
	}
}

// TestReadersDoNotAllocate holds the reads that serve requests to their promise.
func TestReadersDoNotAllocate(t *testing.T) {
	c := benchCache(t, 1000, 10, Index{Field: "spec.nodeName"})
	o := c.Snapshot().Get("namespace-0/workload-0-7d4b9c6f5-00000")
	if _, err := o.Encoding(1, encodeTest(1)); err != nil {
		t.Fatal(err)
	}
	encode := encodeTest(1)
	dst := make([]*Object, 0, 1000)
	for name, read := range map[string]func(){
		"get":      func() { c.Snapshot().Get(o.Key()) },
		"list":     func() { _, _ = c.Snapshot().List(Query{}, dst) },
		"encoding": func() { _, _ = o.Encoding(1, encode) },
		"labels":   func() { o.Labels().Lookup("tier") },
		"fields":   func() { o.Fields().Get("status.phase") },
	} {
		if n := testing.AllocsPerRun(100, read); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// TestRetiredCacheShowsWhatItHeld: a cache that is not kept current any more shows what it
// held and nothing less, and takes no part of the budget.
func TestRetiredCacheShowsWhatItHeld(t *testing.T) {
	budget := NewBudget(1 << 20)
	schema := NewSchema("things", budget)
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	object := func(key string, revision int64) *Object {
		return NewObject(ObjectConfig{Key: key, Revision: revision, Body: []byte("body")}, schema)
	}
	c.Reset([]*Object{object("a", 1), object("b", 1)}, 1)
	c.Apply(Batch{Revision: 2, Time: time.Now(), Changes: []Change{{"a", object("a", 2)}}})
	before, position := c.Snapshot(), c.Snapshot().Position()
	encode := func(*Object) ([]byte, error) { return []byte("other"), nil }
	if _, err := before.Get("a").Encoding(1, encode); err != nil {
		t.Fatal(err)
	}
	c.Retire()
	c.Retire()
	c.Apply(Batch{Revision: 3, Changes: []Change{{"a", nil}}})
	c.Reset(nil, 4)
	for name, s := range map[string]Snapshot{"before": before, "after": c.Snapshot()} {
		page, err := s.List(Query{}, nil)
		if err != nil || len(page.Objects) != 2 || s.Revision() != 2 || s.Get("a") == nil {
			t.Errorf("%s: %d objects at %d, %v", name, len(page.Objects), s.Revision(), err)
		}
		if b, err := s.Get("a").Encoding(1, encode); err != nil || string(b) != "other" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if !c.Retired() || !c.Ready() {
		t.Errorf("retired %v, ready %v", c.Retired(), c.Ready())
	}
	if _, _, err := c.Log().Read(position, nil); !errors.Is(err, ErrReset) {
		t.Errorf("the log goes on: %v", err)
	}
	if _, _, err := c.Log().Read(c.Snapshot().Position(), nil); err != nil {
		t.Errorf("the log after the last state: %v", err)
	}
	if used, history, bodies := budget.Used(), budget.LogBytes(), budget.bodies.Load(); used != 0 || history != 0 || bodies != 0 {
		t.Errorf("still takes %d bytes of encodings, %d of the past, %d of bodies", used, history, bodies)
	}
}
