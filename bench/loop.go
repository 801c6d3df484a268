package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench/stages"
)

// Load sets the number of operations of a workload, and their rate.
type Load struct {
	// Operations is the number of operations, Clients the number of concurrent ones.
	Operations, Clients int
	// Rate is the rate of all clients together, in operations per second. With 0, each client sends its next
	// operation when the last has ended.
	Rate float64
	// Plan, unless it is zero, replaces Operations and Rate and, if it is closed, Clients.
	Plan stages.Plan
	// Warmup is how long the load runs at its initial level before measurement starts.
	Warmup time.Duration
}

// Kinds of loops, the values of Result.Loop.
const (
	OpenLoop   = "open"
	ClosedLoop = "closed"
)

// loop runs operations, in an open or closed loop as the package documentation defines them.
type loop struct {
	Load

	// between, unless nil, is called before each operation of a closed loop. No latency includes its time.
	between func(ctx context.Context, i int) error
	// through is the Target that receives the requests, nil for the measured one.
	through *Target
	// strict ends the loop with the error of the first operation that fails.
	strict bool
}

// check returns an error for a load that cannot be run.
func (l Load) check() error {
	if l.Warmup < 0 {
		return fmt.Errorf("bench: --warmup must not be negative, is %v", l.Warmup)
	}
	if l.Clients < 1 && (l.Plan.IsZero() || l.Plan.Open) {
		return fmt.Errorf("bench: --clients must be at least 1, is %d", l.Clients)
	}
	switch {
	case !l.Plan.IsZero():
	case l.Operations < 1:
		return fmt.Errorf("bench: want at least one operation, not %d", l.Operations)
	case l.Rate < 0 || math.IsNaN(l.Rate) || math.IsInf(l.Rate, 0):
		return fmt.Errorf("bench: --rate must be 0 or more, is %g", l.Rate)
	}
	return nil
}

// bounded is check for workloads that need to know the number of operations.
func (l Load) bounded() error {
	if !l.Plan.IsZero() && !l.Plan.Open {
		return errors.New("bench: this workload must know how many operations there are: plan rates (--stages 10s:100/s), or give --rate beside --duration")
	}
	return l.check()
}

// total returns the number of operations, 0 if only time ends the load.
func (l Load) total() int {
	switch {
	case l.Plan.IsZero():
		return l.Operations
	case l.Plan.Open:
		return l.Plan.Operations()
	}
	return 0
}

// open reports whether each operation has a due time.
func (l Load) open() bool { return l.Rate > 0 || l.Plan.Open }

func (l Load) kind() string {
	if l.open() {
		return OpenLoop
	}
	return ClosedLoop
}

// operation runs operation i of a loop, which was due to begin at due.
type operation func(ctx context.Context, own *conn, i int, due time.Time) (outcome, error)

// outcome describes an operation, whether it failed or not.
type outcome struct {
	bytes   int64
	status  int // of the last response, 0 without one
	retries int // responses of 429 that caused a retry
}

// warm runs the load at its initial level without recording it.
func (l loop) warm(ctx context.Context, t *Target, rec *recorder, op operation) error {
	if l.Warmup == 0 {
		return nil
	}
	rec.phase("warming up")
	defer rec.phase("")
	first := loop{Load: Load{Clients: l.Clients}, between: l.between, through: l.through}
	level, open := l.Rate, l.open()
	if !l.Plan.IsZero() {
		level = l.Plan.First()
	} else if !open {
		level = float64(l.Clients)
	}
	first.Plan = stages.Constant(open, l.Warmup, level)
	return first.run(ctx, t, &recorder{result: NewResult("", "")}, op)
}

// run runs and records the operations, including failed ones. It returns early with an error when ctx ends, and
// early without an error after Target.Stop.
func (l loop) run(ctx context.Context, t *Target, rec *recorder, op operation) error {
	within, cut := t.graceful(ctx)
	defer cut()
	group, within := errgroup.WithContext(within)
	r := &running{loop: l, rec: rec, stop: t.Stopping(), start: time.Now(), ops: l.total()}
	if r.ops == 0 {
		r.ops = math.MaxInt
	}
	clients := l.Clients
	if plan := l.Plan; !plan.IsZero() && !plan.Open {
		clients = int(plan.Most())
	}
	rec.set(func(r *Result) { r.Loop = l.kind() })
	through := l.through
	if through == nil {
		through = t
	}
	for client := range min(clients, r.ops) {
		group.Go(func() error {
			own := through.conn(within)
			defer own.close()
			return r.client(within, own, client, op)
		})
	}
	err := group.Wait()
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		return nil // Stop has canceled operations that took too long
	}
	return err
}

// measure runs op in the loop as the named workload: the warm-up, and then the measured part.
func (l loop) measure(ctx context.Context, t *Target, name, unit string, op operation) (*Result, error) {
	return t.recorded(name, unit, l.total(), func(rec *recorder) error {
		if err := l.warm(ctx, t, rec, op); err != nil {
			return err
		}
		return rec.measured(func() error { return l.run(ctx, t, rec, op) })
	})
}

func send(request func(i int) Request) operation {
	return func(ctx context.Context, own *conn, i int, _ time.Time) (outcome, error) {
		return own.do(request(i))
	}
}

type running struct {
	loop
	rec   *recorder
	stop  <-chan struct{}
	start time.Time
	ops   int
	next  atomic.Int64
}

// client runs one operation after the other until none are left.
func (r *running) client(ctx context.Context, own *conn, client int, op operation) error {
	for {
		i, due, err := r.claim(ctx, client)
		if errors.Is(err, errStopped) {
			return nil
		} else if err != nil {
			return err
		}
		var o outcome
		due, err = r.prepare(ctx, i, due)
		if err == nil {
			o, err = op(ctx, own, i, due)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errStopped):
			return nil
		}
		r.rec.record(time.Since(due), o, err)
		if err != nil && r.strict {
			return err
		}
	}
}

// planInterval is how often an idle client checks whether the plan needs it.
const planInterval = 10 * time.Millisecond

// claim takes the next operation and returns its due time. It returns errStopped if no operation is left or the
// workload must stop.
func (r *running) claim(ctx context.Context, client int) (i int, due time.Time, err error) {
	select {
	case <-r.stop:
		return 0, due, errStopped
	default:
	}
	if plan := r.Plan; !plan.IsZero() && !plan.Open {
		for plan.Clients(time.Since(r.start)) <= client {
			if time.Since(r.start) >= plan.Length() {
				return 0, due, errStopped
			}
			if err := r.await(ctx, planInterval); err != nil {
				return 0, due, err
			}
		}
	}
	if i = int(r.next.Add(1)) - 1; i >= r.ops {
		return 0, due, errStopped
	}
	switch {
	case r.Plan.Open:
		due = r.start.Add(r.Plan.Due(i))
	case r.Rate > 0:
		due = r.start.Add(time.Duration(float64(i) / r.Rate * float64(time.Second)))
	}
	return i, due, ctx.Err()
}

// prepare calls between and waits until the operation is due, if it has a due time. It returns the time from which the
// latency counts.
func (r *running) prepare(ctx context.Context, i int, due time.Time) (time.Time, error) {
	if !due.IsZero() {
		if time.Since(due) > time.Millisecond {
			r.rec.set(func(r *Result) { r.Late++ })
		}
		return due, r.await(ctx, time.Until(due))
	}
	err := ctx.Err()
	if r.between != nil {
		err = r.between(ctx, i)
	}
	return time.Now(), err
}

// errStopped means that no operation is left, or that the workload must stop.
var errStopped = errors.New("bench: stopped")

// await waits for d. It returns errStopped if the workload must stop meanwhile.
func (r *running) await(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.stop:
		return errStopped
	case <-time.After(d):
		return nil
	}
}

// Sleep waits for d. It returns an error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err()
}
