package bench

import (
	"context"
	"fmt"
	"time"
)

// StartConfig is a workload of cold starts.
type StartConfig struct {
	// Name heads the result.
	Name string
	// Starts is how often the server is started.
	Starts int
	// Launch starts the server and returns it, with the time of its start and what
	// stops it and waits until it has ended.
	Launch func(ctx context.Context) (*Target, time.Time, func() error, error)
	// Then runs once the server is ready, before it is stopped, nil for nothing.
	Then func(ctx context.Context, t *Target) error
	// Shown receives the progress: the server under load has no Target before it is started.
	Shown *Target
}

// Start records the time from the start of a process until its /readyz answers 200,
// and what the process has used by then.
func Start(ctx context.Context, c StartConfig) (*Result, error) {
	rec := &recorder{target: c.Shown, total: c.Starts, began: time.Now(), name: c.Name, result: NewResult(c.Name, "start")}
	rec.result.Loop = ClosedLoop
	if c.Shown == nil {
		rec.target = &Target{}
	}
	rec.target.running.Store(rec)
	defer rec.finish()
	for range c.Starts {
		if rec.target.stopped() {
			break
		}
		if err := c.one(ctx, rec); err != nil {
			return nil, err
		}
	}
	return rec.finish(), nil
}

func (c *StartConfig) one(ctx context.Context, rec *recorder) (err error) {
	t, began, stop, err := c.Launch(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if failed := stop(); err == nil {
			err = failed
		}
	}()
	if err := t.Ready(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	used, err := t.Process.Usage()
	if err != nil {
		return fmt.Errorf("bench: what was started has ended, and another server answers: %w", err)
	}
	rec.record(took, outcome{}, nil)
	rec.mu.Lock()
	rec.result.Wall += took
	rec.result.ServerCPU += used.CPU
	rec.result.Server = used
	rec.mu.Unlock()
	if c.Then == nil {
		return nil
	}
	return c.Then(ctx, t)
}

// Ready waits until the server's /readyz answers 200. It gives up when the server's process, if it is
// known, has ended.
func (t *Target) Ready(ctx context.Context) error {
	const pause = 5 * time.Millisecond
	own := t.conn(ctx)
	defer own.close()
	for {
		_, err := own.do(Request{Path: "/readyz", Accept: "*/*"})
		if err == nil {
			return nil
		}
		if _, gone := t.Process.Usage(); gone != nil {
			return fmt.Errorf("bench: the server has ended: %w", err)
		}
		if t.stopped() || Sleep(ctx, pause) != nil {
			return fmt.Errorf("bench: not ready: %w", err)
		}
	}
}

// once sends one request over a connection of its own and reads the answer.
func (t *Target) once(ctx context.Context, c Request) error {
	ctx, cut := t.graceful(ctx)
	defer cut()
	own := t.conn(ctx)
	defer own.close()
	_, err := own.try(c, new(outcome))
	return err
}

// Once asks for a path once, over a connection of its own, and returns the size of the answer's
// body.
func (t *Target) Once(ctx context.Context, path, accept string) (int64, error) {
	own := t.conn(ctx)
	defer own.close()
	o, err := own.do(Request{Path: path, Accept: accept})
	return o.bytes, err
}
