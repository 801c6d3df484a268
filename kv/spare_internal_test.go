package kv

import (
	"testing"
)

// TestAppliedValuesAreReleased checks that a subscription does not retain applied values until the next batches
// arrive.
func TestAppliedValuesAreReleased(t *testing.T) {
	s := &Subscription{tail: &Tail{}, wake: make(chan struct{}, 1)}
	s.generation.Store(2) // loaded
	for revision := range int64(3) {
		s.push(Batch{Revision: revision + 1, Events: []Event{{Key: "/a", Value: []byte("value"), Revision: revision + 1}}}, 1<<20)
	}
	batches, err := s.take()
	if err != nil || len(batches) != 3 {
		t.Fatalf("took %d batches: %v", len(batches), err)
	}
	s.Applied(2)
	if batches[2].Events == nil {
		t.Error("a batch that is not applied was released")
	}
	s.Applied(1)
	for i, batch := range s.spare[:3] {
		if batch.Events != nil {
			t.Errorf("batch %d is still referenced", i)
		}
	}
}
