package watch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/watch"
	"github.com/larder-io/larder/watch/watchtest"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// running returns a fixture whose Hub runs until the test ends, or until stop.
func running(t *testing.T, c config) (f *fixture, stop func()) {
	t.Helper()
	f = newFixture(t, c)
	f.reset()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.hub.Run(ctx) }()
	stop = func() {
		cancel()
		if err, ran := <-ended; ran && err != context.Canceled {
			t.Errorf("Run: %v", err)
		}
		close(ended)
	}
	return f, stop
}

// drain reads all available deliveries, so that the watcher waits.
func drain(t *testing.T, w *watch.Watcher) {
	t.Helper()
	for {
		ds, err := w.Poll(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
	}
	select {
	case <-w.Ready():
	default:
	}
}

func TestNextWaitsForAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		defer stop()
		watcher := w.must(t, watch.Options{After: w.last})
		got := make(chan []watchtest.Report)
		go func() {
			ds, err := watcher.Next(t.Context(), nil)
			if err != nil {
				t.Error(err)
			}
			got <- reports(ds)
		}()
		synctest.Wait()
		w.apply(change{key: "a/p"}, change{key: "a/q"})
		if rs := <-got; len(rs) != 2 || rs[1].Key != "a/q" {
			t.Errorf("got %v, want the creations of a/p and a/q", rs)
		}
	})
}

// TestReadyWhileEventsAreLeft polls with too little room for all available events. Ready must not wait for another
// event.
func TestReadyWhileEventsAreLeft(t *testing.T) {
	f := newFixture(t, config{events: 100})
	f.reset()
	watcher := f.must(t, watch.Options{After: f.last})
	for range 3 {
		drain(t, watcher)
		f.apply(change{key: "a/p"})
		f.apply(change{key: "a/p"})
		f.publishAll()
		for range 2 {
			<-watcher.Ready()
			if ds, err := watcher.Poll(make([]watch.Delivery, 0, 1)); len(ds) != 1 || err != nil {
				t.Fatalf("got %v and error %v, want 1 delivery", ds, err)
			}
		}
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		defer stop()
		watcher := w.must(t, watch.Options{After: w.last})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if ds, err := watcher.Next(ctx, nil); len(ds) != 0 || err != context.Canceled {
			t.Errorf("cancelled: got %v and error %v, want %v", ds, err, context.Canceled)
		}
		w.apply(change{key: "a/p"})
		if ds, err := watcher.Next(t.Context(), nil); len(ds) != 1 || err != nil {
			t.Errorf("afterwards: got %v and error %v, want 1 delivery", ds, err)
		}
	})
}

func TestCloseEndsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		defer stop()
		watcher := w.must(t, watch.Options{After: w.last})
		go func() {
			synctest.Wait()
			watcher.Close()
		}()
		for range 2 {
			if _, err := watcher.Next(t.Context(), nil); err != io.EOF {
				t.Errorf("closed: got error %v, want io.EOF", err)
			}
		}
	})
}

func TestEndOfRunClosesWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		ended := make(chan error)
		for _, f := range filters {
			o := f.options()
			o.After = w.last
			watcher := w.must(t, o)
			go func() {
				_, err := watcher.Next(t.Context(), nil)
				ended <- err
			}()
		}
		synctest.Wait()
		stop()
		for range filters {
			if err := <-ended; err != io.EOF {
				t.Errorf("watcher ended with %v, want io.EOF", err)
			}
		}
		if _, err := w.hub.Watch(watch.Options{After: w.last}); err != watch.ErrClosed {
			t.Errorf("Watch afterwards: got error %v, want ErrClosed", err)
		}
		if s := w.hub.Stats(); s.Watchers != 0 || s.Groups != 0 {
			t.Errorf("leaked: %+v", s)
		}
	})
}

func TestEndOfEpochWakesAllWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		defer stop()
		watcher := w.must(t, watch.Options{After: w.last, Name: "p"})
		drain(t, watcher)
		w.reset()
		if _, err := watcher.Next(t.Context(), nil); err != io.EOF {
			t.Errorf("ended with %v, want io.EOF", err)
		}
	})
}

// TestChangesWakeMatchingWatchers checks which of many waiting watchers, with all kinds of filters, a change wakes.
func TestChangesWakeMatchingWatchers(t *testing.T) {
	waiting := []filter{
		{namespace: "a"}, {namespace: "b"}, {name: "p"}, {namespace: "a", name: "p"}, {namespace: "b", name: "p"},
		{field: "spec.nodeName=n1"}, {field: "spec.nodeName=n2"}, {field: "spec.nodeName=n3"}, {label: "app=x"}, {label: "app=y"},
	}
	tests := []struct {
		name   string
		change change
		want   string
	}{
		{"creation", change{key: "a/p", fields: "spec.nodeName=n1", labels: "app=x"}, "{a } {p} {a p} {spec.nodeName=n1} {app=x}"},
		{"other values", change{key: "a/p", fields: "spec.nodeName=n2", labels: "app=y"}, "{a } {p} {a p} {spec.nodeName=n1} {spec.nodeName=n2} {app=x} {app=y}"},
		{"same values", change{key: "a/p", fields: "spec.nodeName=n2", labels: "app=y"}, "{a } {p} {a p} {spec.nodeName=n2} {app=y}"},
		{"other object", change{key: "b/q"}, "{b }"},
		{"deletion", change{key: "a/p", gone: true}, "{a } {p} {a p} {spec.nodeName=n2} {app=y}"},
	}
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		defer stop()
		var watchers []*watch.Watcher
		for _, f := range waiting {
			o := f.options()
			o.After = w.last
			watchers = append(watchers, w.must(t, o))
		}
		for _, test := range tests {
			for _, watcher := range watchers {
				drain(t, watcher)
			}
			w.apply(test.change)
			synctest.Wait()
			var woken []string
			for i, watcher := range watchers {
				select {
				case <-watcher.Ready():
					f := waiting[i]
					words := slices.DeleteFunc([]string{f.namespace + " " + f.name, f.label, f.field}, func(s string) bool { return s == "" || s == " " })
					woken = append(woken, "{"+strings.TrimLeft(strings.Join(words, ""), " ")+"}")
				default:
				}
			}
			if got := strings.Join(woken, " "); got != test.want {
				t.Errorf("%s woke %s, want %s", test.name, got, test.want)
			}
		}
	})
}

// TestNoWakeIsLost has watchers begin to wait at about the time of their wake-up by Ready or Wake. A watcher that
// missed it would wait forever.
func TestNoWakeIsLost(t *testing.T) {
	const watchers, rounds = 4, 5000
	w, stop := running(t, config{events: 100})
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), proctest.Patience)
	defer cancel()
	received := make(chan int64, watchers)
	for i := range watchers {
		next := w.sleeper(t, i%2 == 0)
		go func() {
			for range rounds {
				ds, err := next(ctx)
				if err != nil || len(ds) != 1 {
					received <- -1
					return
				}
				received <- ds[0].Revision
				for range rand.IntN(20_000) { // some microseconds
				}
			}
		}()
	}
	for range rounds {
		w.apply(change{key: "a/p"})
		for range watchers {
			if revision := <-received; revision != w.last {
				t.Fatalf("received revision %d, want %d", revision, w.last)
			}
		}
	}
}

// sleeper makes a watcher and returns a function that waits for its next deliveries, by Ready or by Options.Wake.
func (f *fixture) sleeper(t *testing.T, ready bool) (next func(context.Context) ([]watch.Delivery, error)) {
	t.Helper()
	if ready {
		watcher := f.must(t, watch.Options{After: f.last})
		return func(ctx context.Context) ([]watch.Delivery, error) { return watcher.Next(ctx, nil) }
	}
	woken := make(chan struct{}, 1)
	watcher := f.must(t, watch.Options{After: f.last, Wake: func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}})
	return func(ctx context.Context) ([]watch.Delivery, error) {
		for {
			if ds, err := watcher.Poll(nil); err != nil || len(ds) > 0 {
				return ds, err
			}
			select {
			case <-woken:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// TestEventsOfAnOlderEpochAreNotDelivered publishes events that were read before a watcher entered the next epoch.
func TestEventsOfAnOlderEpochAreNotDelivered(t *testing.T) {
	f := newFixture(t, config{events: 100})
	f.reset()
	old := f.must(t, watch.Options{After: f.last})
	from := f.cache.Log().Next()
	f.apply(change{key: "a/p"})
	f.apply(change{key: "a/q"})
	events, _, err := f.cache.Log().Read(from, nil)
	if err != nil || len(events) != 2 {
		t.Fatalf("got %v and error %v, want 2 events", events, err)
	}
	f.reset()
	watcher := f.must(t, watch.Options{After: f.last, Bookmarks: true})
	f.hub.Publish(events)
	if ds, err := watcher.Poll(nil); len(ds) != 0 || err != nil {
		t.Errorf("received events of the previous epoch: %v, %v", reports(ds), err)
	}
	if b, ok := watcher.Bookmark(); !ok || b.Revision != f.last {
		t.Errorf("bookmark %v, want %d", reportOf(b), f.last)
	}
	if ds, err := old.Poll(nil); len(ds) != 0 || err != io.EOF {
		t.Errorf("the watcher of the previous epoch: got %v and error %v, want io.EOF", reports(ds), err)
	}
}

func TestStaleSnapshotsEndWatchers(t *testing.T) {
	f := newFixture(t, config{events: 100})
	if _, err := f.hub.Watch(watch.Options{}); !errors.Is(err, cache.ErrNotReady) {
		t.Errorf("before the first load: got error %v, want ErrNotReady", err)
	}
	f.reset()
	old := f.cache.Snapshot()
	f.reset()
	watcher := f.must(t, watch.Options{Initial: &old, Bookmarks: true})
	if ds, err := watcher.Poll(nil); len(ds) != 0 || err != io.EOF {
		t.Errorf("with a snapshot of the previous epoch: got %v and error %v, want io.EOF", ds, err)
	}
	if _, ok := watcher.Bookmark(); ok {
		t.Error("got a bookmark of the previous epoch")
	}
}

// TestSelectorsOfNothingAndEverythingDiffer checks that selectors of nothing and of everything, which have the
// same text, are not mixed up.
func TestSelectorsOfNothingAndEverythingDiffer(t *testing.T) {
	f := newFixture(t, config{events: 100})
	f.reset()
	all := f.must(t, watch.Options{After: f.last})
	noLabel := f.must(t, watch.Options{After: f.last, Label: labels.Nothing()})
	noField := f.must(t, watch.Options{After: f.last, Field: fields.Nothing()})
	f.apply(change{key: "a/p"})
	f.publishAll()
	if ds, err := all.Poll(nil); len(ds) != 1 || err != nil {
		t.Errorf("everything: got %v and error %v, want 1 delivery", ds, err)
	}
	for _, none := range []*watch.Watcher{noLabel, noField} {
		if ds, err := none.Poll(nil); len(ds) != 0 || err != nil {
			t.Errorf("nothing: got %v and error %v, want no delivery", ds, err)
		}
	}
}

// TestReadEventsAreGarbage checks that events are collected once the Log has dropped them. Two watchers of a group
// have read them, and a watcher of another group has skipped them.
func TestReadEventsAreGarbage(t *testing.T) {
	f := newFixture(t, config{events: 2})
	f.reset()
	one, two := f.must(t, watch.Options{After: f.last}), f.must(t, watch.Options{After: f.last})
	other := f.must(t, watch.Options{After: f.last, Namespace: "b"})
	var objects []weak.Pointer[cache.Object]
	for i := range 20 {
		f.apply(change{key: fmt.Sprintf("a/p%d", i)}, change{key: fmt.Sprintf("a/p%d", i-1), gone: true})
		f.publishAll()
		for _, watcher := range []*watch.Watcher{one, two, other} {
			ds, err := watcher.Poll(nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range ds {
				objects = append(objects, weak.Make(d.Object))
			}
		}
	}
	runtime.GC()
	// Only the Log's two events hold their objects, each received twice.
	if n := reachable(objects); n > 8 {
		t.Errorf("%d of %d delivered objects are still in memory, want at most 8", n, len(objects))
	}
	runtime.KeepAlive(one)
	runtime.KeepAlive(two)
	runtime.KeepAlive(other)
}

// reachable returns the number of objects that are still in memory.
func reachable(objects []weak.Pointer[cache.Object]) (n int) {
	for _, o := range objects {
		if o.Value() != nil {
			n++
		}
	}
	return n
}

// TestStuckWatchersUseBoundedMemory checks that a watcher that never reads holds few objects in memory.
func TestStuckWatchersUseBoundedMemory(t *testing.T) {
	f := newFixture(t, config{events: 2, backlog: 4})
	f.reset()
	stuck, quick := f.must(t, watch.Options{After: f.last}), f.must(t, watch.Options{After: f.last})
	drain(t, stuck)
	var objects []weak.Pointer[cache.Object]
	for range 50 {
		f.apply(change{key: "a/p"})
		f.publishAll()
		ds, err := quick.Poll(nil)
		if err != nil || len(ds) != 1 {
			t.Fatalf("got %v and error %v, want 1 delivery", ds, err)
		}
		objects = append(objects, weak.Make(ds[0].Object))
	}
	runtime.GC()
	if n, limit := reachable(objects), 4+2+1; n > limit {
		t.Errorf("%d objects are in memory, want at most 4 of the backlog, 2 of the Log and 1 replaced", n)
	}
	ds, err := stuck.Poll(nil)
	if err != nil || len(ds) != 4 {
		t.Errorf("the stuck watcher reads %v and error %v, want 4 deliveries", reports(ds), err)
	}
	if _, err := stuck.Poll(nil); !errors.As(err, new(cache.ErrTooOld)) {
		t.Errorf("the stuck watcher ends with %v, want ErrTooOld", err)
	}
	if s := f.hub.Stats(); s.Lapped != 1 {
		t.Errorf("%d watchers counted as lapped, want 1", s.Lapped)
	}
	runtime.KeepAlive(f)
}

func TestFramesAreBuiltOnce(t *testing.T) {
	f := newFixture(t, config{events: 100})
	f.reset()
	f.apply(change{key: "a/p", labels: "app=x"})
	s := f.cache.Snapshot()
	initial := f.must(t, watch.Options{Initial: &s, Bookmarks: true})
	one, two := f.must(t, watch.Options{After: f.last}), f.must(t, watch.Options{After: f.last, Namespace: "a"})
	yes, no := f.must(t, filterAfter("app=x", f.last)), f.must(t, filterAfter("app!=x", f.last))
	f.apply(change{key: "a/p"})
	f.publishAll()

	builds := 0
	frame := func(watcher *watch.Watcher, enc cache.EncodingID) string {
		t.Helper()
		ds, err := watcher.Poll(make([]watch.Delivery, 0, 1))
		if err != nil || len(ds) != 1 {
			t.Fatalf("got %v and error %v, want 1 delivery", ds, err)
		}
		var frames [2][]byte
		for i := range frames {
			frames[i], err = ds[0].Frame(enc, func(d watch.Delivery) ([]byte, error) {
				builds++
				return fmt.Appendf(nil, "%d %v", enc, reportOf(d)), nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if string(frames[0]) != string(frames[1]) {
			t.Errorf("frames %q and %q", frames[0], frames[1])
		}
		return string(frames[0])
	}
	for _, test := range []struct {
		name    string
		watcher *watch.Watcher
		enc     cache.EncodingID
		want    string
		builds  int
	}{
		{"an event", one, 1, "1 MODIFIED a/p@3 a/p@3", 1},
		{"another group", two, 1, "1 MODIFIED a/p@3 a/p@3", 0},
		{"another type", yes, 1, "1 DELETED a/p@3 a/p@2", 1},
		{"another encoding and type", no, 2, "2 ADDED a/p@3 a/p@3", 1},
		{"an initial object", initial, 1, "1 ADDED a/p@2 a/p@2", 2},
		{"a bookmark", initial, 1, "1 INITIAL-END @2 ", 2},
		{"an event in the Log", initial, 1, "1 MODIFIED a/p@3 a/p@3", 0},
	} {
		builds = 0
		if got := frame(test.watcher, test.enc); got != test.want || builds != test.builds {
			t.Errorf("%s: %q built %d times, want %q built %d times", test.name, got, builds, test.want, test.builds)
		}
	}
	if _, err := (watch.Delivery{}).Frame(0, func(watch.Delivery) ([]byte, error) { return nil, errBad }); err != errBad {
		t.Errorf("got error %v, want that of build, %v", err, errBad)
	}
}

func filterAfter(label string, after int64) watch.Options {
	o := filter{label: label}.options()
	o.After = after
	return o
}

// TestLagCountsWatchersThatHaveNotRead checks Lag with one group that is visited in several parts, and a watcher that
// has yet to read its initial objects.
func TestLagCountsWatchersThatHaveNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := running(t, config{events: 100})
		defer stop()
		const many = 600
		var watchers []*watch.Watcher
		for range many {
			watchers = append(watchers, w.must(t, watch.Options{After: w.last, Name: "p"}))
			drain(t, watchers[len(watchers)-1])
		}
		lags := func(wantBehind int, wantSlowest time.Duration) {
			t.Helper()
			if behind, slowest := w.hub.Lag(); behind != wantBehind || slowest != wantSlowest {
				t.Errorf("%d watchers are behind, the slowest by %v; want %d, by %v", behind, slowest, wantBehind, wantSlowest)
			}
		}
		lags(0, 0)
		snapshot := w.cache.Snapshot()
		w.must(t, watch.Options{Initial: &snapshot})
		lags(1, 0)
		w.apply(change{key: "a/p"})
		synctest.Wait()
		<-time.After(3 * time.Second)
		lags(many+1, 3*time.Second)
		for _, watcher := range watchers[1:] {
			drain(t, watcher)
		}
		lags(2, 3*time.Second)
	})
}

func TestNewNeedsACache(t *testing.T) {
	if _, err := watch.New(watch.Config{}); err == nil {
		t.Error("New without a Cache succeeded")
	}
}

func TestEventTypesHaveNames(t *testing.T) {
	if got := watch.EventType(77).String(); got != "EventType(77)" {
		t.Errorf("got %q, want EventType(77)", got)
	}
}

// TestLiveWatchersDeliverTheChainBeforeTheyEnd checks that a live watcher delivers events that were published before
// its Hub or epoch ended. The last events of a resource that is no longer served cannot be read otherwise.
func TestLiveWatchersDeliverTheChainBeforeTheyEnd(t *testing.T) {
	for name, end := range map[string]func(w *fixture, stop func()){
		"the hub":   func(_ *fixture, stop func()) { stop() },
		"the epoch": func(w *fixture, _ func()) { w.reset() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, stop := running(t, config{events: 100})
				stop = sync.OnceFunc(stop)
				defer stop()
				watcher := w.must(t, watch.Options{After: w.last})
				drain(t, watcher)
				w.apply(change{key: "a/p"})
				w.apply(change{key: "a/q"})
				synctest.Wait()
				end(w, stop)
				if ds, err := watcher.Next(t.Context(), make([]watch.Delivery, 0, 1)); len(ds) != 1 || err != nil {
					t.Errorf("first read: got %v and error %v, want 1 delivery", reports(ds), err)
				}
				if ds, err := watcher.Next(t.Context(), nil); len(ds) != 1 || err != nil {
					t.Errorf("second read: got %v and error %v, want 1 delivery", reports(ds), err)
				}
				if ds, err := watcher.Next(t.Context(), nil); len(ds) != 0 || err != io.EOF {
					t.Errorf("last read: got %v and error %v, want io.EOF", reports(ds), err)
				}
			})
		})
	}
}
