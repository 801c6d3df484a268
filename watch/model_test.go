package watch_test

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"testing"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/watchtest"
	"pgregory.net/rapid"
)

// model runs random histories through a Hub that publishes only when the test says so. So rapid can try every
// interleaving of writer, Hub and watchers, and shrink every failure.
type model struct {
	*fixture
	keys     []string
	watchers []*client
	began    int64 // revision at which the epoch began
}

// client is a watcher with its checker.
type client struct {
	*watch.Watcher
	filter  filter
	checker *watchtest.Checker
	epoch   uint64

	*alarm
}

// alarm checks that a watcher wakes a client whose last Poll returned nothing.
type alarm struct {
	set   bool // Options.Wake is set
	quiet bool // the last Poll returned nothing
	woken bool // Wake was called since
}

var (
	namespacedKeys = []string{"a/p", "a/q", "a/r", "a-b/p", "a-b/q", "b/p", "b/s"}
	clusterKeys    = []string{"p", "q", "r", "s", "t"}

	filters = []filter{
		{},
		{namespace: "a"},
		{namespace: "a-b"},
		{namespace: "a", name: "p"},
		{name: "p"},
		{name: "t"},
		{field: "metadata.name=q"},
		{field: "metadata.namespace=a"},
		{namespace: "b", field: "metadata.namespace=a"},
		{label: "app=x"},
		{label: "app!=x"},
		{label: "app in (x,y),tier"},
		{label: "!app"},
		{namespace: "a", label: "app=y"},
		{namespace: "a", name: "p", label: "app=x"},
		{name: "p", field: "phase=up"},
		{field: "spec.nodeName=n1"},
		{field: "spec.nodeName=n2"},
		{field: "spec.nodeName="},
		{field: "spec.nodeName!=n1"},
		{field: "phase=up"},
		{field: "phase=up,spec.nodeName=n1"},
		{namespace: "a", field: "phase=up", label: "app=x"},
		{shard: "i 0-3f"},
		{shard: "i 40-7f"},
		{shard: "i 60-6f c0-cf"},
		{shard: "i 0-ff"},
		{shard: "n 0-3f"},
		{shard: "n 80-bf"},
		{shard: "n 0-7f", label: "app=x"},
		{shard: "i 0-7f", label: "app!=x", namespace: "a"},
		{shard: "i 80-ff", field: "spec.nodeName=n1"},
		{shard: "i 80-ff", name: "p"},
		{shard: "i 0-7f", namespace: "a", name: "p"},
	}
)

func (m *model) drawChanges(t *rapid.T) []change {
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom(m.keys), 1, 3, rapid.ID[string]).Draw(t, "keys")
	var changes []change
	for _, key := range keys {
		changes = append(changes, change{
			key:    key,
			gone:   rapid.IntRange(0, 3).Draw(t, "gone") == 0,
			labels: rapid.SampledFrom([]string{"", "app=x", "app=y", "app=x,tier=t", "tier=t"}).Draw(t, "labels"),
			fields: rapid.SampledFrom([]string{"", "spec.nodeName=n1", "spec.nodeName=n2", "spec.nodeName=n1,phase=up", "phase=up", "phase=down"}).Draw(t, "fields"),
		})
	}
	return changes
}

// open adds a watcher. With resumed it continues where another has ended.
func (m *model) open(t *rapid.T, f filter, resumed bool, after int64) {
	o := f.options()
	request := watchtest.Request{Selects: f.predicate(), After: after, Resumed: resumed}
	if after < 0 {
		s := m.cache.Snapshot()
		o.Initial = &s
		request.Initial, request.At, request.After = true, s.Revision(), 0
	} else {
		o.After = after
	}
	a := &alarm{set: rapid.Bool().Draw(t, "wake")}
	if a.set {
		o.Wake = func() { a.woken = true }
	}
	w, err := m.hub.Watch(o)
	if tooOld := (cache.ErrTooOld{}); errors.As(err, &tooOld) {
		if after >= m.cache.Log().Oldest() || tooOld.Requested != after || tooOld.Oldest <= after {
			t.Fatalf("watch after %d, oldest %d: %v", after, m.cache.Log().Oldest(), err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.watchers = append(m.watchers, &client{w, f, watchtest.NewChecker(request), m.cache.Snapshot().Epoch(), a})
}

func (m *model) draw(t *rapid.T) *client {
	if len(m.watchers) == 0 {
		t.Skip("no watcher")
	}
	return rapid.SampledFrom(m.watchers).Draw(t, "watcher")
}

// poll reads once and reports whether there were deliveries.
func (m *model) poll(t *rapid.T, c *client, room int) bool {
	asleep := c.set && c.quiet && !c.woken
	c.woken = false
	ds, err := c.Poll(make([]watch.Delivery, 0, room))
	if asleep && (len(ds) > 0 || err != nil) {
		t.Fatalf("%+v: %d deliveries and %v without a wake-up", c.filter, len(ds), err)
	}
	c.quiet = len(ds) == 0 && err == nil
	if broken := c.checker.Observe(reports(ds)...); broken != nil {
		t.Fatalf("%+v: %v", c.filter, broken)
	}
	if err == nil {
		return len(ds) > 0
	}
	if len(ds) > 0 {
		t.Fatalf("%d deliveries with %v", len(ds), err)
	}
	m.end(t, c, err)
	return false
}

// end checks the reason why a watcher ended.
func (m *model) end(t *rapid.T, c *client, err error) {
	tooOld := cache.ErrTooOld{}
	switch epoch := m.cache.Snapshot().Epoch(); {
	case err == io.EOF && c.epoch == epoch:
		t.Fatalf("%+v ended within its epoch", c.filter)
	case err == io.EOF:
	case !errors.As(err, &tooOld):
		t.Fatalf("%+v: %v", c.filter, err)
	case tooOld.Requested >= tooOld.Oldest:
		t.Fatalf("%+v: ended although its revision is not too old: %v", c.filter, err)
	}
	if c.epoch == m.cache.Snapshot().Epoch() {
		m.verify(t, c, 0)
	}
	m.remove(c)
}

func (m *model) remove(c *client) {
	c.Close()
	m.watchers = slices.DeleteFunc(m.watchers, func(other *client) bool { return other == c })
}

func (m *model) verify(t *rapid.T, c *client, upTo int64) {
	if broken := c.checker.Verify(m.history, upTo); broken != nil {
		t.Fatalf("%+v: %v", c.filter, broken)
	}
}

func (m *model) bookmark(t *rapid.T, c *client) {
	d, ok := c.Bookmark()
	if !ok {
		return
	}
	if d.Revision > m.cache.Snapshot().Revision() && d.Revision > c.checker.Resume() {
		t.Fatalf("bookmark of %d, the cache is at %d", d.Revision, m.cache.Snapshot().Revision())
	}
	if c.epoch != m.cache.Snapshot().Epoch() && d.Revision >= m.began && d.Revision > c.checker.Resume() {
		t.Fatalf("bookmark of %d from a watcher whose epoch has ended before %d", d.Revision, m.began)
	}
	if broken := c.checker.Observe(reportOf(d)); broken != nil {
		t.Fatalf("%+v: %v", c.filter, broken)
	}
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		// Names with a digit make an action more frequent.
		"apply":  func(t *rapid.T) { m.apply(m.drawChanges(t)...) },
		"apply2": func(t *rapid.T) { m.apply(m.drawChanges(t)...) },
		"burst": func(t *rapid.T) {
			for range rapid.IntRange(1, 12).Draw(t, "n") {
				m.apply(m.drawChanges(t)...)
			}
		},
		"fresh": func(t *rapid.T) {
			m.last += rapid.Int64Range(0, 3).Draw(t, "idle")
			m.fresh.Store(m.last)
		},
		"step": func(t *rapid.T) { m.hub.Step() },
		"initial": func(t *rapid.T) {
			m.open(t, rapid.SampledFrom(filters).Draw(t, "filter"), false, -1)
		},
		"after": func(t *rapid.T) {
			after := m.last + rapid.Int64Range(-12, 3).Draw(t, "after")
			m.open(t, rapid.SampledFrom(filters).Draw(t, "filter"), false, max(after, 0))
		},
		"poll":  func(t *rapid.T) { m.poll(t, m.draw(t), rapid.IntRange(1, 8).Draw(t, "room")) },
		"poll2": func(t *rapid.T) { m.poll(t, m.draw(t), rapid.IntRange(1, 8).Draw(t, "room")) },
		"bookmark": func(t *rapid.T) {
			m.bookmark(t, m.draw(t))
		},
		"resume": func(t *rapid.T) {
			c := m.draw(t)
			if c.epoch == m.cache.Snapshot().Epoch() {
				m.verify(t, c, 0)
				m.open(t, c.filter, true, c.checker.Resume())
			}
			m.remove(c)
		},
		"reset": func(t *rapid.T) {
			if rapid.IntRange(0, 9).Draw(t, "reset") == 0 {
				m.reset()
				m.began = m.last
			}
		},
	}
}

// finish delivers all events to every watcher, and verifies the deliveries.
func (m *model) finish(t *rapid.T) {
	m.publishAll()
	for _, c := range slices.Clone(m.watchers) {
		for m.poll(t, c, 4) {
		}
		if !slices.Contains(m.watchers, c) {
			continue
		}
		m.bookmark(t, c)
		m.verify(t, c, m.last)
		m.remove(c)
	}
	if s, routes := m.hub.Stats(), m.hub.Routes(); s.Watchers != 0 || s.Groups != 0 || routes != 0 {
		t.Fatalf("watchers, groups or %d routes were leaked: %+v", routes, s)
	}
}

// TestHubMatchesItsModel runs many short histories; -rapid.checks and -rapid.steps make them more and longer.
func TestHubMatchesItsModel(t *testing.T) {
	for i := range 10 {
		t.Run(strconv.Itoa(i), rapid.MakeCheck(runModel))
	}
}

func runModel(t *rapid.T) {
	m := &model{fixture: newFixture(t, config{
		backlog: rapid.SampledFrom([]int{1, 2, 5, 1000}).Draw(t, "backlog"),
		events:  rapid.SampledFrom([]int{4, 16, 1000}).Draw(t, "events"),
	})}
	m.keys = rapid.SampledFrom([][]string{namespacedKeys, clusterKeys}).Draw(t, "keys")
	m.reset()
	t.Repeat(m.actions())
	m.finish(t)
}

var _ cache.Source = (*fixture)(nil)
