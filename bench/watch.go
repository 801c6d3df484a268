package bench

import (
	"context"
	"fmt"
	"time"
)

// WatchConfig is a workload of changes whose events go to watchers.
type WatchConfig struct {
	Name string
	// Path is the collection. The watches begin at its current revision.
	Path string
	// Selections are the paths to watch, with queries, which the watchers use in turn. Nil means Path.
	Selections []string
	Accept     string
	// Watchers is the number of watchers that read. Stuck is the number of additional watchers that never read.
	Watchers, Stuck int
	// Objects are the paths of the objects that Watch changes in turn. Each change is a merge patch of an annotation.
	Objects []string
	// Load is the load of the changes. A plan must be open.
	Load
	// Deliveries is the number of events that all watchers together must receive. 0 means that each watcher
	// receives each change.
	Deliveries int
	// Patience is how long to wait for further deliveries; 0 means 5 s.
	Patience time.Duration
	// PerChange divides the cost by changes instead of deliveries.
	PerChange bool
	// Through is the server that receives the changes, nil for the target itself. With another server of
	// the same etcd, the cost excludes the writes.
	Through *Target
}

// complete sets the defaults of fields that are zero.
func (c *WatchConfig) complete() {
	c.Operations = c.total()
	if c.Deliveries == 0 {
		c.Deliveries = c.Watchers * c.Operations
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
}

func (c *WatchConfig) check() error {
	if c.Watchers < 1 || len(c.Objects) == 0 {
		return fmt.Errorf("bench: --watchers and --objects must be at least 1, are %d and %d", c.Watchers, len(c.Objects))
	}
	return c.bounded()
}

// Values of Watch's Result: the time from the response to a change until its delivery, 0 if the
// delivery came first. Unlike the Result's latency, they exclude the time of the write.
const (
	LateP99  = "after the change's response, p99"
	LateP999 = "after the change's response, p99.9"
)

// Watch opens the watches, makes the changes, and records the time from when each change was due until each
// watcher has received it. Missing deliveries are errors. The cost of the server counts from the first
// change to the last delivery.
func Watch(ctx context.Context, t *Target, c WatchConfig) (*Result, error) {
	c.complete()
	if err := c.check(); err != nil {
		return nil, err
	}
	var w *watchers
	result, err := t.recorded(c.Name, "delivery", c.Deliveries, func(rec *recorder) (err error) {
		if w, err = c.open(ctx, t, rec); err != nil {
			return err
		}
		defer w.close()
		w.begin(c.Watchers, c.Operations)
		if err := c.warm(ctx, t, rec, w); err != nil {
			return err
		}
		rec.phase("changing")
		return rec.measured(func() error {
			expected, err := c.change(ctx, t, rec, w)
			if err != nil {
				return err
			}
			return w.awaitDeliveries(ctx, expected, c.Patience)
		})
	})
	if err != nil {
		return nil, err
	}
	c.account(result)
	result.Add(LateP99, w.lateness(99), "s")
	result.Add(LateP999, w.lateness(99.9), "s")
	return result, nil
}

// open opens the watches at the collection's current revision.
func (c *WatchConfig) open(ctx context.Context, t *Target, rec *recorder) (*watchers, error) {
	rec.phase("opening watches")
	revision, err := t.revision(ctx, c.Path)
	if err != nil {
		return nil, err
	}
	selections := c.Selections
	if len(selections) == 0 {
		selections = []string{c.Path}
	}
	w := &watchers{target: t, rec: rec, atOnce: opening, calls: func(i int) Request {
		return watchCall(selections[i%len(selections)], revision, c.Accept)
	}}
	if c.Stuck > 0 {
		w.stuck = c.Watchers
	}
	if err := w.open(ctx, c.Watchers+c.Stuck, false); err != nil {
		return nil, err
	}
	return w, nil
}

// watchCall returns a watch that starts after a revision and lasts at most an hour.
func watchCall(path, revision, accept string) Request {
	return Request{Path: WithQuery(path, "watch=true", "allowWatchBookmarks=true", "timeoutSeconds=3600", "resourceVersion="+revision), Accept: accept}
}

// warm makes changes that the watchers ignore, because their marks name another run.
func (c *WatchConfig) warm(ctx context.Context, t *Target, rec *recorder, w *watchers) error {
	l := loop{Load: c.Load, through: c.Through}
	return l.warm(ctx, t, rec, func(ctx context.Context, own *conn, i int, _ time.Time) (outcome, error) {
		return own.do(markPatch(c.Objects[i%len(c.Objects)], w.run-1, i))
	})
}

// change makes the changes, through c.Through or else t. It returns the number of deliveries to expect.
func (c *WatchConfig) change(ctx context.Context, t *Target, rec *recorder, w *watchers) (expected int, err error) {
	// The operations of the workload are deliveries, so changes have a separate recorder.
	writes := &recorder{result: NewResult("", "")}
	l := loop{Load: c.Load, through: c.Through}
	err = l.run(ctx, t, writes, func(ctx context.Context, own *conn, i int, due time.Time) (outcome, error) {
		w.sent[i].Store(due.UnixNano())
		o, err := own.do(markPatch(c.Objects[i%len(c.Objects)], w.run, i))
		w.responded[i].Store(time.Now().UnixNano())
		return o, err
	})
	if err != nil {
		return 0, err
	}
	made := writes.result
	if made.Failures() > 0 {
		err := fmt.Errorf("bench: %d of %d changes failed: %s", made.Failures(), made.Ops, made.FirstError)
		if made.Succeeded() == 0 {
			return 0, err
		}
		rec.fail(err)
	}
	rec.set(func(r *Result) {
		r.Loop, r.Late = l.kind(), made.Late
		r.Add("changes", float64(made.Ops), "")
	})
	// With Selections, only some watchers receive a change: subtract the average.
	return c.Deliveries - made.Failures()*c.Deliveries/c.Operations, nil
}

// markPatch returns a change with a mark, from which watchers know the run and the number of the change.
func markPatch(path string, run int64, i int) Request {
	return Request{
		Method: "PATCH", Path: path, Accept: JSON, ContentType: "application/merge-patch+json",
		Body: fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotation, markText(run, i)),
	}
}

func (c *WatchConfig) account(r *Result) {
	deliveries := r.Succeeded()
	r.Add("changes per second", r.Value("changes")/r.Wall.Seconds(), "/s")
	if c.PerChange {
		r.Unit = "event"
		r.Add("deliveries", float64(deliveries), "")
		r.Ops = int(r.Value("changes")) + r.Failures()
	}
}
