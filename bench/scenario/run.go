package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/thresholds"
)

// All is the name of the Result of all workloads together.
const All = "all workloads"

// Scenario is a load of several workloads. It may be run again and again, once at a time; its
// Progress may be asked at any time.
type Scenario struct {
	// Thresholds are the bounds that the file wants to be kept.
	Thresholds []thresholds.Bound

	name      string
	seed      bench.SeedConfig
	users     []user
	workloads []workload

	mu      sync.Mutex
	targets []*bench.Target // guarded by mu: of the workloads under way
}

// Kinds are the Results that Run will return: their names, and that they are parts of the
// first.
func (s *Scenario) Kinds() []*bench.Result {
	kinds := []*bench.Result{{Name: All}}
	for _, w := range s.workloads {
		for _, name := range w.results() {
			kinds = append(kinds, &bench.Result{Name: name, Part: true})
		}
	}
	return kinds
}

// results are the names of the workload's Results.
func (w *workload) results() []string {
	names := []string{w.Name}
	switch w.Do {
	case "mixed":
		for _, kind := range bench.MixedKinds() {
			names = append(names, w.Name+" "+kind)
		}
	case "write":
		names = nil
		for _, verb := range bench.Verbs {
			names = append(names, w.Name+" "+string(verb))
		}
	}
	return names
}

// Progress adds up the progress of all running workloads.
func (s *Scenario) Progress() bench.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, working := bench.Progress{}, 0
	known := true
	for _, t := range s.targets {
		p := t.Progress()
		if p.Name == "" {
			continue
		}
		working++
		sum.Done += p.Done
		sum.Errors += p.Errors
		sum.Total += p.Total
		known = known && p.Total > 0
		sum.Elapsed, sum.P99, sum.P50 = max(sum.Elapsed, p.Elapsed), max(sum.P99, p.P99), max(sum.P50, p.P50)
	}
	if working == 0 {
		return bench.Progress{}
	}
	if !known {
		sum.Total = 0
	}
	sum.Name = fmt.Sprintf("%d of %d workloads", working, len(s.workloads))
	return sum
}

// Run runs all workloads against a target and returns the Result of all of them, and then those
// of each. round tells objects apart that runs must not share.
func (s *Scenario) Run(ctx context.Context, t *bench.Target, round int) ([]*bench.Result, error) {
	meter, err := t.Meter()
	if err != nil {
		return nil, err
	}
	targets := make([]*bench.Target, len(s.workloads))
	for i := range s.workloads {
		targets[i] = s.as(t, s.workloads[i].User)
	}
	s.show(targets)
	defer s.show(nil)
	var ready sync.WaitGroup // workloads that begin together and are not ready yet
	begun := make(chan struct{})
	found := make([][]*bench.Result, len(s.workloads))
	group, within := errgroup.WithContext(ctx)
	for i := range s.workloads {
		w := &s.workloads[i]
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
				defer arrive() // also one that fails
			} else if !await(within, t, begun, time.Duration(w.StartAfter)) {
				return within.Err()
			}
			if found[i], err = w.run(within, targets[i], s.seed, round+i); err != nil {
				return fmt.Errorf("scenario: %s: %w", w.Name, err)
			}
			return nil
		})
	}
	ready.Wait()
	err = meter.Begin()
	close(begun)
	err = errors.Join(err, group.Wait(), meter.End())
	if err != nil {
		return nil, err
	}
	return s.sum(meter, found), nil
}

func (s *Scenario) show(targets []*bench.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets = targets
}

// await waits until begun is closed and then for some time; false if that does not come.
func await(ctx context.Context, t *bench.Target, begun <-chan struct{}, d time.Duration) bool {
	select {
	case <-begun:
	case <-ctx.Done():
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.Stopping():
	case <-ctx.Done():
	}
	return false
}

// as is the target with the requests of a user.
func (s *Scenario) as(t *bench.Target, name string) *bench.Target {
	for _, u := range s.users {
		switch {
		case u.Name != name:
		case u.Token != "":
			return t.As(u.Token).Clone()
		default:
			return t.Impersonating(u.Impersonate, u.Groups...)
		}
	}
	return t.Clone()
}

// sum returns the Result of all workloads, and then the Results of each.
func (s *Scenario) sum(meter *bench.Meter, found [][]*bench.Result) []*bench.Result {
	var wholes, all []*bench.Result
	for i, results := range found {
		late := make([]bench.Second, int(time.Duration(s.workloads[i].StartAfter)/time.Second))
		for _, r := range results {
			if len(r.Series) > 0 { // seconds of all count from the same time
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

// run runs one workload.
func (w *workload) run(ctx context.Context, t *bench.Target, seed bench.SeedConfig, round int) ([]*bench.Result, error) {
	one := func(r *bench.Result, err error) ([]*bench.Result, error) { return []*bench.Result{r}, err }
	switch w.Do {
	case "read":
		return one(bench.Read(ctx, t, bench.ReadConfig{
			Name: w.Name, Path: w.Path, Accept: w.Accept, Encoding: w.Encoding, Requests: w.Requests, Clients: w.Clients, Rate: w.Rate, Schedule: w.schedule,
		}))
	case "watchlist":
		return one(bench.WatchList(ctx, t, bench.WatchListConfig{
			Name: w.Name, Path: w.Path, Accept: w.Accept, Requests: w.Requests, Clients: w.Clients, Schedule: w.schedule,
		}))
	case "patch":
		return one(bench.PatchObjects(ctx, t, bench.PatchConfig{
			Name: w.Name, Objects: seed.PodPaths(w.Objects), Requests: w.Requests, Clients: w.Clients, Rate: w.Rate, Schedule: w.schedule,
		}))
	case "watch":
		return one(bench.Watch(ctx, t, bench.WatchConfig{
			Name: w.Name, Path: w.Path, Accept: w.Accept, Watchers: w.Watchers, Objects: seed.PodPaths(w.Objects),
			Changes: w.total, Rate: w.Rate, Writers: w.Clients, Schedule: w.schedule,
		}))
	case "write":
		namespace := w.Namespace
		if namespace == "" {
			namespace = "bench-writes"
		}
		return bench.Write(ctx, t, bench.WriteConfig{Name: w.Name, Namespace: namespace, Round: round, Objects: w.total, Clients: w.Clients, Rate: w.Rate, Schedule: w.schedule})
	}
	results, err := bench.Mixed(ctx, t, bench.MixedConfig{Seed: seed, Requests: w.Requests, Clients: w.Clients, Rate: w.Rate, Schedule: w.schedule})
	for i, name := range w.results() {
		if i < len(results) {
			results[i].Name = name
		}
	}
	return results, err
}
