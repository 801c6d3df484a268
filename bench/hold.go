package bench

import (
	"context"
	"time"
)

// MemoryPerWatch names the resident memory that Hold saw each watch add.
const MemoryPerWatch = "memory per watch"

// HoldConfig is a workload of watches that are opened and then get no events.
type HoldConfig struct {
	// Name is the name of the result.
	Name string
	// Path is the collection watched, Accept the media type of events.
	Path, Accept string
	// Watchers is how many are opened.
	Watchers int
	// Idle is how long they are then held open. The CPU time that the server uses meanwhile is reported as
	// its idle cost.
	Idle time.Duration
	// Returns is how often all of them are closed and opened again at their last revision.
	Returns int
}

// Hold opens watches. It records how long each took, including its TLS handshake, the server's CPU time, and the
// growth of the server's memory.
func Hold(ctx context.Context, t *Target, c HoldConfig) (*Result, error) {
	return c.measure(ctx, t, c.Watchers, func(rec *recorder, w *watchers) error {
		if err := rec.measured(func() error { return w.open(ctx, c.Watchers, true) }); err != nil {
			return err
		}
		w.begin(c.Watchers, 0, 0) // notices watches that end
		rec.phase("idle")
		return c.idle(ctx, t, rec)
	})
}

// measure does what opens the watches, and closes them. ops is how often one is opened.
func (c *HoldConfig) measure(ctx context.Context, t *Target, ops int, do func(*recorder, *watchers) error) (*Result, error) {
	if err := (Load{Operations: ops, Clients: 1}).check(); err != nil {
		return nil, err
	}
	return t.recorded(c.Name, "watch", ops, func(rec *recorder) error {
		revision, err := t.revision(ctx, c.Path)
		if err != nil {
			return err
		}
		watch := watchCall(c.Path, revision, c.Accept)
		w := &watchers{target: t, rec: rec, atOnce: opening, calls: func(int) Request { return watch }}
		defer w.close()
		rec.phase("opening")
		return do(rec, w)
	})
}

// idle waits and adds the server's cost of holding the open watches.
func (c *HoldConfig) idle(ctx context.Context, t *Target, rec *recorder) error {
	before, err := t.Process.Usage()
	if err != nil {
		return err
	}
	idle, end := context.WithTimeout(ctx, c.Idle)
	defer end()
	select {
	case <-idle.Done():
	case <-t.Stopping():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	after, err := t.Process.Usage()
	if err != nil {
		return err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	r := rec.result
	r.Server = after
	if r.Ops == 0 || t.Process.PID == 0 {
		return nil
	}
	n := float64(r.Ops)
	r.Add(MemoryPerWatch, float64(after.RSS-r.Before.RSS)/n, "B")
	r.Add("anonymous memory per watch", float64(after.Anonymous-r.Before.Anonymous)/n, "B")
	if c.Idle > 0 {
		r.Add("idle CPU per second", (after.CPU-before.CPU).Seconds()/c.Idle.Seconds(), "s")
	}
	return nil
}

// Storm opens watches, closes all of them at once and opens them again at the revision
// where they were, as often as Returns says. It records the time from the close until
// the server has accepted each again, and the server's cost in that time.
func Storm(ctx context.Context, t *Target, c HoldConfig) (*Result, error) {
	return c.measure(ctx, t, c.Watchers*c.Returns, func(rec *recorder, w *watchers) error {
		if err := w.open(ctx, c.Watchers, false); err != nil {
			return err
		}
		for range c.Returns {
			if t.stopped() {
				break
			}
			rec.phase("coming back")
			err := rec.measured(func() error {
				w.close()
				w.closing.Store(false)
				w.since, w.atOnce = time.Now(), openingAll
				return w.open(ctx, c.Watchers, true)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}
