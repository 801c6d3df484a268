// Package scale finds out how a server's costs grow: its CPU time for one item of a
// LIST, for one delivery to a watcher and for one write, against the number of objects
// and of watchers. What should be flat is plotted beside what should be a straight
// line through the origin.
//
// It runs the workloads of package bench again and again, the smallest sizes first,
// and creates the pods that are missing in between.
package scale

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/report"
)

// Config says what is measured.
type Config struct {
	// Target is the server. Its Process must be known.
	Target *bench.Target
	// Through is another server of the same etcd that pods are seeded and changes are
	// made through, nil for the target itself: then the cost of the changes alone is
	// measured and subtracted from what deliveries cost.
	Through *bench.Target
	// Sizes are numbers of pods, Watchers numbers of watches; neither is empty.
	Sizes, Watchers []int
	// Rounds is how often each is measured; the least cost counts.
	Rounds int
	// Items is about how many items, deliveries or writes one measurement has.
	Items int
	// Idle is how long open watches are held before their memory is measured.
	Idle time.Duration
	// Say is called with each line about what was found; it may be nil.
	Say func(string)
}

// Progress is that of the Target, or else that of Through.
func (c *Config) Progress() bench.Progress {
	p := c.Target.Progress()
	if p.Name == "" && c.Through != nil {
		p = c.Through.Progress()
	}
	return p
}

// Findings are the results of Run.
type Findings struct {
	Charts  []report.Chart
	Results []*bench.Result
}

// runner is one run.
type runner struct {
	Config
	findings Findings
	lines    map[string]*report.Series // by chart and name
	charts   []string
	base     time.Duration // what a change costs without watchers
}

// Titles of the charts.
const (
	perItem     = "Server CPU per item of a LIST"
	perList     = "Server CPU per LIST"
	perWrite    = "Server CPU per write"
	perDelivery = "Server CPU per delivery"
	perChange   = "Server CPU per change, all its deliveries included"
	perWatch    = "Server CPU to open a watch"
	perMemory   = "Memory of an open watch"
)

// Run measures all sizes.
func Run(ctx context.Context, c Config) (*Findings, error) {
	if len(c.Sizes) == 0 || len(c.Watchers) == 0 || slices.Min(c.Sizes) < 1 || slices.Min(c.Watchers) < 1 || c.Rounds < 1 || c.Items < 1 {
		return nil, errors.New("scale: want sizes, numbers of watchers, rounds and items, all positive")
	}
	if c.Target.Process.PID == 0 {
		return nil, errors.New("scale: the server's process is not known: there is nothing to plot")
	}
	r := &runner{Config: c, lines: make(map[string]*report.Series)}
	r.Sizes, r.Watchers = slices.Sorted(slices.Values(c.Sizes)), slices.Sorted(slices.Values(c.Watchers))
	for _, size := range r.Sizes {
		if err := r.size(ctx, size); err != nil {
			return nil, err
		}
	}
	for _, watchers := range r.Watchers {
		if err := r.watch(ctx, watchers); err != nil {
			return nil, err
		}
	}
	r.collect()
	return &r.findings, nil
}

// seed is how pods are spread: 200 in a namespace, 20 on a node.
func (r *runner) seed(pods int) bench.SeedConfig {
	largest := r.Sizes[len(r.Sizes)-1]
	return bench.SeedConfig{Pods: pods, Namespaces: max(1, largest/200), Nodes: max(1, largest/20), Clients: 16}
}

func (r *runner) through() *bench.Target {
	if r.Through != nil {
		return r.Through
	}
	return r.Target
}

// size measures what depends on the number of objects.
func (r *runner) size(ctx context.Context, pods int) error {
	seed := r.seed(pods)
	if made, err := bench.Seed(ctx, r.through(), seed); err != nil {
		return err
	} else if made.Failures() > 0 {
		return fmt.Errorf("scale: seeding: %s", made.FirstError)
	}
	for _, kind := range []struct{ name, accept string }{{"LIST, protobuf", bench.Protobuf}, {"LIST, JSON", bench.JSON}} {
		least, err := r.least(ctx, func() (*bench.Result, error) {
			return bench.Read(ctx, r.Target, bench.ReadConfig{
				Name: fmt.Sprintf("%s, %d pods", kind.name, pods), Path: "/api/v1/pods", Accept: kind.accept, Requests: max(3, r.Items/pods), Clients: 1,
			})
		})
		if err != nil {
			return err
		}
		r.list(kind.name, pods, least)
	}
	least, err := r.least(ctx, func() (*bench.Result, error) {
		return bench.WatchList(ctx, r.Target, bench.WatchListConfig{
			Name: fmt.Sprintf("WatchList, protobuf, %d pods", pods), Path: "/api/v1/pods", Accept: bench.Protobuf, Requests: max(3, r.Items/pods), Clients: 1,
		})
	})
	if err != nil {
		return err
	}
	r.list("WatchList, protobuf", pods, least)
	least, err = r.patch(ctx, seed)
	if err != nil {
		return err
	}
	r.point(perWrite, "merge-patch of a pod", pods, least)
	return nil
}

// patch measures changes without watchers.
func (r *runner) patch(ctx context.Context, seed bench.SeedConfig) (time.Duration, error) {
	return r.least(ctx, func() (*bench.Result, error) {
		return bench.PatchObjects(ctx, r.Target, bench.PatchConfig{
			Name: fmt.Sprintf("merge-patch, %d pods", seed.Pods), Objects: seed.PodPaths(min(seed.Pods, 500)), Requests: max(100, r.Items/100), Clients: 4,
		})
	})
}

// list notes what a LIST costs, whole and per item.
func (r *runner) list(name string, pods int, cost time.Duration) {
	r.point(perList, name, pods, cost)
	r.point(perItem, name, pods, cost/time.Duration(pods))
}

// watch measures what depends on the number of watchers, with all pods there.
func (r *runner) watch(ctx context.Context, watchers int) error {
	seed := r.seed(r.Sizes[len(r.Sizes)-1])
	if err := r.hold(ctx, watchers); err != nil {
		return err
	}
	if r.Through == nil && r.base == 0 {
		var err error
		if r.base, err = r.patch(ctx, seed); err != nil {
			return err
		}
	}
	const changesPerSecond, deliveriesPerSecond = 50, 15000 // at most: client and server share the machine
	changes := min(200, max(5, r.Items/watchers))
	rate := min(changesPerSecond, max(1, deliveriesPerSecond/float64(watchers)))
	cost, err := r.least(ctx, func() (*bench.Result, error) {
		result, err := bench.Watch(ctx, r.Target, bench.WatchConfig{
			Name: fmt.Sprintf("watch, %d watchers", watchers), Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: watchers,
			Objects: seed.PodPaths(min(seed.Pods, 50)), Changes: changes, Rate: rate, Writers: 4, PerChange: true, Through: r.Through,
		})
		return result, err
	})
	if err != nil {
		return err
	}
	cost = max(0, cost-r.base)
	r.point(perChange, "protobuf", watchers, cost)
	r.point(perDelivery, "protobuf", watchers, cost/time.Duration(watchers))
	return nil
}

// hold opens watches and measures their memory. It runs before other watches of that number,
// which would leave the server memory to spare.
func (r *runner) hold(ctx context.Context, watchers int) error {
	opened, err := bench.Hold(ctx, r.Target, bench.HoldConfig{
		Name: fmt.Sprintf("open %d watches", watchers), Path: "/api/v1/pods", Accept: bench.Protobuf, Watchers: watchers, Idle: r.Idle,
	})
	if err != nil {
		return err
	}
	r.findings.Results = append(r.findings.Results, opened)
	r.point(perWatch, "TLS handshake included", watchers, opened.CPUPerOp())
	r.add(perMemory, "resident", watchers, opened.Value(bench.MemoryPerWatch))
	return nil
}

// least runs a workload as often as Rounds says, keeps all results and returns the
// least server CPU per operation.
func (r *runner) least(ctx context.Context, workload func() (*bench.Result, error)) (time.Duration, error) {
	var least time.Duration
	for i := range r.Rounds {
		result, err := workload()
		if err != nil {
			return 0, err
		}
		if result.Failures() > 0 {
			return 0, fmt.Errorf("scale: %s: %d of %d failed: %s", result.Name, result.Errors, result.Ops, result.FirstError)
		}
		if cost := result.CPUPerOp(); i == 0 || cost < least {
			least = cost
		}
		r.findings.Results = append(r.findings.Results, result)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return least, nil
}

// point adds a time to a line of a chart and calls Say with it.
func (r *runner) point(chart, line string, x int, cost time.Duration) {
	if r.Say != nil {
		r.Say(fmt.Sprintf("%s, %s, at %d: %s", chart, line, x, bench.Duration(cost)))
	}
	r.add(chart, line, x, cost.Seconds())
}

func (r *runner) add(chart, line string, x int, y float64) {
	key := chart + "\n" + line
	if r.lines[key] == nil {
		r.lines[key] = &report.Series{Name: line}
		r.charts = append(r.charts, key)
	}
	r.lines[key].Points = append(r.lines[key].Points, report.Point{X: float64(x), Y: y})
}

// collect makes charts of the lines.
func (r *runner) collect() {
	for _, c := range []report.Chart{
		{Title: perItem, X: "pods", Y: "CPU time; flat is good", Seconds: true},
		{Title: perList, X: "pods", Y: "CPU time; a straight line is good", Seconds: true},
		{Title: perWrite, X: "pods", Y: "CPU time; flat is good", Seconds: true},
		{Title: perDelivery, X: "watchers", Y: "CPU time; falling to flat is good", Seconds: true},
		{Title: perChange, X: "watchers", Y: "CPU time; a straight line is good", Seconds: true},
		{Title: perWatch, X: "watchers", Y: "CPU time; flat is good", Seconds: true},
		{Title: perMemory, X: "watchers", Y: "bytes; flat is good"},
	} {
		for _, key := range r.charts {
			if len(key) > len(c.Title) && key[:len(c.Title)+1] == c.Title+"\n" {
				c.Series = append(c.Series, *r.lines[key])
			}
		}
		r.findings.Charts = append(r.findings.Charts, c)
	}
}
