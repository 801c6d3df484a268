package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// loop says how operations follow each other. With a Rate the loop is open: each
// operation has a time at which it should begin, and its latency counts from there,
// so that a stall of the server counts for every operation that waited meanwhile. Without one
// the loop is closed: each client begins its next operation when the last has ended.
type loop struct {
	ops, clients int
	rate         float64 // operations per second of all clients, 0 for a closed loop
}

// check returns an error for a loop that cannot be run.
func (l loop) check() error {
	if l.ops < 1 || l.clients < 1 || l.rate < 0 {
		return fmt.Errorf("bench: want at least one operation and one client and no negative rate, got %d, %d and %g", l.ops, l.clients, l.rate)
	}
	return nil
}

// operation is number i of a loop. intended is when it should have begun.
type operation func(ctx context.Context, l *lane, i int, intended time.Time) (bytes int64, err error)

// run records each operation. Failed ones end nothing; the end of ctx does.
func (l loop) run(ctx context.Context, t *Target, rec *recorder, op operation) error {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	start := time.Now()
	for range min(l.clients, l.ops) {
		group.Go(func() error {
			own := &lane{t: t}
			defer own.close()
			for {
				i := int(next.Add(1)) - 1
				if i >= l.ops {
					return nil
				}
				intended, err := l.await(ctx, start, i)
				if err != nil {
					return err
				}
				n, err := op(ctx, own, i, intended)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				rec.record(time.Since(intended), n, err)
			}
		})
	}
	return group.Wait()
}

// await returns when operation i should begin, at that time or as soon after as a
// client was free.
func (l loop) await(ctx context.Context, start time.Time, i int) (time.Time, error) {
	if l.rate == 0 {
		return time.Now(), ctx.Err()
	}
	intended := start.Add(time.Duration(float64(i) / l.rate * float64(time.Second)))
	wait := time.Until(intended)
	if wait <= 0 {
		return intended, ctx.Err()
	}
	return intended, sleep(ctx, wait)
}

// sleep waits.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
