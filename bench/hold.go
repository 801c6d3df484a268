package bench

import (
	"context"
	"time"
)

// MemoryPerWatch names the Value of Hold with the resident memory that each watch adds.
const MemoryPerWatch = "memory per watch"

// HoldConfig is a workload of watches that receive no events.
type HoldConfig struct {
	// Name is the name of the result.
	Name string
	// Path is the collection to watch, Accept the media type of the events.
	Path, Accept string
	Watchers     int
	// Idle is how long Hold keeps the watches open before it reads the server's memory.
	Idle time.Duration
}

// Hold opens watches. It records the time of each, including its TLS handshake, the server's CPU time, and the
// growth of the server's memory.
func Hold(ctx context.Context, t *Target, c HoldConfig) (*Result, error) {
	return c.measure(ctx, t, func(rec *recorder, w *watchers) error {
		if err := rec.measured(func() error { return w.open(ctx, c.Watchers, true) }); err != nil {
			return err
		}
		w.begin(c.Watchers, 0) // notices watches that end
		rec.phase("idle")
		return c.idle(ctx, t, rec)
	})
}

// measure passes unopened watches to do, and closes them afterwards.
func (c *HoldConfig) measure(ctx context.Context, t *Target, do func(*recorder, *watchers) error) (*Result, error) {
	if err := (Load{Operations: c.Watchers, Clients: 1}).check(); err != nil {
		return nil, err
	}
	return t.recorded(c.Name, "watch", c.Watchers, func(rec *recorder) error {
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

// idle waits, and then records the memory of the open watches.
func (c *HoldConfig) idle(ctx context.Context, t *Target, rec *recorder) error {
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
	rec.set(func(r *Result) {
		r.Server = after
		if r.Ops > 0 && t.Process.PID != 0 {
			r.Add(MemoryPerWatch, float64(after.RSS-r.Before.RSS)/float64(r.Ops), "B")
		}
	})
	return nil
}

// Storm opens watches, closes them all at once and reopens them at their first revision. It records the time from
// the close until the server has accepted each again, and the server's cost in that time.
func Storm(ctx context.Context, t *Target, c HoldConfig) (*Result, error) {
	return c.measure(ctx, t, func(rec *recorder, w *watchers) error {
		if err := w.open(ctx, c.Watchers, false); err != nil {
			return err
		}
		rec.phase("reconnecting")
		return rec.measured(func() error {
			w.close()
			w.closing.Store(false)
			w.since, w.atOnce = time.Now(), openingAll
			return w.open(ctx, c.Watchers, true)
		})
	})
}
