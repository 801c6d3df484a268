package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
)

// SlowConfig is a workload of clients that all request large answers at once and read them
// slowly, beside watches that must receive changes meanwhile. It shows how much memory the
// server needs: Result.Server.PeakRSS.
type SlowConfig struct {
	// Name is the name of the result.
	Name string
	// Path is the path that all clients request, with its query.
	Path string
	// Accepts are media types, which the clients request in turn.
	Accepts []string
	// Clients is how many there are, BytesPerSecond how fast each reads.
	Clients, BytesPerSecond int
	// Watch says which watches are open and which changes are made while the clients
	// read.
	Watch WatchConfig
}

func (c *SlowConfig) check() error {
	if c.Clients < 1 || c.BytesPerSecond < 1 || len(c.Accepts) == 0 {
		return errors.New("bench: want at least one slow client, a speed and a media type")
	}
	return c.Watch.check()
}

// Slow runs the workload and returns one Result of the slow clients, which has the server's cost, and one of
// the deliveries to the watches. An incomplete answer is an error of the first; a watch that ends or misses a
// change is an error of the second.
func Slow(ctx context.Context, t *Target, c SlowConfig) ([]*Result, error) {
	w := &c.Watch
	w.complete()
	if err := c.check(); err != nil {
		return nil, err
	}
	var told *recorder
	lists, err := t.recorded(c.Name, "request", c.Clients, func(rec *recorder) error {
		told = rec.part(w.Name, "delivery")
		told.result.Part = false
		watching, err := w.open(ctx, t, told)
		if err != nil {
			return err
		}
		defer watching.close()
		watching.begin(w.Watchers, w.Operations, int64(w.Deliveries))
		rec.phase("reading slowly")
		within, cut := t.graceful(ctx)
		defer cut()
		return rec.measured(func() error {
			group, both := errgroup.WithContext(within)
			group.Go(func() error { return w.change(both, t, told, watching) })
			for i := range c.Clients {
				group.Go(func() error { return c.read(both, t, rec, c.Accepts[i%len(c.Accepts)]) })
			}
			if err := group.Wait(); err != nil && (ctx.Err() != nil || !t.stopped()) {
				return err
			}
			return watching.awaitDeliveries(ctx, w.Patience)
		})
	})
	if err != nil {
		return nil, err
	}
	told.result.Wall, told.result.Server, told.result.Interrupted = lists.Wall, lists.Server, lists.Interrupted
	told.result.Protocol = lists.Protocol
	return []*Result{lists, told.result}, nil
}

// read asks once and records how that ended.
func (c *SlowConfig) read(ctx context.Context, t *Target, rec *recorder, accept string) error {
	start := time.Now()
	n, err := c.readSlowly(ctx, t, Request{Path: c.Path, Accept: accept})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	rec.record(time.Since(start), outcome{bytes: n, status: StatusOf(err)}, err)
	return nil
}

// readSlowly sends a request over a connection of its own and reads the answer no faster
// than BytesPerSecond.
func (c *SlowConfig) readSlowly(ctx context.Context, t *Target, r Request) (n int64, err error) {
	conn := t.conn(ctx)
	defer conn.close()
	resp, err := conn.send(r)
	conn.unlimit() // reading the answer takes as long as it is meant to
	if err != nil {
		return 0, conn.explain(err)
	}
	start := time.Now()
	for {
		sip, err := io.CopyN(io.Discard, resp.Body, largeBuffer)
		n += sip
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
