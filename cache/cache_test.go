package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func newTestCache(t *testing.T, config Config) *Cache {
	t.Helper()
	if config.Schema == nil {
		config.Schema = NewResourceSchema("things", nil)
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewRejectsInvalidConfigs(t *testing.T) {
	for name, config := range map[string]Config{
		"no schema":       {},
		"empty index":     {Schema: NewResourceSchema("things", nil, Index{})},
		"two-sided index": {Schema: NewResourceSchema("things", nil, Index{Field: "a", Label: "b"})},
	} {
		if _, err := New(config); err == nil || !strings.HasPrefix(err.Error(), "cache: ") {
			t.Errorf("%s: got error %v, want one of this package", name, err)
		}
	}
}

func TestApplyBeforeResetPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Apply did not panic without a state")
		}
	}()
	newTestCache(t, Config{}).Apply(Batch{Revision: 1})
}

func TestWaitReadyWaitsForTheFirstLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCache(t, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.WaitReady(ctx); !errors.Is(err, ErrNotReady) || !errors.Is(err, context.DeadlineExceeded) || c.Ready() {
			t.Errorf("not loaded: got error %v, Ready %t; want ErrNotReady, false", err, c.Ready())
		}
		if err := c.Wait(ctx, 0); !errors.Is(err, ErrNotReady) {
			t.Errorf("waiting for a revision: got error %v, want ErrNotReady", err)
		}
		done := make(chan error)
		go func() { done <- c.WaitReady(t.Context()) }()
		synctest.Wait()
		c.Reset(nil, 1)
		if err := <-done; err != nil || !c.Ready() {
			t.Errorf("loaded: got error %v, Ready %t", err, c.Ready())
		}
		c.Reset(nil, 2)
		if !c.Ready() {
			t.Error("a reload made the cache not ready")
		}
	})
}

// TestWaitWithoutSourceFails checks that without a Source, Wait fails for a revision that is not applied.
func TestWaitWithoutSourceFails(t *testing.T) {
	c := newTestCache(t, Config{})
	c.Reset(nil, 1)
	c.Apply(Batch{Revision: 3})
	for revision, want := range map[int64]error{1: nil, 3: nil, 4: errFuture{Requested: 4, Current: 3}} {
		if err := c.Wait(t.Context(), revision); err != want {
			t.Errorf("revision %d: got error %v, want %v", revision, err, want)
		}
	}
}

// stubSource is a Source with fixed results.
type stubSource struct {
	onFresh func() int64
	err     error
}

func (s *stubSource) Fresh() int64                      { return s.onFresh() }
func (s *stubSource) Wait(context.Context, int64) error { return s.err }

func TestWaitReturnsTheErrorOfTheSource(t *testing.T) {
	failure := errors.New("too late")
	c := newTestCache(t, Config{Source: &stubSource{err: failure}})
	c.Reset(nil, 10)
	if err := c.Wait(t.Context(), 5); !errors.Is(err, failure) {
		t.Errorf("a revision that the cache has passed: got error %v, want %v", err, failure)
	}
}

// TestSnapshotRevisionIsNotAheadOfItsState applies a change between the reads of the source and of the state. The
// snapshot must have the change, or a lower revision.
func TestSnapshotRevisionIsNotAheadOfItsState(t *testing.T) {
	source := new(stubSource)
	c := newTestCache(t, Config{Source: source})
	c.Reset(nil, 1)
	source.onFresh = func() int64 {
		c.Apply(Batch{Revision: 5, Changes: []Change{{"a", newTestObject(c.schema, "a")}}})
		return 4
	}
	if s := c.Snapshot(); s.Revision() != 5 || s.Get("a") == nil {
		t.Errorf("snapshot at revision %d, a is %v; want revision 5 with a", s.Revision(), s.Get("a"))
	}
	// The store is replaced by an older one and the cache reloaded, after the source returned a revision.
	source.onFresh = func() int64 {
		c.Reset(nil, 3)
		return 5
	}
	if s := c.Snapshot(); s.Revision() != 3 {
		t.Errorf("snapshot at revision %d in the new epoch, want 3", s.Revision())
	}
}

// TestOnAppendIsCalledForEachLoadAndBatch counts the calls of OnAppend for loads, new batches and a repeated batch.
func TestOnAppendIsCalledForEachLoadAndBatch(t *testing.T) {
	appended := 0
	c := newTestCache(t, Config{OnAppend: func() { appended++ }})
	c.Reset(nil, 1)
	c.Apply(Batch{Revision: 2, Changes: []Change{{"a", newTestObject(c.schema, "a")}}})
	c.Apply(Batch{Revision: 3})
	c.Apply(Batch{Revision: 3})
	c.Reset(nil, 4)
	if appended != 4 {
		t.Errorf("OnAppend was called %d times, want 4", appended)
	}
}

// TestUntakenOffersAreDropped checks that the number and size of offers that no event takes are limited.
func TestUntakenOffersAreDropped(t *testing.T) {
	c := newTestCache(t, Config{})
	c.Reset(nil, 1)
	offer := func(key string, size int) *Offer {
		return c.Offer(key, []byte(key), size, func(revision int64) *Object {
			return NewObject(ObjectConfig{Key: key, Revision: revision}, c.schema)
		})
	}
	take := func(key string) bool {
		taken := c.offers.take(key, []byte(key), 1)
		c.offers.applied(1)
		return taken != nil
	}
	check := func(what string, want int) {
		t.Helper()
		bytes := 0
		for _, o := range c.offers.order {
			bytes += o.size
		}
		if n := len(c.offers.order); n != want || bytes > maxOfferBytes || bytes != c.offers.bytes {
			t.Errorf("%s: %d offers, want %d; they have %d bytes, %d are counted", what, n, want, bytes, c.offers.bytes)
		}
	}
	for i := range 3 * maxOffers {
		offer(fmt.Sprint(i), 10)
	}
	check("many", maxOffers)
	if !take(fmt.Sprint(3*maxOffers - 1)) {
		t.Error("the newest offer was dropped")
	}
	if take("0") {
		t.Error("the oldest offer was kept")
	}
	for range 40 {
		offer("large", 1<<20)
	}
	check("large", 16)
	for range 3 * maxOffers { // taken offers are dropped
		offer("taken", 10)
		if !take("taken") || take("taken") {
			t.Fatal("an offer was not taken exactly once")
		}
	}
	check("taken", 15)
	c.Reset(nil, 1)
	check("reloaded", 0)
	c.Written(offer("late", 10), 1)
	check("applied already", 0)
	o := offer("early", 10)
	c.Written(o, 2)
	check("not applied yet", 1)
	o.Withdraw()
	o.Withdraw()
	check("withdrawn", 0)
}

// TestOffersAreTakenByTheirValue checks that an event adopts the offer with its key and bytes. Other writers of the
// key and the order in which offers end do not matter.
func TestOffersAreTakenByTheirValue(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c := newTestCache(t, Config{})
		c.Reset(nil, 1)
		left := map[string]int{} // "key value" to the number of offers
		var open []*Offer
		for range 60 {
			key, value := fmt.Sprint(random.IntN(3)), fmt.Sprint(random.IntN(3))
			id := key + " " + value
			switch random.IntN(3) {
			case 0:
				open = append(open, c.Offer(key, []byte(value), 1, func(revision int64) *Object {
					return NewObject(ObjectConfig{Key: key, Revision: revision, Body: []byte(id)}, c.schema)
				}))
				left[id]++
			case 1:
				object := c.offers.take(key, []byte(value), 7)
				if (object != nil) != (left[id] > 0) {
					t.Fatalf("%s: taken %t although %d offers are left", id, object != nil, left[id])
				}
				if object == nil {
					continue
				}
				if o := object.Object(7); o.Revision() != 7 || string(o.Body()) != id {
					t.Fatalf("%s: got %q at %d, want %q at 7", id, o.Body(), o.Revision(), id)
				}
				left[id]--
			case 2:
				if len(open) == 0 {
					continue
				}
				o := open[random.IntN(len(open))]
				if o.value != nil { // not taken
					left[o.key+" "+string(o.value)]--
				}
				o.Withdraw()
			}
		}
	}
}

// TestReadsDoNotAllocate checks that the reads behind GET and LIST requests do not allocate.
func TestReadsDoNotAllocate(t *testing.T) {
	c := benchCache(t, 1000, 10, Index{Field: "spec.nodeName"})
	o := c.Snapshot().Get("namespace-0/workload-0-7d4b9c6f5-00000")
	if _, err := o.Encoding(1, encodeTest(1)); err != nil {
		t.Fatal(err)
	}
	encode := encodeTest(1)
	dst := make([]*Object, 0, 1000)
	shard := NewShard(ByIdentity, HashRange{0, 1 << 62})
	for name, read := range map[string]func(){
		"get":      func() { c.Snapshot().Get(o.Key()) },
		"list":     func() { _, _ = c.Snapshot().List(Query{}, dst) },
		"shard":    func() { _, _ = c.Snapshot().List(Query{Shard: shard}, dst) },
		"encoding": func() { _, _ = o.Encoding(1, encode) },
		"labels":   func() { o.Labels().Lookup("tier") },
		"fields":   func() { o.Fields().Get("status.phase") },
	} {
		if n := testing.AllocsPerRun(100, read); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// TestRetiredCacheServesItsLastState checks that a retired cache still serves its last state, and does not use the
// budget.
func TestRetiredCacheServesItsLastState(t *testing.T) {
	budget := NewBudget(1 << 20)
	schema := NewResourceSchema("things", budget)
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
			t.Errorf("%s: %d objects at %d, error %v; want 2 objects at 2", name, len(page.Objects), s.Revision(), err)
		}
		if b, err := s.Get("a").Encoding(1, encode); err != nil || string(b) != "other" {
			t.Errorf("%s: got encoding %q and error %v, want other", name, b, err)
		}
	}
	if !c.Retired() || !c.Ready() {
		t.Errorf("Retired %v, Ready %v; want both", c.Retired(), c.Ready())
	}
	if _, _, err := c.Log().Read(position, nil); !errors.Is(err, ErrReset) {
		t.Errorf("reading the log of the previous epoch: got error %v, want ErrReset", err)
	}
	if _, _, err := c.Log().Read(c.Snapshot().Position(), nil); err != nil {
		t.Errorf("reading the log after the last state: %v", err)
	}
	if used, history, bodies := budget.Used(), budget.LogBytes(), budget.bodies.Load(); used != 0 || history != 0 || bodies != 0 {
		t.Errorf("the budget still counts %d bytes of encodings, %d of logs, %d of bodies", used, history, bodies)
	}
}
