package table_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/registry/table"
)

type timesTree struct {
	Value   metav1.Time
	Pointer *metav1.MicroTime
	Each    []timesTree
	Next    *timesTree
	Plain   [2]time.Time
	Text    string
	ByName  map[string]timesTree
	Any     any
	hidden  *time.Time
}

// TestTimes: all times are found, or it is said that some cannot be.
func TestTimes(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	mt, micro := metav1.NewTime(now), metav1.NewMicroTime(now)
	for name, c := range map[string]struct {
		tree timesTree
		n    int
		all  bool
	}{
		"zero":         {timesTree{}, 0, true},
		"everywhere":   {timesTree{Value: mt, Pointer: &micro, Each: []timesTree{{Value: mt}, {}, {Next: &timesTree{Value: mt}}}, Plain: [2]time.Time{1: now}}, 5, true},
		"in a map":     {timesTree{Value: mt, ByName: map[string]timesTree{"a": {}}}, 1, false},
		"in an empty":  {timesTree{Value: mt, ByName: map[string]timesTree{}}, 1, true},
		"in something": {timesTree{Each: []timesTree{{Any: 1}, {Value: mt}}}, 1, false},
		"hidden":       {timesTree{hidden: &now}, 0, false},
	} {
		times, all := table.Times(&c.tree)
		if len(times) != c.n || all != c.all {
			t.Errorf("%s: %d times, all %v", name, len(times), all)
		}
		for _, at := range times {
			if !at.Equal(now) {
				t.Errorf("%s: found %v", name, at)
			}
			*at = at.Add(time.Hour)
		}
		if again, _ := table.Times(&c.tree); len(again) > 0 && !again[0].Equal(now.Add(time.Hour)) {
			t.Errorf("%s: the time cannot be moved", name)
		}
	}
}
