package watchtest_test

import (
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/watch/watchtest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

const (
	added      = watchtest.Added
	modified   = watchtest.Modified
	deleted    = watchtest.Deleted
	bookmark   = watchtest.Bookmark
	initialEnd = watchtest.InitialEnd
)

// history: a is created at 1, selected from 2 to 4 and deleted at 6 after it was
// selected again at 5; b is created selected at 3; at 7, c and d are created.
func history() *watchtest.History {
	h := new(watchtest.History)
	put := func(key string, revision int64, selected bool) watchtest.Change {
		s := &watchtest.State{Key: key, Revision: revision, Digest: "v" + string(rune('0'+revision))}
		if selected {
			s.Labels = map[string]string{"in": "yes"}
		}
		return watchtest.Change{Key: key, State: s}
	}
	h.Add(1, put("a", 1, false))
	h.Add(2, put("a", 2, true))
	h.Add(3, put("b", 3, true))
	h.Add(4, put("a", 4, false))
	h.Add(5, put("a", 5, true))
	h.Add(6, watchtest.Change{Key: "a"}, watchtest.Change{Key: "never"})
	h.Add(7, put("c", 7, true), put("d", 7, true))
	return h
}

func r(t watchtest.Type, key string, revision int64, digest string) watchtest.Report {
	return watchtest.Report{Type: t, Key: key, Revision: revision, Digest: digest}
}

// each puts each report into its own batch.
func each(reports ...watchtest.Report) (batches [][]watchtest.Report) {
	for _, report := range reports {
		batches = append(batches, []watchtest.Report{report})
	}
	return batches
}

func TestCheckerNamesTheBrokenGuarantee(t *testing.T) {
	after1 := watchtest.Request{After: 1}
	all := []watchtest.Report{
		r(added, "a", 2, "v2"), r(added, "b", 3, "v3"), r(deleted, "a", 4, "v2"), r(added, "a", 5, "v5"),
		r(deleted, "a", 6, "v5"),
	}
	seven := []watchtest.Report{r(added, "c", 7, "v7"), r(added, "d", 7, "v7")}
	tests := []struct {
		name    string
		request watchtest.Request
		batches [][]watchtest.Report
		upTo    int64
		want    string // guarantees broken
	}{
		{"everything", after1, append(each(all...), seven), 7, ""},
		{"a prefix", after1, each(all[:2]...), 0, ""},
		{"a prefix that is too short", after1, each(all[:2]...), 4, "W3"},
		{"a gap", after1, each(all[0], all[2]), 0, "W3"},
		{"a gap after resuming", watchtest.Request{After: 1, Resumed: true}, each(all[1]), 0, "W5"},
		{"out of order", after1, each(all[1], all[0]), 0, "W1"},
		{"twice", after1, [][]watchtest.Report{{all[0], all[0]}}, 0, "W2"},
		{"an event up to After", watchtest.Request{After: 2}, each(all[0], all[1]), 0, "W2 W7"},
		{"a revision in two batches", watchtest.Request{After: 6}, each(seven...), 7, "W4"},
		{"half a revision", watchtest.Request{After: 6}, each(seven[0]), 7, "W3"},
		{"the new object with a deletion", after1, each(all[0], all[1], r(deleted, "a", 4, "v4")), 0, "W7"},
		{"a deletion with the object's revision", after1, each(all[0], all[1], r(deleted, "a", 2, "v2")), 0, "W1 W7"},
		{"the wrong type", after1, each(r(modified, "a", 2, "v2")), 0, "W7"},
		{"an object that is not selected", watchtest.Request{}, each(r(added, "a", 1, "v1")), 0, "W7"},
		{"no digest", after1, each(r(added, "a", 2, "")), 0, ""},
		{"a bookmark", after1, each(all[0], r(bookmark, "", 2, "")), 0, ""},
		{"a bookmark beyond", watchtest.Request{After: 7}, each(r(bookmark, "", 99, "")), 99, ""},
		{"a bookmark too early", after1, each(r(bookmark, "", 2, ""), all[0]), 0, "W6"},
		{"a bookmark that skips", after1, each(r(bookmark, "", 3, "")), 0, "W6"},
		{"a bookmark that goes back", after1, each(all[0], all[1], r(bookmark, "", 2, "")), 0, "W1"},
		{"initial objects", watchtest.Request{Initial: true}, each(r(added, "a", 2, "v2"), r(added, "b", 3, "v3"), r(initialEnd, "", 3, ""), all[2]), 4, ""},
		{"initial objects without an end", watchtest.Request{Initial: true, At: 3}, each(r(added, "a", 2, "v2"), r(added, "b", 3, "v3"), all[2]), 4, ""},
		{"initial objects of an unknown revision", watchtest.Request{Initial: true}, each(r(added, "b", 3, "v3")), 4, ""},
		{"initial object missing", watchtest.Request{Initial: true}, each(r(added, "a", 2, "v2"), r(initialEnd, "", 3, "")), 0, "W3"},
		{"initial objects out of order", watchtest.Request{Initial: true}, each(r(added, "b", 3, "v3"), r(added, "a", 2, "v2"), r(initialEnd, "", 3, "")), 0, "W1"},
		{"initial object twice", watchtest.Request{Initial: true}, each(r(added, "b", 3, "v3"), r(added, "b", 3, "v3"), r(initialEnd, "", 4, "")), 0, "W2"},
		{"initial object not selected", watchtest.Request{Initial: true}, each(r(added, "a", 4, "v4"), r(added, "b", 3, "v3"), r(initialEnd, "", 4, "")), 0, "W7"},
		{"initial object of another revision", watchtest.Request{Initial: true}, each(r(added, "a", 4, ""), r(added, "b", 3, "v3"), r(initialEnd, "", 5, "")), 0, "W7"},
		{"two ends", watchtest.Request{Initial: true}, each(r(initialEnd, "", 1, ""), r(initialEnd, "", 1, "")), 0, "W6"},
		{"an end before its objects", watchtest.Request{Initial: true}, each(r(added, "a", 2, "v2"), r(initialEnd, "", 1, "")), 0, "W6 W7"},
		{"an event up to the revision of the initial objects", watchtest.Request{Initial: true, At: 3}, each(r(added, "a", 2, "v2"), r(added, "b", 3, "v3"), r(modified, "b", 3, "v3")), 3, "W2 W7"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.request.Selects = func(s *watchtest.State) bool { return s.Labels["in"] == "yes" }
			c := watchtest.NewChecker(test.request)
			for _, batch := range test.batches {
				c.Observe(batch...)
			}
			err := c.Verify(history(), test.upTo)
			if got := guarantees(err); got != test.want {
				t.Errorf("broken %q, want %q: %v", got, test.want, err)
			}
		})
	}
}

// guarantees returns the numbers of the guarantees that err reports as broken, each once.
func guarantees(err error) string {
	if err == nil {
		return ""
	}
	var text strings.Builder
	for _, g := range []string{
		watchtest.Ordered, watchtest.Unique, watchtest.Reliable, watchtest.Atomic,
		watchtest.Resumable, watchtest.Bookmarkable, watchtest.Filtered,
	} {
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			if strings.HasPrefix(e.Error(), g+": ") {
				text.WriteString(g[:2] + " ")
				break
			}
		}
	}
	return strings.TrimSpace(text.String())
}

func TestResumeIsTheNewestRevisionSeen(t *testing.T) {
	c := watchtest.NewChecker(watchtest.Request{After: 2})
	if got := c.Resume(); got != 2 {
		t.Errorf("without reports: resumes after %d, want 2", got)
	}
	c.Observe(r(added, "b", 3, ""))
	if got := c.Resume(); got != 3 {
		t.Errorf("after an event of 3: resumes after %d, want 3", got)
	}
	if err := c.Observe(r(bookmark, "", 9, "")); err != nil {
		t.Error(err)
	}
	if got := c.Resume(); got != 9 {
		t.Errorf("after a bookmark of 9: resumes after %d, want 9", got)
	}
}
