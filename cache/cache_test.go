package cache

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func testObject(s *Schema, key string, revision int64, l labels.Set, f fields.Set) *Object {
	return NewObject(ObjectConfig{Key: key, Revision: revision, Body: []byte(key), Labels: l, Fields: f}, s)
}

func TestSmoke(t *testing.T) {
	schema := NewSchema("pods", nil, Index{Field: "spec.nodeName"})
	c, err := New(Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	c.Reset([]*Object{testObject(schema, "a/x", 3, nil, fields.Set{"spec.nodeName": "n1"})}, 5)
	c.Apply(Batch{Revision: 6, Time: time.Unix(1, 0), Changes: []Change{{"a/y", testObject(schema, "a/y", 6, nil, fields.Set{"spec.nodeName": "n1"})}}})
	c.Apply(Batch{Revision: 7, Time: time.Unix(2, 0), Changes: []Change{{"a/x", nil}}})
	page, err := c.Snapshot().List(Query{Prefix: "a/", Field: fields.OneTermEqualSelector("spec.nodeName", "n1")}, nil)
	if err != nil || len(page.Objects) != 1 || page.Index != "spec.nodeName" {
		t.Fatal(page, err)
	}
	past, err := c.At(5)
	if err != nil || past.Get("a/x") == nil || past.Get("a/y") != nil {
		t.Fatal(past, err)
	}
	if _, err := c.At(4); !errors.As(err, new(ErrTooOld)) {
		t.Fatal(err)
	}
	if events, next, err := c.Log().Read(past.Position(), nil); err != nil || len(events) != 2 || next != events[1].Pos+1 {
		t.Fatal(events, next, err)
	}
}
