package watch_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
)

// TestScenariosMatchTheirFiles runs the scenarios in testdata. The Hub publishes only at the command hub, a watcher
// delivers only at poll. Record new results with -rewrite, and commit only changes that you can explain.
//
//	new [backlog=N] [events=N]   loads a cache at revision 1, and creates a hub
//	apply                        applies one revision; lines: KEY [labels=a=b,..] [fields=a=b,..] [gone] [bad]
//	fresh revision=N             the source reports that all changes up to N have been delivered
//	reset                        begins a new epoch
//	hub                          the hub publishes all events
//	stop                         the hub ends
//	watch NAME [namespace=] [name=] [label=()] [field=()] [initial | after=N] [silent]
//	poll NAME [room=N]
//	bookmark NAME
//	close NAME
func TestScenariosMatchTheirFiles(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{t: t}
		datadriven.RunTest(t, path, s.run)
	})
}

type scenario struct {
	*fixture
	t        *testing.T
	pending  []change
	watchers map[string]*watch.Watcher
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		c := config{backlog: s.number(d, "backlog", 100), events: s.number(d, "events", 100)}
		s.fixture, s.watchers = newFixture(t, c), make(map[string]*watch.Watcher)
		s.reset()
		return s.now()
	case "apply":
		for line := range strings.Lines(d.Input) {
			s.line(strings.Fields(line))
		}
		s.fixture.apply(s.pending...)
		s.pending = nil
		return s.now()
	case "fresh":
		s.fresh.Store(int64(s.number(d, "revision", 0)))
		return s.now()
	case "reset":
		s.reset()
		return s.now()
	case "hub":
		before := s.hub.Stats().Events
		s.publishAll()
		return fmt.Sprintf("%d events", s.hub.Stats().Events-before)
	case "stop":
		s.hub.Stop()
		return "ok"
	case "watch":
		return s.watch(d)
	}
	w := s.watchers[d.CmdArgs[0].Key]
	switch d.Cmd {
	case "poll":
		return s.poll(d, w)
	case "bookmark":
		if b, ok := w.Bookmark(); ok {
			return reportOf(b).String()
		}
		return "none"
	case "close":
		w.Close()
		return fmt.Sprintf("%d watchers, %d groups", s.hub.Stats().Watchers, s.hub.Stats().Groups)
	}
	d.Fatalf(t, "unknown command %s", d.Cmd)
	return ""
}

func (s *scenario) now() string {
	return "revision " + strconv.FormatInt(s.cache.Snapshot().Revision(), 10)
}

// line parses one change.
func (s *scenario) line(words []string) {
	c := change{key: words[0]}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "labels":
			c.labels = value
		case "fields":
			c.fields = value
		case "gone":
			c.gone = true
		case "bad":
			c.bad = true
		default:
			s.t.Fatalf("unknown word %q", word)
		}
	}
	s.pending = append(s.pending, c)
}

// text returns an argument, "" if there is none.
func text(d *datadriven.TestData, name string) string {
	for _, arg := range d.CmdArgs {
		if arg.Key == name {
			return strings.Join(arg.Vals, ",")
		}
	}
	return ""
}

func (s *scenario) number(d *datadriven.TestData, name string, otherwise int) int {
	if !d.HasArg(name) {
		return otherwise
	}
	n, err := strconv.Atoi(text(d, name))
	if err != nil {
		d.Fatalf(s.t, "%s: %v", name, err)
	}
	return n
}

func (s *scenario) watch(d *datadriven.TestData) string {
	f := filter{text(d, "namespace"), text(d, "name"), text(d, "label"), text(d, "field"), text(d, "shard")}
	o := f.options()
	o.After, o.Bookmarks = int64(s.number(d, "after", 0)), !d.HasArg("silent")
	if d.HasArg("initial") {
		snapshot := s.cache.Snapshot()
		o.Initial = &snapshot
	}
	w, err := s.hub.Watch(o)
	if err != nil {
		return "error: " + err.Error()
	}
	s.watchers[d.CmdArgs[0].Key] = w
	return "ok"
}

func (s *scenario) poll(d *datadriven.TestData, w *watch.Watcher) string {
	ds, err := w.Poll(make([]watch.Delivery, 0, s.number(d, "room", 100)))
	var out strings.Builder
	for _, r := range reports(ds) {
		fmt.Fprintln(&out, strings.TrimSpace(r.String()))
	}
	if err != nil {
		fmt.Fprintln(&out, "error:", err)
	}
	if corrupt := (*cache.CorruptError)(nil); errors.As(err, &corrupt) {
		fmt.Fprintln(&out, "corrupt:", corrupt.Object.Key())
	}
	fmt.Fprintf(&out, "(%s)\n", w.State())
	return out.String()
}
