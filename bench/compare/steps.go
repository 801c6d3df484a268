package compare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Collections that the steps read and watch.
const (
	pods           = "/api/v1/pods"
	namespacedPods = "/api/v1/namespaces/bench-0/pods"
)

// step is one workload. Its results make one or more rows.
type step struct {
	rows  []*Row
	limit bool // whether the limit takes part
	// asks is the request whose response is recorded for the limit; with watchList, until its initial events end. It has
	// no path if nothing is recorded.
	asks      bench.Request
	watchList bool
	run       func(ctx context.Context, kind string) ([]*bench.Result, error)
}

func (r *Row) fill() {
	for i := range r.Figures {
		f := &r.Figures[i]
		f.Best = make(map[string]float64)
		for _, k := range kinds {
			f.Best[k] = r.best(f.Unit, f.of, r.Results[k])
		}
	}
	if larder := r.Results[Larder]; r.body && len(larder) > 0 {
		r.Body = larder[0].BytesPerOp()
	}
}

func (r *Row) best(unit Unit, of func(*bench.Result) float64, results []*bench.Result) float64 {
	var all []float64
	for _, r := range results {
		if r.Succeeded() > 0 {
			all = append(all, of(r))
		}
	}
	switch {
	case len(all) == 0:
		return 0
	case r.median:
		slices.Sort(all)
		return all[len(all)/2]
	case unit == PerSecond || r.worst:
		return slices.Max(all)
	}
	return slices.Min(all)
}

// Functions that take a figure from results.
func cpuPerOp(r *bench.Result) float64 { return r.CPUPerOp().Seconds() }
func wall(r *bench.Result) float64     { return r.Wall.Seconds() }
func resident(r *bench.Result) float64 { return float64(r.Server.RSS) }

func value(name string) func(*bench.Result) float64 {
	return func(r *bench.Result) float64 { return r.Value(name) }
}

func latency(name string, q float64) Figure {
	return Figure{Name: name, Unit: Seconds, of: func(r *bench.Result) float64 { return r.Quantile(q).Seconds() }}
}

func newRow(id, work string, figures ...Figure) *Row {
	return &Row{ID: id, Work: work, Figures: figures, Results: make(map[string][]*bench.Result)}
}

// row returns a row with the CPU time per operation and more figures.
func row(id, work string, more ...Figure) *Row {
	return newRow(id, work, append([]Figure{{Unit: Seconds, of: cpuPerOp}}, more...)...)
}

// ops returns the number of operations for a server. Fast servers do more, so that all measurements take about
// the same time.
func (c *Comparison) ops(kind string, stock, fast int) int {
	n := fast
	if kind == Stock {
		n = stock
	}
	if c.warming {
		n /= 10
	}
	if c.config.Quick {
		return max(2, n/20)
	}
	return n
}

func (c *Config) watchers(n int) int {
	if c.Watchers > 0 {
		return c.Watchers
	}
	if c.Quick {
		return max(20, n/50)
	}
	return n
}

// steps are all workloads on running servers, in the order in which they are run.
func (c *Comparison) steps() []step {
	storm := row("B34", fmt.Sprintf("reconnect storm of %d watches, per watch", c.config.watchers(1000)), latency("until all are open", 100))
	return append(append(c.lists(), c.watchLists()...), c.fanOut(), c.selective(), c.hold(row("B25", "opening a watch, TLS handshake included"), bench.Hold),
		c.writes(), c.components(), c.hold(storm, bench.Storm), c.stalledWatchers(), c.mixed(),
		// A server may share the cost of a consistent read among clients.
		c.readBy(16, row("B37", "GET one pod, consistent, 16 clients", latency("p99", 99)), bench.Request{Path: c.seed.PodPath(1), Accept: bench.Protobuf}, 4000, 16000),
		c.patches(), c.flood(), c.guards())
}

func (c *Comparison) lists() []step {
	n := c.seed.Pods
	return []step{
		c.read("B1", fmt.Sprintf("LIST %d pods, protobuf", n), bench.Request{Path: pods, Accept: bench.Protobuf}, 8, 40),
		c.read("B2", fmt.Sprintf("LIST %d pods, JSON", n), bench.Request{Path: pods, Accept: bench.JSON}, 6, 30),
		c.read("B3", fmt.Sprintf("LIST %d pods, JSON, gzip, one pod changed between calls", n), bench.Request{Path: pods, Accept: bench.JSON, Encoding: "gzip"}, 6, 40),
		c.read("B4", fmt.Sprintf("LIST %d pods, PartialObjectMetadata, protobuf", n), bench.Request{Path: pods, Accept: bench.PartialProtobuf}, 15, 60),
		c.read("B5", fmt.Sprintf("LIST %d pods, Table", n), bench.Request{Path: pods, Accept: bench.Table}, 5, 20),
		c.read("B60", fmt.Sprintf("LIST %d pods, Table with whole objects", n), bench.Request{Path: pods + "?includeObject=Object", Accept: bench.Table}, 3, 15),
		c.read("B6", "LIST one node's 20 pods, resourceVersion=0", bench.Request{Path: c.seed.NodeSelection(1) + "&resourceVersion=0", Accept: bench.Protobuf}, 800, 5000),
		c.read("B7", "the same, consistent", bench.Request{Path: c.seed.NodeSelection(1), Accept: bench.Protobuf}, 800, 4000),
		c.read("B8", fmt.Sprintf("LIST by label, %d pods of %d", n/100, n), bench.Request{Path: pods + "?labelSelector=app.kubernetes.io/name%3Dapp-7", Accept: bench.Protobuf}, 100, 1000),
		c.read("B9", fmt.Sprintf("LIST a namespace, %d pods", n/c.seed.Namespaces), bench.Request{Path: namespacedPods, Accept: bench.Protobuf}, 150, 1000),
		c.read("B10", "GET one pod, consistent", bench.Request{Path: c.seed.PodPath(1), Accept: bench.Protobuf}, 2000, 8000),
	}
}

func (c *Comparison) read(id, work string, r bench.Request, stock, fast int) step {
	return c.readBy(1, row(id, work), r, stock, fast)
}

// readBy returns a step that repeats one request. Before each request for gzip, another server changes a pod, so that
// the measured server cannot repeat its last response. The limit always sends the same bytes.
func (c *Comparison) readBy(clients int, spec *Row, r bench.Request, stock, fast int) step {
	spec.body = true
	return step{rows: []*Row{spec}, limit: true, asks: r, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		read := bench.ReadConfig{
			Name: spec.ID, Path: r.Path, Accept: r.Accept, Encoding: r.Encoding, Load: bench.Load{Operations: c.ops(kind, stock, fast), Clients: clients},
		}
		if r.Encoding == "gzip" && kind != Limit {
			other := map[string]string{Stock: Larder, Larder: Stock}[kind]
			read.Between = func(ctx context.Context, i int) error {
				return c.servers[other].Target.Change(ctx, c.seed.PodPath(i%c.seed.Pods))
			}
		}
		return one(bench.Read(ctx, c.servers[kind].Target, read))
	}}
}

func one(r *bench.Result, err error) ([]*bench.Result, error) { return []*bench.Result{r}, err }

func (c *Comparison) watchLists() []step {
	n := c.seed.Pods
	list := func(id, work, path, accept string, objects, clients, stock, fast int) step {
		spec := row(id, work)
		spec.body = true
		asks := bench.Request{Path: bench.WatchListPath(path), Accept: accept}
		return step{rows: []*Row{spec}, limit: true, asks: asks, watchList: true, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
			return one(bench.WatchList(ctx, c.servers[kind].Target, bench.WatchListConfig{
				Name: id, Path: path, Accept: accept, Load: bench.Load{Operations: c.ops(kind, stock, fast), Clients: clients}, Objects: objects,
			}))
		}}
	}
	return []step{
		list("B20", fmt.Sprintf("WatchList of %d pods, protobuf", n), pods, bench.Protobuf, n, 1, 5, 20),
		list("B21", fmt.Sprintf("WatchList of %d pods, JSON", n), pods, bench.JSON, n, 1, 4, 15),
		list("B22", fmt.Sprintf("WatchList of one namespace, %d pods", n/c.seed.Namespaces), namespacedPods, bench.Protobuf, n/c.seed.Namespaces, 10, 40, 400),
	}
}

// fanOut sends the same events to many watchers. It limits the deliveries per second to what one machine can do for
// both client and server.
func (c *Comparison) fanOut() step {
	const most, events = 15000, 50000 // deliveries per second, and in all
	watchers := c.config.watchers(200)
	rate, changes := min(50, max(1, most/float64(watchers))), min(200, max(5, events/watchers))
	spec := row("B23", fmt.Sprintf("WATCH fan-out to %d watchers, protobuf, %g events/s, per delivery", watchers, rate))
	spec.body = true
	return c.watch(spec, true, func(kind string) bench.WatchConfig {
		return bench.WatchConfig{
			Watchers: watchers, Objects: c.seed.PodPaths(min(50, c.seed.Pods)), Load: bench.Load{Operations: c.ops(kind, changes, changes), Rate: rate, Clients: 4},
		}
	})
}

// selective sends each event to few of many watchers.
func (c *Comparison) selective() step {
	const rate = 400
	watchers := c.config.watchers(1000)
	spec := row("B24", fmt.Sprintf("WATCH, %d watchers each of one node, %d events/s, per event", watchers, rate))
	return c.watch(spec, false, func(kind string) bench.WatchConfig {
		changes := c.ops(kind, 1200, 1200)
		objects := c.seed.PodPaths(min(c.seed.Pods, changes))
		return bench.WatchConfig{
			Selections: c.seed.NodeSelections(c.seed.Nodes), Watchers: watchers, Objects: objects, Load: bench.Load{Operations: changes, Rate: rate, Clients: 8},
			Deliveries: c.seed.Deliveries(watchers, len(objects), changes), PerChange: true,
		}
	})
}

// hold returns a step that opens watches.
func (c *Comparison) hold(spec *Row, do func(context.Context, *bench.Target, bench.HoldConfig) (*bench.Result, error)) step {
	return step{rows: []*Row{spec}, limit: true, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		return one(do(ctx, c.servers[kind].Target, bench.HoldConfig{
			Name: spec.ID, Path: pods, Accept: bench.Protobuf, Watchers: c.config.watchers(1000),
		}))
	}}
}

func (c *Comparison) writes() step {
	return c.writeStep(27, bench.Verbs, " of a ConfigMap, 16 clients", 1000, func(ctx context.Context, t *bench.Target, load bench.Load) ([]*bench.Result, error) {
		return bench.Write(ctx, t, bench.WriteConfig{Namespace: "bench-writes", Load: load})
	})
}

func (c *Comparison) components() step {
	return c.writeStep(46, bench.ComponentWrites(), ", 16 clients", 500, func(ctx context.Context, t *bench.Target, load bench.Load) ([]*bench.Result, error) {
		return bench.Components(ctx, t, bench.ComponentsConfig{Namespace: "bench-components", Nodes: 100, Load: load})
	})
}

// writeStep returns a step of several kinds of writes. The ids of its rows begin at first. Each row has the CPU time per
// operation and the operations per second.
func (c *Comparison) writeStep(first int, kinds []string, of string, count int, run func(context.Context, *bench.Target, bench.Load) ([]*bench.Result, error)) step {
	var rows []*Row
	for i, name := range kinds {
		rows = append(rows, row(fmt.Sprintf("B%d", first+i), name+of, Figure{Unit: PerSecond, of: (*bench.Result).Rate}))
	}
	return c.undisturbed(step{rows: rows, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		return run(ctx, c.servers[kind].Target, bench.Load{Operations: c.ops(kind, count, count), Clients: 16})
	}})
}

func (c *Comparison) patches() step {
	spec := row("B38", "merge-patch of a pod, 16 clients", latency("p99", 99))
	return c.undisturbed(step{rows: []*Row{spec}, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
		paths := c.seed.PodPaths(min(500, c.seed.Pods))
		return one(bench.Patch(ctx, c.servers[kind].Target, "B38", paths, bench.Load{Operations: c.ops(kind, 1000, 1000), Clients: 16}))
	}})
}

// runStarts stops all servers and runs the steps that start them.
func (c *Comparison) runStarts(ctx context.Context) error {
	if _, err := c.end(Larder); err != nil {
		return err
	}
	if c.seed.Pods < c.config.StartPods && slices.ContainsFunc(c.starts, func(s step) bool { return s.rows[0].ID != emptyStart }) {
		c.config.Sayf("seeding up to %d pods", c.config.StartPods)
		more := c.seed
		more.Pods = c.config.StartPods
		if _, err := bench.Seed(ctx, c.servers[Larder].Target, more); err != nil {
			return err
		}
	}
	for _, server := range c.servers {
		if err := server.Stop(); err != nil {
			return err
		}
	}
	clear(c.servers)
	return c.each(ctx, c.starts)
}

// emptyStart is the row of starts without objects.
const emptyStart = "B31"

// startSteps are the workloads that start servers.
func (c *Comparison) startSteps() []step {
	n := c.config.StartPods
	spec := func(id, work string) *Row {
		return newRow(id, work, Figure{Unit: Seconds, of: wall}, Figure{Name: "CPU", Unit: Seconds, of: cpuPerOp}, Figure{Name: "RSS", Unit: Memory, of: resident})
	}
	empty := spec(emptyStart, "start to /readyz 200, empty; Larder with its own etcd")
	full := spec("B32", fmt.Sprintf("start to /readyz 200 with %d pods", n))
	under := newRow("B33", fmt.Sprintf("resident with %d pods under LIST load", n), Figure{Unit: Memory, of: resident},
		Figure{Name: "at most", Unit: Memory, of: func(r *bench.Result) float64 { return float64(r.Server.PeakRSS) }})
	open := newRow("B26", fmt.Sprintf("resident memory of one of %d open watches", c.config.watchers(openWatches)), Figure{Unit: Memory, of: value(bench.MemoryPerWatch)})
	open.worst = true
	return []step{
		{rows: []*Row{empty}, run: func(ctx context.Context, kind string) ([]*bench.Result, error) {
			server, err := c.started.StartEmpty(ctx, kind)
			if err != nil {
				return nil, err
			}
			r, err := server.SinceStart(empty.ID)
			return one(r, errors.Join(err, server.Stop()))
		}},
		{rows: []*Row{full, under, open}, run: c.startFull},
	}
}

// openWatches is large, so that reused free memory hardly affects the result.
const openWatches = 5000

// startFull starts a server on the seeded etcd, opens watches before the server has free memory, and then lists all
// pods repeatedly with several clients.
func (c *Comparison) startFull(ctx context.Context, kind string) (_ []*bench.Result, err error) {
	server, err := c.started.Start(ctx, kind, testservers.DefaultGuards())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	full, err := server.SinceStart("B32")
	if err != nil {
		return nil, err
	}
	held := 5 * time.Second // long enough for the server to return memory to the system
	if c.config.Quick {
		held = 10 * time.Millisecond
	}
	open, err := bench.Hold(ctx, server.Target, bench.HoldConfig{Name: "B26", Path: pods, Accept: bench.Protobuf, Watchers: c.config.watchers(openWatches), Idle: held})
	if err != nil {
		return nil, err
	}
	load, err := c.listLoad(ctx, server.Target)
	return []*bench.Result{full, load, open}, err
}

func (c *Comparison) listLoad(ctx context.Context, t *bench.Target) (*bench.Result, error) {
	var parts []*bench.Result
	for _, accept := range []string{bench.Protobuf, bench.JSON} {
		r, err := bench.Read(ctx, t, bench.ReadConfig{Name: "B33", Path: pods, Accept: accept, Load: bench.Load{Operations: c.ops(Larder, 8, 8), Clients: 4}})
		if err != nil {
			return nil, err
		}
		parts = append(parts, r)
	}
	return bench.Merge(parts...), nil
}
