package cache

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// keptEncoding identifies a kept encoding by its object's number and its own.
type keptEncoding struct {
	object int
	id     EncodingID
}

// shareModel is a Budget for two resources, with shares for two more, and the expected counts.
type shareModel struct {
	limits  [3]int64 // of the parent and of the shares
	budgets [3]*Budget
	history [3]int64
	schemas [4]*ResourceSchema // the first two use the parent
	objects []*Object          // of the schemas in turn
	retired map[int]bool
	want    [4]Pressure
}

func newShareModel(t *rapid.T) *shareModel {
	m := &shareModel{retired: make(map[int]bool)}
	m.limits[1] = rapid.Int64Range(0, 1500).Draw(t, "share")
	m.limits[2] = rapid.Int64Range(0, 1500).Draw(t, "other share")
	m.limits[0] = m.limits[1] + m.limits[2] + rapid.Int64Range(1, 1500).Draw(t, "rest")
	parent := NewBudget(m.limits[0])
	m.budgets = [3]*Budget{parent, parent.NewShare(m.limits[1]), parent.NewShare(m.limits[2])}
	for i := range m.schemas {
		m.schemas[i] = NewResourceSchema(fmt.Sprint(i), m.budgets[max(0, i-1)])
	}
	for i := range 12 {
		m.objects = append(m.objects, newTestObject(m.schemas[i%4], fmt.Sprint(i)))
	}
	return m
}

// budgetOf returns the number of the Budget of an object's resource.
func budgetOf(object int) int { return max(0, object%4-1) }

func (m *shareModel) kept() map[keptEncoding]bool {
	all := make(map[keptEncoding]bool)
	for at, o := range m.objects {
		for c := o.cells.head.Load(); c != nil; c = c.next {
			if c.kept.Load() != nil {
				all[keptEncoding{at, EncodingID(c.number)}] = true
			}
		}
	}
	return all
}

// taken returns the total count of a Budget and its shares.
func (m *shareModel) taken(i int) (bytes int64) {
	bytes = m.budgets[i].Used() + m.history[i]
	if i == 0 {
		bytes += m.taken(1) + m.taken(2)
	}
	return bytes
}

// lost checks which encodings a step on a Budget has dropped. A share must lose only its own.
func (m *shareModel) lost(t *rapid.T, by int, before map[keptEncoding]bool) {
	now := m.kept()
	for e := range before {
		if now[e] {
			continue
		}
		if of := budgetOf(e.object); of != by && of != 0 {
			t.Fatalf("encoding %v of share %d was dropped for budget %d", e, of, by)
		}
		m.want[e.object%4].Encodings++
	}
}

func (m *shareModel) encode(t *rapid.T) {
	at, id := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object"), EncodingID(rapid.IntRange(1, 20).Draw(t, "id"))
	urgent, own := rapid.Bool().Draw(t, "urgent"), budgetOf(at)
	before, room, made := m.kept(), m.limits[own]-m.taken(own), false
	encoding := m.objects[at].Encoding
	if urgent {
		encoding = m.objects[at].ExpensiveEncoding
	}
	got, err := encoding(id, func(o *Object) ([]byte, error) { made = true; return encodeTest(id)(o) })
	want, _ := encodeTest(id)(m.objects[at])
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got encoding %q and error %v, want %q", got, err, want)
	}
	kept := m.kept()[keptEncoding{at, id}]
	if made && !kept && !m.retired[at] {
		m.want[at%4].Refused++
		if cost := int64(len(want)) + keptOverhead + 64; cost <= room {
			t.Fatalf("an encoding of cost %d was not kept with room for %d", cost, room)
		}
	}
	if m.retired[at] && kept {
		t.Fatal("an encoding of a retired object was kept")
	}
	m.lost(t, own, before)
}

func (m *shareModel) grow(t *rapid.T) {
	i := rapid.IntRange(0, 2).Draw(t, "budget")
	before := m.kept()
	more := rapid.Int64Range(-m.history[i], 300).Draw(t, "history")
	m.history[i] += more
	m.budgets[i].addLogBytes(more)
	m.lost(t, i, before)
}

func (m *shareModel) retire(t *rapid.T) {
	at := rapid.IntRange(0, len(m.objects)-1).Draw(t, "object")
	m.objects[at].cells.retire(m.budgets[budgetOf(at)])
	m.retired[at] = true
}

func (m *shareModel) check(t *rapid.T) {
	for i, b := range m.budgets {
		var used int64
		for e := range m.kept() {
			if budgetOf(e.object) == i {
				used += m.objects[e.object].keptCost(e.id)
			}
		}
		if b.Used() != used || b.LogBytes() != m.history[i] {
			t.Fatalf("budget %d counts %d for encodings and %d for logs, want %d and %d", i, b.Used(), b.LogBytes(), used, m.history[i])
		}
		if taken := m.taken(i); used > 0 && taken > m.limits[i] {
			t.Fatalf("budget %d uses %d, more than its limit %d", i, taken, m.limits[i])
		}
	}
	if got, want := m.budgets[0].Limit(), max(1, m.limits[0]-m.taken(1)-m.taken(2)); got != want {
		t.Fatalf("the shares leave %d bytes, want %d", got, want)
	}
	for i, s := range m.schemas {
		if s.Pressure() != m.want[i] {
			t.Fatalf("resource %d counts %+v, want %+v", i, s.Pressure(), m.want[i])
		}
	}
}

// TestSharesMatchTheirModel checks that other users cannot take a share's memory, that the total stays within the
// limit, and that every encoding is right.
func TestSharesMatchTheirModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newShareModel(t)
		t.Repeat(map[string]func(*rapid.T){"encode": m.encode, "retire": m.retire, "history": m.grow, "": m.check})
	})
}

// TestScansDoNotUseMemoryOfAShare checks that repeated reads of more than fits do not take memory from a share. Others
// can use memory that the share does not use, until the share needs it.
func TestScansDoNotUseMemoryOfAShare(t *testing.T) {
	const cost = 1024 + keptOverhead
	parent := NewBudget(100 * cost)
	pods := budgetObjects(NewResourceSchema("pods", parent.NewShare(40*cost)), 60)
	others := budgetObjects(NewResourceSchema("others", parent), 300)
	scan(t, others, 1)
	if made := scan(t, others[:100], 1); made != 0 {
		t.Errorf("%d of 100 encodings were made again while the share was not used, want 0", made)
	}
	scan(t, pods[:40], 1)
	if share := pods[0].schema.Budget(); parent.Used()+share.Used() > 100*cost {
		t.Errorf("the parent uses %d and the share %d, more than %d", parent.Used(), share.Used(), 100*cost)
	}
	for range 2 * idleRounds {
		scan(t, others, 1)
		if made := scan(t, pods[:40], 1); made != 0 {
			t.Fatalf("others took %d of 40 encodings from the share", made)
		}
	}
}

// TestShareOfZeroBytesKeepsAMinimalLog checks that a share of zero bytes keeps no encodings and only MinEvents events.
func TestShareOfZeroBytesKeepsAMinimalLog(t *testing.T) {
	for _, parent := range []*Budget{NewBudget(0), NewBudget(1 << 20), NewGrowingBudget(Growth{MinEncodings: 1 << 20, MinTotal: 1 << 20, Max: 1 << 30})} {
		schema := NewResourceSchema("things", parent.NewShare(0))
		c, err := New(Config{Schema: schema, Log: LogConfig{MinEvents: 10}})
		if err != nil {
			t.Fatal(err)
		}
		c.Reset(nil, 1)
		for revision := int64(2); revision < 100; revision++ {
			object := NewObject(ObjectConfig{Key: "a", Revision: revision, Body: make([]byte, 100)}, schema)
			scan(t, []*Object{object}, 1)
			c.Apply(Batch{Revision: revision, Time: time.Unix(0, 0), Changes: []Change{{"a", object}}})
		}
		if used, length := schema.Budget().Used(), c.Log().Len(); used != 0 || length != 10 {
			t.Errorf("%d bytes of encodings and %d events are kept, want 0 and 10", used, length)
		}
		if want := (Pressure{Events: 98 - 10, Refused: 98}); schema.Pressure() != want {
			t.Errorf("pressure %+v, want %+v", schema.Pressure(), want)
		}
	}
}
