// Package scenario runs several workloads at the same time, as one load.
//
// Each workload has its own clients and connections. The measured parts of all workloads begin
// together, except those with a StartAfter. The first result sums up all workloads and has the cost of the server.
// The other results have the names of their workloads.
package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench"
)

// All is the name of the Result of all workloads together.
const All = "all workloads"

// Workload is one workload of a Scenario.
type Workload struct {
	Name string
	// Results has the Name and Part of each result that Run returns.
	Results []*bench.Result
	// StartAfter is how long after the other workloads this one starts.
	StartAfter time.Duration
	// User returns a Target that sends the requests of the workload's user.
	User func(*bench.Target) *bench.Target
	Run  func(context.Context, *bench.Target) ([]*bench.Result, error)
}

// Scenario is a load of several workloads. It may be run repeatedly.
type Scenario struct{ Workloads []Workload }

// Kinds returns Results with the Name and Part of each result of Run.
func (s *Scenario) Kinds() []*bench.Result {
	kinds := []*bench.Result{{Name: All}}
	for _, w := range s.Workloads {
		for i, r := range w.Results {
			kinds = append(kinds, &bench.Result{Name: w.name(i, r.Name), Part: true})
		}
	}
	return kinds
}

// name returns the name of result i in the scenario: the workload's name, followed by the result's own name if it is a
// part or one of several.
func (w *Workload) name(i int, own string) string {
	if i == 0 && (len(w.Results) == 1 || w.Results[1].Part) {
		return w.Name
	}
	return w.Name + " " + own
}

// Run runs all workloads against a target. It returns one Result of all workloads, and then the Results of each.
func (s *Scenario) Run(ctx context.Context, t *bench.Target) ([]*bench.Result, error) {
	targets := make([]*bench.Target, len(s.Workloads))
	for i, w := range s.Workloads {
		targets[i] = w.User(t).Clone()
	}
	var ready sync.WaitGroup // counts workloads without StartAfter that are not ready
	begun := make(chan struct{})
	found := make([][]*bench.Result, len(s.Workloads))
	group, within := errgroup.WithContext(ctx)
	for i := range s.Workloads {
		w := &s.Workloads[i]
		var arrive func()
		if w.StartAfter == 0 {
			ready.Add(1)
			arrive = sync.OnceFunc(ready.Done)
			targets[i].BeforeMeasuring = func() {
				arrive()
				<-begun
			}
		}
		group.Go(func() (err error) {
			if arrive != nil {
				defer arrive() // in case the workload fails before it measures
			} else if !await(within, t, begun, w.StartAfter) {
				return within.Err()
			}
			if found[i], err = w.Run(within, targets[i]); err != nil {
				return fmt.Errorf("scenario: %s: %w", w.Name, err)
			}
			return nil
		})
	}
	ready.Wait()
	meter, err := t.Meter()
	close(begun)
	err = errors.Join(err, group.Wait())
	meter.End()
	if err != nil {
		return nil, err
	}
	return s.sum(meter, found), nil
}

// await waits until begun is closed and then for d. It returns false if the load ends first.
func await(ctx context.Context, t *bench.Target, begun <-chan struct{}, d time.Duration) bool {
	select {
	case <-begun:
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-t.Stopping():
	case <-ctx.Done():
	}
	return false
}

func (s *Scenario) sum(meter *bench.Meter, found [][]*bench.Result) []*bench.Result {
	var wholes, all []*bench.Result
	for i, results := range found {
		w := &s.Workloads[i]
		late := make([]bench.Counts, int(w.StartAfter/time.Second))
		for n, r := range results {
			r.Name = w.name(n, r.Name)
			if len(r.Series) > 0 { // all series start at the same time
				r.Series = append(late[:len(late):len(late)], r.Series...)
			}
			if !r.Part {
				wholes = append(wholes, r)
			}
			all = append(all, r)
		}
	}
	if len(wholes) == 0 {
		return nil
	}
	sum := bench.MergeParallel(wholes...)
	sum.Name, sum.Unit, sum.Loop = All, "operation", ""
	meter.Charge(sum)
	for _, r := range all {
		r.Part = true
	}
	return append([]*bench.Result{sum}, all...)
}
