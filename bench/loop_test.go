package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// pause stands for an operation that takes some time.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// TestOpenLoopCountsFromTheIntendedStart lets a server stall once: all operations that
// should have begun meanwhile have waited for it, and must say so.
func TestOpenLoopCountsFromTheIntendedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{result: &Result{Latency: newHistogram()}}
		l := loop{ops: 10, clients: 1, rate: 10}
		var waited []time.Duration
		err := l.run(t.Context(), nil, rec, func(ctx context.Context, _ *lane, i int, intended time.Time) (int64, error) {
			if i == 0 {
				return 0, pause(ctx, 500*time.Millisecond)
			}
			waited = append(waited, time.Since(intended))
			return 0, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, got := range waited {
			want := max(0, 500*time.Millisecond-time.Duration(i+1)*100*time.Millisecond)
			if got != want {
				t.Errorf("operation %d waited %v, want %v", i+1, got, want)
			}
		}
		if got := rec.result.Quantile(100).Round(time.Millisecond); got != 500*time.Millisecond {
			t.Errorf("the longest latency is %v, want the stall's 500ms", got)
		}
	})
}

func TestClosedLoopGoesOnWhenAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{result: &Result{Latency: newHistogram()}}
		start := time.Now()
		err := loop{ops: 10, clients: 2}.run(t.Context(), nil, rec, func(ctx context.Context, _ *lane, i int, _ time.Time) (int64, error) {
			if i == 3 {
				return 0, errors.New("failure")
			}
			return 7, pause(ctx, time.Second)
		})
		if err != nil {
			t.Fatal(err)
		}
		// Nine operations of a second by two clients: the one that failed takes no time.
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("took %v, want 5s", got)
		}
		if r := rec.result; r.Ops != 10 || r.Errors != 1 || r.Bytes != 63 || r.FirstError != "failure" || r.Latency.TotalCount() != 9 {
			t.Errorf("got %+v", r)
		}
	})
}

func TestLoopEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for _, rate := range []float64{0, 1} {
			rec := &recorder{result: &Result{Latency: newHistogram()}}
			err := loop{ops: 1000, clients: 3, rate: rate}.run(ctx, nil, rec, func(ctx context.Context, _ *lane, _ int, _ time.Time) (int64, error) {
				return 0, pause(ctx, time.Second)
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("rate %g: %v, want the deadline's error", rate, err)
			}
		}
	})
}

// TestSettleGivesUp waits as long as deliveries come, and then as long as it is told.
func TestSettleGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchers{expected: 10, all: make(chan struct{})}
		go func() {
			for range 4 {
				time.Sleep(900 * time.Millisecond)
				w.delivered.Add(1)
			}
		}()
		start := time.Now()
		if missing := w.settle(t.Context(), time.Second); missing != 6 {
			t.Errorf("%d deliveries are missing, want 6", missing)
		}
		// The last comes at 3.6 s: the first second without any ends at 5 s.
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("gave up after %v, want 5s", took)
		}
	})
}

// TestPickKeepsWeights checks that each hundred requests have the mixture's weights.
func TestPickKeepsWeights(t *testing.T) {
	got := make([]int, len(mixture))
	for i := range 300 {
		got[pick(i)]++
	}
	for kind, s := range mixture {
		if got[kind] != 3*s.weight {
			t.Errorf("%s: %d of 300, want %d", s.name, got[kind], 3*s.weight)
		}
	}
}
