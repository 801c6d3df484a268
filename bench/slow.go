package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

// SlowConfig is a workload of clients that request large responses at the same time and read them slowly.
// Meanwhile watches must receive changes. Result.Server.PeakRSS is the memory that the server needs.
type SlowConfig struct {
	Name string
	Path string
	// Accepts are the media types, which the clients use in turn.
	Accepts []string
	// Clients is the number of clients. Each reads at most BytesPerSecond.
	Clients, BytesPerSecond int
	Watch                   WatchConfig
}

func (c *SlowConfig) check() error {
	if c.Clients < 1 || c.BytesPerSecond < 1 || len(c.Accepts) == 0 {
		return errors.New("bench: --clients and --bytes-per-second must be at least 1, and --accept must name a media type")
	}
	return c.Watch.check()
}

// Slow runs the workload. It returns a Result of the slow clients, which has the server's cost, and a Result of
// the deliveries to the watches. An incomplete response is an error of the first. A watch that ends or misses
// a change is an error of the second.
func Slow(ctx context.Context, t *Target, c SlowConfig) ([]*Result, error) {
	w := &c.Watch
	w.complete()
	if err := c.check(); err != nil {
		return nil, err
	}
	var deliveries *recorder
	lists, err := t.recorded(c.Name, "request", c.Clients, func(rec *recorder) error {
		deliveries = rec.part(w.Name, "delivery")
		deliveries.result.Part = false
		watching, err := w.open(ctx, t, deliveries)
		if err != nil {
			return err
		}
		defer watching.close()
		watching.begin(w.Watchers, w.Operations)
		rec.phase("reading slowly")
		within, cut := t.graceful(ctx)
		defer cut()
		return rec.measured(func() error {
			group, both := errgroup.WithContext(within)
			expected := 0
			group.Go(func() (err error) {
				expected, err = w.change(both, t, deliveries, watching)
				return err
			})
			for i := range c.Clients {
				group.Go(func() error { return c.read(both, t, rec, c.Accepts[i%len(c.Accepts)]) })
			}
			if err := group.Wait(); err != nil && (ctx.Err() != nil || !t.stopped()) {
				return err
			}
			return watching.awaitDeliveries(ctx, expected, w.Patience)
		})
	})
	if err != nil {
		return nil, err
	}
	delivered := deliveries.finish()
	delivered.Wall, delivered.Server = lists.Wall, lists.Server
	return []*Result{lists, delivered}, nil
}

func (c *SlowConfig) read(ctx context.Context, t *Target, rec *recorder, accept string) error {
	start := time.Now()
	n, err := c.readSlowly(ctx, t, Request{Path: c.Path, Accept: accept})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	rec.record(time.Since(start), outcome{bytes: n, status: StatusOf(err)}, err)
	return nil
}

// readSlowly sends a request over a new connection. It reads the response at BytesPerSecond at most.
func (c *SlowConfig) readSlowly(ctx context.Context, t *Target, r Request) (n int64, err error) {
	conn := t.conn(ctx)
	defer conn.close()
	resp, err := conn.send(r)
	conn.stopTimer() // the body has no timeout, because reading is slow on purpose
	if err != nil {
		return 0, conn.explain(err)
	}
	start := time.Now()
	for {
		read, err := io.CopyN(io.Discard, resp.Body, largeBuffer)
		n += read
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, fmt.Errorf("bench: body of %s: %w", r.Path, err)
		}
		due := start.Add(time.Duration(float64(n) / float64(c.BytesPerSecond) * float64(time.Second)))
		if err := Sleep(ctx, time.Until(due)); err != nil {
			return n, err
		}
	}
}
