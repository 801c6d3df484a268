package bench

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Ready waits until the server's /readyz answers 200.
func (t *Target) Ready(ctx context.Context) error {
	const pause = 5 * time.Millisecond
	own := t.conn(ctx)
	defer own.close()
	for {
		_, err := own.do(Request{Path: "/readyz", Accept: "*/*"})
		if err == nil {
			return nil
		}
		if t.stopped() || Sleep(ctx, pause) != nil {
			return fmt.Errorf("bench: not ready: %w", err)
		}
	}
}

// Once sends one request over a new connection, writes the body of the response to w and returns its size.
func (t *Target) Once(ctx context.Context, r Request, w io.Writer) (int64, error) {
	ctx, cut := t.graceful(ctx)
	defer cut()
	own := t.conn(ctx)
	defer own.close()
	var o outcome
	_, err := own.try(r, &o, w)
	return o.bytes, err
}

// once sends one request and discards the body of the response.
func (t *Target) once(ctx context.Context, r Request) error {
	_, err := t.Once(ctx, r, io.Discard)
	return err
}
