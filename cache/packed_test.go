package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// sentences returns n bytes that can be compressed.
func sentences(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, `{"id":"CVE-%d","title":"what may be found in an image %d"},`, i*7919, i%13)
	}
	return b.Bytes()[:n]
}

// TestLargeBodiesArePacked checks which bodies are compressed, and that all are read unchanged.
func TestLargeBodiesArePacked(t *testing.T) {
	random := make([]byte, 4*packFrom)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	head := []byte(`{"metadata":{}}`)
	for name, c := range map[string]struct {
		body, head []byte
		packed     bool
	}{
		"large":             {sentences(300_000), head, true},
		"just large enough": {sentences(packFrom), head, true},
		"empty head":        {sentences(packFrom), []byte{}, true},
		"small":             {sentences(packFrom - 1), head, false},
		"without a head":    {sentences(300_000), nil, false},
		"random":            {random, head, false},
		"long head":         {sentences(packFrom), sentences(packFrom), false},
	} {
		t.Run(name, func(t *testing.T) {
			o := NewObject(ObjectConfig{Key: "ns/a", Revision: 7, Body: bytes.Clone(c.body), Head: c.head, Labels: map[string]string{"a": "b"}}, NewResourceSchema("things", nil))
			if o.Packed() != c.packed {
				t.Fatalf("packed: %v, want %v", o.Packed(), c.packed)
			}
			if c.packed && len(o.body) > len(c.body)*3/4 {
				t.Errorf("a body of %d bytes takes %d, want at most %d", len(c.body), len(o.body), len(c.body)*3/4)
			}
			wantHead := c.body
			if c.packed {
				wantHead = c.head
			}
			if !bytes.Equal(o.Head(), wantHead) {
				t.Errorf("head %q, want %q", o.Head(), wantHead)
			}
			if !bytes.Equal(o.Body(), c.body) || o.Size() != len(c.body) {
				t.Errorf("the body has %d bytes, size %d, and differs from the given body of %d bytes", len(o.Body()), o.Size(), len(c.body))
			}
			for _, room := range []int{0, 5, len(c.body), 2*len(c.body) + 5} {
				dst := append(make([]byte, 0, room), "begin"...)
				if got := o.AppendBody(dst); !bytes.Equal(got, append([]byte("begin"), c.body...)) {
					t.Errorf("AppendBody to a slice of capacity %d returned %d bytes that differ from the body", room, len(got))
				}
			}
			if o.Err() != nil || o.Name() != "a" || o.Labels().Get("a") != "b" {
				t.Errorf("got error %v, name %q, label %q; want none, a, b", o.Err(), o.Name(), o.Labels().Get("a"))
			}
		})
	}
}

// TestPackedBodiesAreCountedByTheirPackedSize checks that cache and log count the memory that packed bodies take.
func TestPackedBodiesAreCountedByTheirPackedSize(t *testing.T) {
	schema := NewResourceSchema("things", NewBudget(1<<20))
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	object := func(revision int64) *Object {
		return NewObject(ObjectConfig{Key: "a", Revision: revision, Body: sentences(300_000), Head: []byte("{}"), StoredSize: 300_000}, schema)
	}
	c.Reset([]*Object{object(1)}, 1)
	c.Apply(Batch{Revision: 2, Changes: []Change{{Key: "a", Object: object(2)}}})
	if s := c.current.Load(); s.bytes >= 100_000 || s.stored != 300_000 {
		t.Errorf("the cache counts %d bytes in memory and %d stored, want less than 100000 and 300000", s.bytes, s.stored)
	}
	if past := c.Log().Bytes(); past >= 100_000 || past < 1000 {
		t.Errorf("the log counts %d bytes, want 1000 to 100000", past)
	}
}
