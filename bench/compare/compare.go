package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/baseline"
	"github.com/larder-io/larder/bench/testservers"
)

// Config configures a Comparison.
type Config struct {
	// Trials has the programs of the servers and the number of rounds. All servers are measured.
	testservers.Trials
	// Pods is the number of pods for reads and watches, StartPods the minimum for starts.
	Pods, StartPods int
	// Watchers, if positive, is how many watches each row of watches opens.
	Watchers int
	// Rows matches the id and work of the rows to run, nil for all. Quick runs only a few operations, to check
	// that everything works.
	Rows  *regexp.Regexp
	Quick bool
}

// Comparison runs a Config once.
type Comparison struct {
	config  *Config
	started *testservers.Servers
	servers map[string]*testservers.Server // running servers
	seed    bench.SeedConfig
	reads   []step // selected steps on running servers
	starts  []step // selected steps that start servers
	table   *Table
	warming bool // whether the step runs a tenth of its operations as a warm-up
}

// New returns a comparison. The caller may set c.TestServers and c.Say before Run.
func New(c *Config) (*Comparison, error) {
	const least = 20
	if c.Pods < least || c.Rounds < 1 {
		return nil, fmt.Errorf("compare: --pods must be at least %d and --rounds at least 1, are %d and %d", least, c.Pods, c.Rounds)
	}
	if c.Rows == nil {
		c.Rows = regexp.MustCompile("")
	}
	c.StartPods = max(c.StartPods, c.Pods)
	seed := bench.SeedConfig{Pods: c.Pods, Namespaces: max(1, c.Pods/200), Nodes: max(1, c.Pods/20), Clients: 16}
	comparison := &Comparison{config: c, seed: seed, servers: make(map[string]*testservers.Server), table: &Table{Rounds: c.Rounds}}
	comparison.reads, comparison.starts = c.selected(comparison.steps()), c.selected(comparison.startSteps())
	if len(comparison.reads)+len(comparison.starts) == 0 {
		return nil, fmt.Errorf("compare: --rows %q matches no id or name of a row", c.Rows)
	}
	return comparison, nil
}

// IDs returns the ids of the selected rows, and of rows that are measured with them.
func (c *Comparison) IDs() []string {
	var ids []string
	for _, s := range slices.Concat(c.reads, c.starts) {
		for _, r := range s.rows {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// Run starts the servers, runs all rows and stops the servers. After a row has failed, the others still run.
// The results are returned with the errors.
func (c *Comparison) Run(ctx context.Context) (t *Table, err error) {
	c.config.Sayf("starting etcd")
	if c.started, err = testservers.New(ctx, c.config.TestServers, "compare"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.started.Close()) }()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	defer func() {
		slices.SortFunc(c.table.Rows, func(a, b *Row) int { return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) })
	}()
	err = c.each(ctx, c.reads)
	if len(c.starts) > 0 && ctx.Err() == nil {
		err = errors.Join(err, c.runStarts(ctx))
	}
	return c.table, err
}

// each runs steps until ctx ends, even if one fails.
func (c *Comparison) each(ctx context.Context, steps []step) (err error) {
	for _, s := range steps {
		if failed := c.step(ctx, s); failed != nil {
			c.config.Sayf("failed: %v", failed)
			err = errors.Join(err, failed)
		}
		if ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	return err
}

// selected returns the steps that the configuration selects. If one row of a step is selected, all its rows
// are measured.
func (c *Config) selected(steps []step) []step {
	return slices.DeleteFunc(steps, func(s step) bool {
		return !slices.ContainsFunc(s.rows, func(r *Row) bool { return c.Rows.MatchString(r.ID + " " + r.Work) })
	})
}

// prepare starts Larder, seeds through it, and starts the other servers if they are needed.
func (c *Comparison) prepare(ctx context.Context) error {
	c.config.Sayf("starting Larder")
	larder, err := c.start(ctx, Larder)
	if err != nil {
		return err
	}
	c.config.Sayf("seeding %d pods", c.seed.Pods)
	if _, err := bench.Seed(ctx, larder.Target, c.seed); err != nil {
		return err
	}
	if len(c.reads) > 0 {
		c.config.Sayf("starting kube-apiserver")
		if _, err := c.start(ctx, Stock); err != nil {
			return err
		}
		if err := c.startLimit(ctx); err != nil {
			return err
		}
	}
	return c.describe(ctx)
}

func (c *Comparison) describe(ctx context.Context) error {
	version, err := c.servers[Larder].Target.Version(ctx)
	if err != nil {
		return err
	}
	stock := "kube-apiserver"
	if c.servers[Stock] != nil {
		v, err := c.servers[Stock].Target.Version(ctx)
		if err != nil {
			return err
		}
		stock += " " + v
	}
	protocol := "HTTP/1.1"
	if n := c.config.TestServers.Streams; n > 0 {
		protocol = fmt.Sprintf("HTTP/2 (up to %d requests at once on a connection; the limit over HTTP/1.1)", n)
	}
	c.table.Servers = fmt.Sprintf("%s and Larder (Kubernetes %s), one after the other over TLS and %s on one etcd that does not wait for the disk, with %d pods; client, servers and etcd share the machine.", stock, version, protocol, c.seed.Pods)
	return nil
}

// startLimit records Larder's responses and starts the limit with them. The limit is this program with the command
// limit.
func (c *Comparison) startLimit(ctx context.Context) error {
	c.config.Sayf("recording Larder's responses")
	tape, err := c.record(ctx)
	if err != nil {
		return err
	}
	file := filepath.Join(c.config.TestServers.Dir, "tape")
	if err := tape.Save(file); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	c.servers[Limit], err = c.started.StartOther(ctx, Limit, program, func(port string) []string { return []string{"limit", "--tape", file, "--port", port} })
	return err
}

// record captures Larder's responses to the requests that the selected steps repeat.
func (c *Comparison) record(ctx context.Context) (tape *baseline.Tape, err error) {
	larder := c.servers[Larder].Target
	tape = &baseline.Tape{Responses: make(map[string][]byte)}
	for _, s := range c.reads {
		r, capture := s.asks, larder.Capture
		if r.Path == "" {
			continue
		}
		if s.watchList {
			capture = larder.CaptureWatchList
		}
		if tape.Responses[baseline.Key(r.Path, r.Accept, r.Encoding)], err = capture(ctx, r); err != nil {
			return nil, err
		}
	}
	tape.Event, err = larder.CaptureChange(ctx, pods, c.seed.PodPath(0), bench.Protobuf)
	return tape, err
}

// step runs all rounds of a step and adds its rows.
func (c *Comparison) step(ctx context.Context, s step) error {
	c.table.Rows = append(c.table.Rows, s.rows...)
	defer func() {
		for _, r := range s.rows {
			r.fill()
			c.config.Sayf("%s", strings.Join(r.cells(), " | "))
		}
	}()
	for range c.config.Rounds {
		for _, kind := range kinds {
			if kind == Limit && !s.limit {
				continue
			}
			results, err := s.run(ctx, kind)
			if err != nil {
				return fmt.Errorf("compare: %s, %s: %w", s.rows[0].ID, kind, err)
			}
			for i, r := range s.rows {
				r.Results[kind] = append(r.Results[kind], results[i])
			}
		}
	}
	return nil
}
