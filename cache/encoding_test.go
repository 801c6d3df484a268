package cache

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func newTestObject(schema *ResourceSchema, key string) *Object {
	return NewObject(ObjectConfig{Key: key, Body: []byte("body of " + key)}, schema)
}

// encodeTest returns an encoder whose result depends on the object and the id.
func encodeTest(id EncodingID) func(*Object) ([]byte, error) {
	return func(o *Object) ([]byte, error) {
		return fmt.Appendf(nil, "%s as %d%s", o.Body(), id, bytes.Repeat([]byte("."), int(id)*10)), nil
	}
}

// TestConcurrentCallersShareAnEncoding checks that concurrent callers share one call of the encoder and its result.
func TestConcurrentCallersShareAnEncoding(t *testing.T) {
	o := newTestObject(NewResourceSchema("things", nil), "a")
	var calls atomic.Int32
	release := make(chan struct{})
	results := make([][]byte, 8)
	var callers sync.WaitGroup
	for i := range results {
		callers.Go(func() {
			results[i], _ = o.Encoding(1, func(*Object) ([]byte, error) {
				calls.Add(1)
				<-release
				return []byte("made"), nil
			})
		})
	}
	close(release)
	callers.Wait()
	if calls.Load() != 1 {
		t.Errorf("the encoder was called %d times, want 1", calls.Load())
	}
	for _, b := range results {
		if string(b) != "made" {
			t.Errorf("got encoding %q, want made", b)
		}
	}
}

// TestFailedEncodersCanBeCalledAgain checks that an encoder can be called again after an error or a panic.
func TestFailedEncodersCanBeCalledAgain(t *testing.T) {
	o := newTestObject(NewResourceSchema("things", nil), "a")
	failure := errors.New("broken")
	if _, err := o.Encoding(1, func(*Object) ([]byte, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("got error %v, want %v", err, failure)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the encoder's panic did not reach the caller")
			}
		}()
		_, _ = o.Encoding(1, func(*Object) ([]byte, error) { panic("broken") })
	}()
	if b, err := o.Encoding(1, encodeTest(1)); err != nil || len(b) == 0 {
		t.Errorf("after failures: got encoding %q and error %v", b, err)
	}
}

func TestEncodersMayUseOtherEncodingsOfTheirObject(t *testing.T) {
	o := newTestObject(NewResourceSchema("things", nil), "a")
	b, err := o.Encoding(1, func(o *Object) ([]byte, error) {
		inner, err := o.Encoding(2, encodeTest(2))
		return append([]byte("outer "), inner...), err
	})
	if err != nil || !bytes.HasPrefix(b, []byte("outer body of a as 2")) {
		t.Errorf("got encoding %q and error %v, want one that contains encoding 2", b, err)
	}
}

// keptCost returns the memory of a kept encoding: at least its bytes, and not much more.
func (o *Object) keptCost(id EncodingID) int64 {
	s := o.cells.cell(uint32(id)).kept.Load()
	room := s.cost() - keptOverhead
	if n := int64(len(s.bytes)); room < n || room > n+n/8+64 {
		panic(fmt.Sprintf("an encoding of %d bytes counts as %d", n, room))
	}
	return s.cost()
}

// budgetModel uses a Budget at random, and compares its counts with the encodings that are kept.
type budgetModel struct {
	limit   int64
	budget  *Budget
	schemas []*ResourceSchema
	objects []*Object // of the two schemas in turn
	retired []bool
	history int64
}

func newBudgetModel(limit int64) *budgetModel {
	m := &budgetModel{limit: limit, budget: NewBudget(limit), objects: make([]*Object, 6)}
	m.schemas = []*ResourceSchema{NewResourceSchema("one", m.budget), NewResourceSchema("two", m.budget)}
	for i := range m.objects {
		m.objects[i] = newTestObject(m.schemas[i%2], fmt.Sprint(i))
	}
	m.retired = make([]bool, len(m.objects))
	return m
}

// kept returns the kept encoding of an object, if any.
func (m *budgetModel) kept(at int, id EncodingID) ([]byte, bool) {
	for c := m.objects[at].cells.head.Load(); c != nil; c = c.next {
		if s := c.kept.Load(); s != nil && c.number == uint32(id) {
			return s.bytes, true
		}
	}
	return nil, false
}

func (m *budgetModel) encode(t *rapid.T) {
	at, id := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object"), EncodingID(rapid.IntRange(1, 30).Draw(t, "id"))
	_, known := m.kept(at, id)
	before, made := m.budget.Used(), false
	got, err := m.objects[at].Encoding(id, func(o *Object) ([]byte, error) { made = true; return encodeTest(id)(o) })
	want, _ := encodeTest(id)(m.objects[at])
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got encoding %q and error %v, want %q", got, err, want)
	}
	if made == known {
		t.Fatalf("the encoder was called: %t, although the encoding was kept: %t", made, known)
	}
	_, kept := m.kept(at, id)
	if cost := int64(len(want)) + keptOverhead + 64; !kept && !m.retired[at] && before+m.history+cost <= m.limit {
		t.Fatalf("an encoding of cost %d was not kept, although encodings use %d and logs %d of %d", cost, before, m.history, m.limit)
	}
	if m.retired[at] && kept {
		t.Fatal("an encoding of a retired object was kept")
	}
}

func (m *budgetModel) retire(t *rapid.T) {
	at := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object")
	m.objects[at].cells.retire(m.budget)
	m.retired[at] = true
}

func (m *budgetModel) grow(t *rapid.T) {
	more := rapid.Int64Range(-m.history, 300).Draw(t, "history")
	m.history += more
	m.budget.addLogBytes(more)
}

func (m *budgetModel) check(t *rapid.T) {
	var used int64
	var want [2]int64
	for id := EncodingID(1); id <= 30; id++ {
		for at := range m.objects {
			if b, ok := m.kept(at, id); ok {
				want[at%2] += int64(len(b))
				used += m.objects[at].keptCost(id)
			}
		}
	}
	if got := [2]int64{m.schemas[0].EncodingBytes(), m.schemas[1].EncodingBytes()}; got != want {
		t.Fatalf("the schemas count %d bytes, want %d", got, want)
	}
	if m.budget.Used() != used || m.budget.LogBytes() != m.history {
		t.Fatalf("the budget counts %d for encodings and %d for logs, want %d and %d", m.budget.Used(), m.budget.LogBytes(), used, m.history)
	}
	if used > 0 && used+m.history > m.limit {
		t.Fatalf("encodings use %d and logs %d, more than the limit %d", used, m.history, m.limit)
	}
}

func TestBudgetMatchesItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newBudgetModel(rapid.Int64Range(300, 2000).Draw(t, "limit"))
		t.Repeat(map[string]func(*rapid.T){"encode": m.encode, "retire": m.retire, "history": m.grow, "": m.check})
	})
}

// TestBudgetCountsConcurrentUseExactly checks that with concurrent use every encoding is right and the count ends at
// zero.
func TestBudgetCountsConcurrentUseExactly(t *testing.T) {
	budget := NewBudget(3000)
	schema := NewResourceSchema("things", budget)
	objects := make([]*Object, 20)
	for i := range objects {
		objects[i] = newTestObject(schema, fmt.Sprint(i))
	}
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range 5000 {
				o, id := objects[(i*7+w)%len(objects)], EncodingID(1+(i+w)%5)
				got, err := o.Encoding(id, encodeTest(id))
				want, _ := encodeTest(id)(o)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("got encoding %q and error %v, want %q", got, err, want)
					return
				}
				if i > 4000 && i%50 == 0 {
					o.cells.retire(budget)
				}
			}
		})
	}
	workers.Wait()
	for _, o := range objects {
		o.cells.retire(budget)
	}
	if budget.Used() != 0 || budget.sentinel.newer != &budget.sentinel || schema.EncodingBytes() != 0 {
		t.Errorf("after all objects are retired, the budget counts %d bytes and the schema %d, want 0", budget.Used(), schema.EncodingBytes())
	}
}

// TestFramesAreBuiltOncePerEvent checks that a frame is built once for each event and key, and dropped with the
// event.
func TestFramesAreBuiltOncePerEvent(t *testing.T) {
	budget := NewBudget(0)
	schema := NewResourceSchema("things", budget)
	c, err := New(Config{Schema: schema, Log: LogConfig{MaxEvents: 1}})
	if err != nil {
		t.Fatal(err)
	}
	c.Reset(nil, 1)
	position := c.Snapshot().Position()
	c.Apply(Batch{Revision: 2, Changes: []Change{{"a", newTestObject(schema, "a")}}})
	events, _, err := c.Log().Read(position, nil)
	if err != nil {
		t.Fatal(err)
	}
	built := 0
	for range 3 {
		for key := range FrameKey(2) {
			frame, err := events[0].Frame(key, func() ([]byte, error) { built++; return fmt.Appendf(nil, "frame %d", key), nil })
			if err != nil || string(frame) != fmt.Sprint("frame ", key) {
				t.Fatalf("frame %q, %v", frame, err)
			}
		}
	}
	if built != 2 || schema.FrameBytes() != int64(len("frame 0")*2) {
		t.Errorf("built %d frames of %d bytes, want 2 of %d", built, schema.FrameBytes(), len("frame 0")*2)
	}
	c.Apply(Batch{Revision: 3, Changes: []Change{{Key: "a"}}})
	if schema.FrameBytes() != 0 || budget.Used() != 0 {
		t.Errorf("%d bytes of frames are still counted after the event was discarded", schema.FrameBytes())
	}
}
