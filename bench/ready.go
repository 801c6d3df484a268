package bench

import (
	"context"
	"fmt"
	"time"
)

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
