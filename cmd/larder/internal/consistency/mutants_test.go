package consistency

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch/watchtest"
)

// recording has the responses of servers over a short history. A mutant changes one response, as a server with a
// certain bug would.
type recording struct {
	writes    []write
	reads     []*read
	frames    []string         // of a watch of everything after revision 9
	torn      bool             // the watch's connection breaks
	revisions []listedRevision // of lists and watches of one process
	others    object           // c's deletion as another process sends it
}

// batches is the true history: a is created at 10, b at 11. a moves from group a to b at 12. A transaction changes b
// and creates c at 13. c is deleted at 14, and a moves back at 15.
func batches() []kv.Batch {
	put := func(revision int64, key string, p payload) kv.Event {
		return kv.Event{Key: prefix + key, Revision: revision, Value: p.stored(key)}
	}
	one := func(e kv.Event) kv.Batch { return kv.Batch{Revision: e.Revision, Events: []kv.Event{e}} }
	return []kv.Batch{
		one(put(10, "a", payload{1, "a"})),
		one(put(11, "b", payload{2, "b"})),
		one(put(12, "a", payload{3, "b"})),
		{Revision: 13, Events: []kv.Event{put(13, "b", payload{4, "b"}), put(13, "c", payload{5, "a"})}},
		one(kv.Event{Key: prefix + "c", Revision: 14, Kind: kv.Delete}),
		one(put(15, "a", payload{6, "a"})),
	}
}

func frame(kind, name string, revision int64, p payload) string {
	return fmt.Sprintf(`{"type":%q,"object":{"kind":"ConfigMap","metadata":{"name":%q,"resourceVersion":"%d"},"data":{"p":%q}}}`, kind, name, revision, p)
}

func bookmark(revision int64) string { return frame("BOOKMARK", "", revision, payload{}) }

// objectOf returns the object of a frame.
func objectOf(frame string) object {
	event, err := decode[struct{ Object object }]([]byte(frame))
	if err != nil {
		panic(err)
	}
	return event.Object
}

// correctRecording returns the recording of servers without bugs.
func correctRecording() *recording {
	put := func(id int64, group, key string, at int64) write {
		return write{payload: payload{id, group}, key: key, revision: at, outcome: acknowledged}
	}
	part := func(w write) write {
		w.transaction = 1
		return w
	}
	a12, b13, c13 := found{"a", 12, payload{3, "b"}}, found{"b", 13, payload{4, "b"}}, found{"c", 13, payload{5, "a"}}
	a15 := found{"a", 15, payload{6, "a"}}
	return &recording{
		writes: []write{
			put(1, "a", "a", 10), put(2, "b", "b", 11), put(3, "b", "a", 12), part(put(4, "b", "b", 13)), part(put(5, "a", "c", 13)),
			{key: "c", deletes: 13, outcome: acknowledged}, put(6, "a", "a", 15),
			{payload: payload{7, "a"}, key: "b", outcome: rejected}, {payload: payload{8, "a"}, key: "b", outcome: unknown},
			{payload: payload{9, "a"}, key: "b", outcome: rejected, transaction: 2}, {payload: payload{10, "a"}, key: "a", outcome: rejected, transaction: 2},
		},
		reads: []*read{
			{what: "list", client: 1, consistent: true, known: 13, revision: 13, objects: []found{a12, b13, c13}, sizes: []int{2, 1}, remaining: []int{1, -1}},
			{what: "group", client: 1, filter: filter{group: "b"}, revision: 14, least: 14, objects: []found{a12, b13}, sizes: []int{2}, remaining: []int{-1}},
			{what: "last", client: 1, consistent: true, known: 14, revision: 15, objects: []found{a15, b13}, sizes: []int{2}, remaining: []int{-1}},
			{what: "exact", client: 2, exact: 13, revision: 13, filter: filter{name: "c"}, objects: []found{c13}, sizes: []int{1}, remaining: []int{-1}},
			{what: "get", client: 2, name: "a", consistent: true, known: 14, revision: 12, objects: []found{a12}},
			{what: "gone", client: 2, name: "c", consistent: true, known: 14},
		},
		frames: []string{
			frame("ADDED", "a", 10, payload{1, "a"}), frame("ADDED", "b", 11, payload{2, "b"}), frame("MODIFIED", "a", 12, payload{3, "b"}),
			frame("MODIFIED", "b", 13, payload{4, "b"}), frame("ADDED", "c", 13, payload{5, "a"}), bookmark(13),
			frame("DELETED", "c", 14, payload{5, "a"}), frame("MODIFIED", "a", 15, payload{6, "a"}),
		},
		others: objectOf(frame("DELETED", "c", 14, payload{5, "a"})),
		revisions: []listedRevision{
			{resource: "a", what: "list", began: 1, ended: 4, revision: 13},
			{resource: "a", what: "at once", began: 2, ended: 3, requested: 10, revision: 12},
			{resource: "b", what: "other", began: 6, ended: 7, revision: 11},
			{resource: "a", what: "pages", began: 5, ended: 6, requested: 13, revision: 15},
			{resource: "a", what: "page", began: 8, ended: 9, requested: 15, exact: true, revision: 15},
			{resource: "a", what: "past", began: 8, ended: 9, requested: 11, exact: true, revision: 11},
			{resource: "a", what: "bookmark", began: 5, ended: 12, requested: 14, revision: 14},
			{resource: "a", what: "last", began: 10, ended: 11, revision: 15},
		},
	}
}

// check runs all checks on the recording.
func (r *recording) check(t *testing.T) (broken []error) {
	tr := &truth{present: make(map[string]kv.Event)}
	tr.take(kv.WatchResponse{Batches: batches()})
	p := tr.past(t, configMaps)
	broken = slices.Concat(checkWrites(p, r.writes), checkTransactions(p, r.writes), checkLists(p, r.reads), checkFresh(p, r.reads), checkMonotonic(r.reads), checkRevisions(r.revisions))
	watch := &part{Checker: watchtest.NewChecker(watchtest.Request{After: 9, Selects: func(*watchtest.State) bool { return true }})}
	l := &load{observed: make(map[version]observation)}
	watch.alike = func(_ watchtest.Type, o object) { l.alike(configMaps, &replica{name: "one"}, o) }
	var body io.Reader = strings.NewReader(strings.Join(r.frames, "\n"))
	if r.torn {
		body = io.MultiReader(body, tornReader{})
	}
	expired, err := watch.read(body, func() int64 { return 0 })
	if expired {
		err = errors.Join(err, errors.New("W5 Resumable: 410"))
	}
	l.alike(configMaps, &replica{name: "other"}, r.others)
	return append(broken, slices.Concat(l.broken, []error{err, watch.Verify(&p.history, 0)})...)
}

// tornReader is a connection that breaks.
type tornReader struct{}

func (tornReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

var violation = regexp.MustCompile(`(?m)^([ABDFMRX]|W\d \w+):`)

// TestChecksFindMutants checks that for each possible bug of a server, some check finds it, and that no check reports a
// correct history.
func TestChecksFindMutants(t *testing.T) {
	drop := func(at, n int) func(*recording) {
		return func(s *recording) { s.frames = slices.Delete(s.frames, at, at+n) }
	}
	frameOf := func(at int, f string) func(*recording) { return func(s *recording) { s.frames[at] = f } }
	for _, test := range []struct {
		name   string
		mutate func(*recording)
		want   string
	}{
		{"none", func(*recording) {}, ""},
		{"connection broken within a revision", func(s *recording) { s.frames, s.torn = s.frames[:4], true }, ""},

		{"stale list", func(s *recording) { s.reads[0].known = 14 }, "F"},
		{"stale get", func(s *recording) { s.reads[4].known = 15 }, "F"},
		{"stale nothing", func(s *recording) { s.reads[5] = &read{name: "b", consistent: true, known: 11} }, "F"},
		{"older than requested", func(s *recording) { s.reads[1].least = 15 }, "R"},
		{"not the exact revision", func(s *recording) { s.reads[3].exact = 14 }, "R"},
		{"revision goes back", func(s *recording) { s.reads[0], s.reads[2] = s.reads[2], s.reads[0] }, "M"},
		{"state of another revision", func(s *recording) { s.reads[0].revision = 14 }, "R"},
		{"half a transaction listed", func(s *recording) { s.reads[0].objects[1] = found{"b", 11, payload{2, "b"}} }, "R"},
		{"object missing", func(s *recording) { s.reads[2].objects = s.reads[2].objects[:1] }, "R"},
		{"object not selected", func(s *recording) { s.reads[1].objects = append(s.reads[1].objects, found{"c", 13, payload{5, "a"}}) }, "R"},
		{"deleted object listed", func(s *recording) { s.reads[2].objects = append(s.reads[2].objects, found{"c", 13, payload{5, "a"}}) }, "R"},
		{"object's revision wrong", func(s *recording) { s.reads[2].objects[0].revision = 12 }, "R"},
		{"out of order", func(s *recording) { slices.Reverse(s.reads[1].objects) }, "R"},
		{"wrong remaining count", func(s *recording) { s.reads[0].remaining[0] = 2 }, "R"},
		{"object that never existed", func(s *recording) { s.reads[4].objects[0].payload.id = 99 }, "R"},

		{"acknowledged write lost", func(s *recording) { s.writes[6].payload.id = 7 }, "X"},
		{"written at another revision", func(s *recording) { s.writes[2].revision = 11 }, "X"},
		{"rejected write happened", func(s *recording) { s.writes[2].outcome = rejected }, "X"},
		{"nobody's write", func(s *recording) { s.writes = slices.Delete(s.writes, 6, 7) }, "X"},
		{"acknowledged deletion did not happen", func(s *recording) { s.writes[5].deletes = 12 }, "X"},
		{"deletion acknowledged twice", func(s *recording) { s.writes = append(s.writes, s.writes[5]) }, "X"},
		{"rejected deletion happened", func(s *recording) { s.writes[5].outcome = rejected }, "X"},
		{"half a transaction", func(s *recording) { s.writes[7].transaction, s.writes[7].outcome = 1, acknowledged }, "A X"},
		{"transaction in two revisions", func(s *recording) { s.writes[6].transaction = 1 }, "A"},

		{"other bytes elsewhere", func(s *recording) { s.others = objectOf(frame("DELETED", "c", 14, payload{9, "a"})) }, "D"},

		{"list revision goes back", func(s *recording) { s.revisions[7].revision = 14 }, "B"},
		{"list revision below the requested revision", func(s *recording) { s.revisions[1].revision = 9 }, "B"},
		{"page of another revision", func(s *recording) { s.revisions[4].revision = 16 }, "B"},
		{"bookmark below the list before", func(s *recording) { s.revisions[6].began = 7 }, "B"},

		{"event dropped", drop(2, 1), "W6"},
		{"event dropped after the last bookmark", drop(6, 1), "W3"},
		{"stream ended within a revision", func(s *recording) { s.frames = s.frames[:4] }, "W3"},
		{"revision split by a bookmark", func(s *recording) { s.frames[4], s.frames[5] = s.frames[5], s.frames[4] }, "W6"},
		{"bookmark too early", frameOf(5, bookmark(14)), "W6"},
		{"bookmark in the future", func(s *recording) { s.frames = append(s.frames[:5], bookmark(15)) }, "W6"},
		{"bookmark goes back", frameOf(5, bookmark(12)), "W1"},
		{"event twice", func(s *recording) { s.frames = slices.Insert(s.frames, 3, s.frames[2]) }, "W2"},
		{"events out of order", func(s *recording) { s.frames[1], s.frames[2] = s.frames[2], s.frames[1] }, "W1"},
		{"deletion shows another state", frameOf(6, frame("DELETED", "c", 14, payload{6, "a"})), "W7"},
		{"deletion has the object's revision", frameOf(6, frame("DELETED", "c", 13, payload{5, "a"})), "W2 W7"},
		{"wrong type", frameOf(2, frame("ADDED", "a", 12, payload{3, "b"})), "W7"},
		{"old content", frameOf(2, frame("MODIFIED", "a", 12, payload{1, "a"})), "W7"},
		{"410 without need", func(s *recording) { s.frames = []string{`{"type":"ERROR","object":{"code":410}}`} }, "W5"},
		{"event after the error", func(s *recording) {
			s.frames = slices.Insert(s.frames, 5, `{"type":"ERROR","object":{"code":410}}`)
		}, "W3"},
		{"frame spoilt", frameOf(2, "}"), "W3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := correctRecording()
			test.mutate(s)
			err := errors.Join(s.check(t)...)
			kinds := make(map[string]bool)
			if err != nil {
				for _, found := range violation.FindAllStringSubmatch(err.Error(), -1) {
					kind, _, _ := strings.Cut(found[1], " ")
					kinds[kind] = true
				}
			}
			for want := range strings.FieldsSeq(test.want) {
				if !kinds[want] {
					t.Errorf("%s did not find the bug, only %v: %v", want, slices.Sorted(maps.Keys(kinds)), err)
				}
			}
			if test.want == "" && err != nil {
				t.Errorf("violations in a correct history: %v", err)
			}
		})
	}
}

// TestPartReachesItsGoal checks that a watcher reaches its goal at the event with that revision or at the end of the
// initial events, but not at an initial object.
func TestPartReachesItsGoal(t *testing.T) {
	all := func(*watchtest.State) bool { return true }
	end := `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"15","annotations":{"k8s.io/initial-events-end":"true"}}}}`
	for name, test := range map[string]struct {
		requested watchtest.Request
		frames    []string
	}{
		"objects that exist": {
			watchtest.Request{Selects: all, Initial: true},
			[]string{frame("ADDED", "a", 15, payload{6, "a"}), frame("ADDED", "b", 13, payload{4, "b"}), end},
		},
		"events": {
			watchtest.Request{Selects: all, After: 13},
			[]string{frame("DELETED", "c", 14, payload{5, "a"}), frame("MODIFIED", "a", 15, payload{6, "a"})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			watch := &part{Checker: watchtest.NewChecker(test.requested)}
			body := strings.NewReader(strings.Join(append(test.frames, "what comes after the goal is not read"), "\n"))
			if expired, err := watch.read(body, func() int64 { return 15 }); expired || err != nil {
				t.Fatalf("expired %v, %v", expired, err)
			}
			if watch.events != len(test.frames) || watch.Resume() != 15 {
				t.Errorf("%d frames were read, want %d; up to revision %d, want 15", watch.events, len(test.frames), watch.Resume())
			}
		})
	}
}
