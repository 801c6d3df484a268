package cache

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

func newTestObject(schema *Schema, key string) *Object {
	return NewObject(ObjectConfig{Key: key, Body: []byte("body of " + key)}, schema)
}

// encodeTest makes the one right answer for an object and an id.
func encodeTest(id EncodingID) func(*Object) ([]byte, error) {
	return func(o *Object) ([]byte, error) {
		return fmt.Appendf(nil, "%s as %d%s", o.Body(), id, bytes.Repeat([]byte("."), int(id)*10)), nil
	}
}

// TestEncodingMadeOnce: callers that meet share one result and one call.
func TestEncodingMadeOnce(t *testing.T) {
	o := newTestObject(NewSchema("things", nil), "a")
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
		t.Errorf("encoded %d times", calls.Load())
	}
	for _, b := range results {
		if string(b) != "made" {
			t.Errorf("got %q", b)
		}
	}
}

// TestEncodingFailure: a failed or panicking encoder leaves the way free.
func TestEncodingFailure(t *testing.T) {
	o := newTestObject(NewSchema("things", nil), "a")
	failure := errors.New("broken")
	if _, err := o.Encoding(1, func(*Object) ([]byte, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("error %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the encoder's panic was swallowed")
			}
		}()
		_, _ = o.Encoding(1, func(*Object) ([]byte, error) { panic("broken") })
	}()
	if b, err := o.Encoding(1, encodeTest(1)); err != nil || len(b) == 0 {
		t.Errorf("after failures: %q, %v", b, err)
	}
}

// TestEncodingNested: an encoder may ask for another encoding of its object.
func TestEncodingNested(t *testing.T) {
	o := newTestObject(NewSchema("things", nil), "a")
	b, err := o.Encoding(1, func(o *Object) ([]byte, error) {
		inner, err := o.Encoding(2, encodeTest(2))
		return append([]byte("outer "), inner...), err
	})
	if err != nil || !bytes.HasPrefix(b, []byte("outer body of a as 2")) {
		t.Errorf("got %q, %v", b, err)
	}
}

// budgetModel is what a Budget should hold: a queue.
type budgetModel struct {
	limit   int64
	budget  *Budget
	schemas []*Schema
	objects []*Object // of the two schemas in turn
	retired []bool
	queue   []budgetItem // oldest first
}

type budgetItem struct {
	object int
	id     EncodingID
	cost   int64
}

func newBudgetModel(limit int64) *budgetModel {
	m := &budgetModel{limit: limit, budget: NewBudget(limit), objects: make([]*Object, 6)}
	m.schemas = []*Schema{NewSchema("one", m.budget), NewSchema("two", m.budget)}
	for i := range m.objects {
		m.objects[i] = newTestObject(m.schemas[i%2], fmt.Sprint(i))
	}
	m.retired = make([]bool, len(m.objects))
	return m
}

func (m *budgetModel) used() (sum int64) {
	for _, x := range m.queue {
		sum += x.cost
	}
	return sum
}

func (m *budgetModel) encode(t *rapid.T) {
	at, id := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object"), EncodingID(rapid.IntRange(1, 30).Draw(t, "id"))
	made := false
	got, err := m.objects[at].Encoding(id, func(o *Object) ([]byte, error) { made = true; return encodeTest(id)(o) })
	want, _ := encodeTest(id)(m.objects[at])
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("wrong answer %q, %v", got, err)
	}
	known := slices.ContainsFunc(m.queue, func(x budgetItem) bool { return x.object == at && x.id == id })
	if made == known {
		t.Fatalf("made %t although kept %t", made, known)
	}
	kept, ok := m.objects[at].cells.find(uint32(id))
	if !ok {
		if cost := int64(len(want)) + storedOverhead; !m.retired[at] && cost+64 <= m.limit {
			t.Fatalf("%d of %d was not kept", cost, m.limit)
		}
		return
	}
	if made {
		m.queue = append(m.queue, budgetItem{at, id, int64(cap(kept)) + storedOverhead})
		for m.used() > m.limit {
			m.queue = m.queue[1:]
		}
	}
}

func (m *budgetModel) retire(t *rapid.T) {
	at := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object")
	m.objects[at].cells.retire(m.budget)
	m.retired[at] = true
	m.queue = slices.DeleteFunc(m.queue, func(x budgetItem) bool { return x.object == at })
}

func (m *budgetModel) check(t *rapid.T) {
	if m.budget.Used() != m.used() || m.budget.Used() > m.limit {
		t.Fatalf("used %d, want %d of %d", m.budget.Used(), m.used(), m.limit)
	}
	for id := EncodingID(1); id <= 30; id++ {
		var want [2]int64
		for _, x := range m.queue {
			if x.id == id {
				b, _ := m.objects[x.object].cells.find(uint32(id))
				want[x.object%2] += int64(len(b))
			}
		}
		if m.schemas[0].EncodingBytes(id) != want[0] || m.schemas[1].EncodingBytes(id) != want[1] {
			t.Fatalf("encoding %d counts %d and %d, want %d", id, m.schemas[0].EncodingBytes(id), m.schemas[1].EncodingBytes(id), want)
		}
	}
}

func TestBudgetModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newBudgetModel(rapid.Int64Range(300, 2000).Draw(t, "limit"))
		t.Repeat(map[string]func(*rapid.T){"encode": m.encode, "retire": m.retire, "": m.check})
	})
}

// TestBudgetConcurrent: under pressure from all sides every answer is right and
// the account ends at zero.
func TestBudgetConcurrent(t *testing.T) {
	budget := NewBudget(3000)
	schema := NewSchema("things", budget)
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
					t.Errorf("wrong answer %q, %v", got, err)
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
	if budget.Used() != 0 || budget.oldest != nil || budget.newest != nil || schema.EncodingBytes(1) != 0 {
		t.Errorf("%d bytes used, %d counted after all are gone", budget.Used(), schema.EncodingBytes(1))
	}
}

// TestFrames: a frame is built once per event and key, and given up with the event.
func TestFrames(t *testing.T) {
	budget := NewBudget(0)
	schema := NewSchema("things", budget)
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
		t.Errorf("built %d frames, %d bytes", built, schema.FrameBytes())
	}
	c.Apply(Batch{Revision: 3, Changes: []Change{{Key: "a"}}})
	if schema.FrameBytes() != 0 || budget.Used() != 0 {
		t.Errorf("%d bytes of frames are left of a forgotten event", schema.FrameBytes())
	}
}
