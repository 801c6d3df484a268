package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-io/larder/bench/stages"
)

// pause waits for d, as an operation of that duration.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// newTarget returns a Target for loops that send no requests.
func newTarget(t *testing.T) *Target {
	target := &Target{protocol: new(atomic.Value), running: new(sync.Map)}
	target.stopping, target.stop = context.WithCancel(t.Context())
	return target
}

// TestOpenLoopCountsFromTheIntendedStart has a server stall once. The latencies of all operations that were due during
// the stall must include the wait.
func TestOpenLoopCountsFromTheIntendedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{result: NewResult("", "")}
		l := loop{Load: Load{Operations: 10, Clients: 1, Rate: 10}}
		var waited []time.Duration
		err := l.run(t.Context(), newTarget(t), rec, func(ctx context.Context, _ *conn, i int, intended time.Time) (outcome, error) {
			if i == 0 {
				return outcome{}, pause(ctx, 500*time.Millisecond)
			}
			waited = append(waited, time.Since(intended))
			return outcome{}, nil
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

// TestClosedLoopContinuesAfterEachResponse checks that a client's next operation begins when the previous one has
// ended, even with an error.
func TestClosedLoopContinuesAfterEachResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{result: NewResult("", "")}
		start := time.Now()
		err := loop{Load: Load{Operations: 10, Clients: 2}}.run(t.Context(), newTarget(t), rec, func(ctx context.Context, _ *conn, i int, _ time.Time) (outcome, error) {
			if i == 3 {
				return outcome{}, errors.New("failure")
			}
			return outcome{bytes: 7}, pause(ctx, time.Second)
		})
		if err != nil {
			t.Fatal(err)
		}
		// Two clients do nine operations of a second each; the failed one takes no time.
		if got := time.Since(start); got != 5*time.Second {
			t.Errorf("took %v, want 5s", got)
		}
		if r := rec.result; r.Ops != 10 || r.Errors != 1 || r.Bytes != 63 || r.FirstError != "failure" || r.Latency.TotalCount() != 9 {
			t.Errorf("got %+v", r)
		}
	})
}

// TestLoopEndsWithItsContext checks that closed and open loops return the context's error.
func TestLoopEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		for _, rate := range []float64{0, 1} {
			rec := &recorder{result: NewResult("", "")}
			err := loop{Load: Load{Operations: 1000, Clients: 3, Rate: rate}}.run(ctx, newTarget(t), rec, func(ctx context.Context, _ *conn, _ int, _ time.Time) (outcome, error) {
				return outcome{}, pause(ctx, time.Second)
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("rate %g: error %v, want the deadline's", rate, err)
			}
		}
	})
}

// TestAwaitProgressGivesUp checks that awaitProgress waits while deliveries arrive, and then for the given time.
func TestAwaitProgressGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watchers{progress: make(chan struct{}, 1)}
		go func() {
			for range 4 {
				time.Sleep(900 * time.Millisecond)
				w.delivered.Add(1)
				w.progress <- struct{}{}
			}
		}()
		start := time.Now()
		if missing := w.awaitProgress(t.Context(), 10, time.Second); missing != 6 {
			t.Errorf("%d deliveries are missing, want 6", missing)
		}
		// The last delivery is at 3.6 s.
		if took := time.Since(start); took != 4600*time.Millisecond {
			t.Errorf("gave up after %v, want 4.6s", took)
		}
	})
}

// TestMixedSelectsEverything checks that requests of every kind select all pods, nodes and namespaces about equally
// often.
func TestMixedSelectsEverything(t *testing.T) {
	for _, seed := range []SeedConfig{{Pods: 10000, Namespaces: 50, Nodes: 500}, {Pods: 1000, Namespaces: 5, Nodes: 50}, {Pods: 100, Namespaces: 100, Nodes: 100}} {
		c := &MixedConfig{Seed: seed}
		kinds := mixedOrder()
		about := make([]map[string]int, len(mixedRequests))
		total := make([]int, len(mixedRequests))
		for i := range 200_000 {
			kind := kinds[i%len(kinds)]
			if about[kind] == nil {
				about[kind] = make(map[string]int)
			}
			about[kind][mixedRequests[kind].call(c, i, drawn(i)).Path]++
			total[kind]++
		}
		for kind, want := range []int{seed.Pods, seed.Nodes, seed.Namespaces, 1, seed.Pods} {
			if got := len(about[kind]); got < want*98/100 { // 40,000 draws miss some of 10,000 pods
				t.Errorf("%+v: %s selects %d different objects, want %d", seed, mixedRequests[kind].name, got, want)
			}
			// The statistic's mean is want-1, and its standard deviation is sqrt(2*(want-1)).
			chi, mean := 0.0, float64(total[kind])/float64(want)
			for _, n := range about[kind] {
				chi += (float64(n) - mean) * (float64(n) - mean) / mean
			}
			chi += mean * float64(want-len(about[kind]))
			if degrees := float64(want - 1); math.Abs(chi-degrees) > 5*math.Sqrt(2*degrees)+1e-9 {
				t.Errorf("%+v: %s is skewed: chi-square %.0f of %.0f degrees of freedom", seed, mixedRequests[kind].name, chi, degrees)
			}
		}
	}
}

// TestLatenciesExcludeWorkBetweenOperations checks that work between operations is not part of their latencies.
func TestLatenciesExcludeWorkBetweenOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &recorder{result: NewResult("", "")}
		l := loop{Load: Load{Operations: 10, Clients: 1}, between: func(ctx context.Context, _ int) error { return pause(ctx, 3*time.Second) }}
		err := l.run(t.Context(), newTarget(t), rec, func(ctx context.Context, _ *conn, _ int, _ time.Time) (outcome, error) {
			return outcome{}, pause(ctx, time.Second)
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []float64{0, 100} {
			if got := rec.result.Quantile(q).Round(10 * time.Millisecond); got != time.Second {
				t.Errorf("p%g is %v, want 1s", q, got)
			}
		}
	})
}

// TestLateOperationsAreCounted checks that operations that have to wait for a client are counted as late.
func TestLateOperationsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for clients, late := range map[int]int{1: 9, 10: 0} {
			rec := &recorder{result: NewResult("", "")}
			err := loop{Load: Load{Operations: 10, Clients: clients, Rate: 1}}.run(t.Context(), newTarget(t), rec, func(ctx context.Context, _ *conn, _ int, _ time.Time) (outcome, error) {
				return outcome{}, pause(ctx, 5*time.Second)
			})
			if err != nil {
				t.Fatal(err)
			}
			if rec.result.Late != late || rec.result.Loop != OpenLoop {
				t.Errorf("%d clients: %d late operations in the %s loop, want %d", clients, rec.result.Late, rec.result.Loop, late)
			}
		}
	})
}

// TestPlansAreRun runs open and closed loops with ramps and constant levels, after a warm-up.
func TestPlansAreRun(t *testing.T) {
	for text, want := range map[string]int{"10s:0..10/s,10s:10/s": 150, "10s:2": 20, "10s:1,10s:3": 40} {
		plan, err := stages.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			target, rec := newTarget(t), &recorder{result: NewResult("", "")}
			l := loop{Load: Load{Clients: 20, Warmup: 5 * time.Second, Plan: plan}}
			op := func(ctx context.Context, _ *conn, _ int, _ time.Time) (outcome, error) {
				return outcome{}, pause(ctx, time.Second)
			}
			start := time.Now()
			if err := l.warm(t.Context(), target, rec, op); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); rec.result.Ops != 0 || took < 5*time.Second || took > 6*time.Second {
				t.Errorf("%s: the warm-up took %v and recorded %d operations", text, took, rec.result.Ops)
			}
			start = time.Now()
			if err := l.run(t.Context(), target, rec, op); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > plan.Length()+time.Second || rec.result.Ops != want {
				t.Errorf("%s: %d operations in %v, want %d in %v", text, rec.result.Ops, took, want, plan.Length())
			}
		})
	}
}

// TestStopEndsLoops checks that after Stop, no operation begins, and those in progress are finished unless they take
// too long.
func TestStopEndsLoops(t *testing.T) {
	for name, c := range map[string]struct {
		loop loop
		took time.Duration // by each operation
		want int
		ends time.Duration
	}{
		"closed":   {loop{Load: Load{Operations: 1000, Clients: 2}}, time.Second, 8, 4 * time.Second},
		"open":     {loop{Load: Load{Operations: 1000, Clients: 8, Rate: 2}}, time.Second, 8, 4500 * time.Millisecond},
		"too long": {loop{Load: Load{Operations: 1000, Clients: 2}}, time.Hour, 0, 3500*time.Millisecond + grace},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target, rec := newTarget(t), &recorder{result: NewResult("", "")}
				start := time.Now()
				time.AfterFunc(3500*time.Millisecond, target.Stop)
				err := c.loop.run(t.Context(), target, rec, func(ctx context.Context, _ *conn, _ int, _ time.Time) (outcome, error) {
					return outcome{}, pause(ctx, c.took)
				})
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); rec.result.Ops != c.want || rec.result.Failures() != 0 || took != c.ends {
					t.Errorf("%d operations, %d failures in %v; want %d in %v", rec.result.Ops, rec.result.Failures(), took, c.want, c.ends)
				}
				target.Stop() // a second call has no effect
			})
		})
	}
}

// TestSeriesHasEverySecond has seconds in which no operation ends, and seconds with failures.
func TestSeriesHasEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		target := newTarget(t)
		target.Series = true
		l := loop{Load: Load{Operations: 5, Clients: 1}}
		r, err := l.measure(t.Context(), target, "series", "request", func(ctx context.Context, _ *conn, i int, _ time.Time) (outcome, error) {
			if i == 1 {
				return outcome{}, ErrTimeout
			}
			return outcome{}, pause(ctx, 1500*time.Millisecond)
		})
		if err != nil {
			t.Fatal(err)
		}
		var ops, timeouts []int
		for _, s := range r.Series {
			ops, timeouts = append(ops, s.Ops), append(timeouts, s.Timeouts)
		}
		// One operation ends at 1.5 s, where the next one fails, and others at 3, 4.5 and 6 s.
		if fmt.Sprint(ops, timeouts) != "[0 2 0 1 1 0 1] [0 1 0 0 0 0 0]" {
			t.Errorf("operations per second %v, timeouts per second %v", ops, timeouts)
		}
		if got := r.Series[3].Quantile(99).Round(100 * time.Millisecond); got != 1500*time.Millisecond {
			t.Errorf("p99 of a second is %v", got)
		}
	})
}
