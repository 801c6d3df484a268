package starts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// Beside configures a measurement of many idle servers on one machine, as test suites start them.
type Beside struct {
	testservers.Trials
	Count int
	Rest  time.Duration
}

// Run starts the servers one after the other, each without objects and with its own etcd, and measures them while they
// are idle.
func (b *Beside) Run(ctx context.Context) ([]*bench.Result, error) {
	if b.Count < 1 || b.Rest <= 0 {
		return nil, fmt.Errorf("starts: --count must be at least 1 and --rest more than 0, are %d and %v", b.Count, b.Rest)
	}
	if err := b.Check(); err != nil {
		return nil, err
	}
	return b.Each(func(kind string, round int) ([]*bench.Result, error) {
		r, err := b.measure(ctx, kind, round)
		if err != nil {
			return nil, err
		}
		return []*bench.Result{r}, nil
	})
}

func (b *Beside) measure(ctx context.Context, kind string, round int) (r *bench.Result, err error) {
	f, err := testservers.New(ctx, b.TestServers, fmt.Sprintf("beside-%d", round))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Etcd().Stop(); err != nil { // each server has its own
		return nil, err
	}
	r = &bench.Result{Name: fmt.Sprintf("%s: %d beside each other", kind, b.Count), Unit: "server", Counts: bench.Counts{Ops: b.Count}}
	shared := len(f.Servers())
	for range b.Count {
		began := time.Now()
		if _, err := f.StartEmpty(ctx, kind); err != nil {
			return nil, err
		}
		r.Wall += time.Since(began)
	}
	servers := f.Servers()[shared:]
	var before, after process.Usage
	for _, use := range []*process.Usage{&before, &after} { // the first wait lets the servers become idle
		if err := bench.Sleep(ctx, b.Rest); err != nil {
			return nil, err
		}
		if *use, err = sum(servers); err != nil {
			return nil, err
		}
	}
	n := float64(b.Count)
	r.Server, r.ServerCPU = after, after.CPU-before.CPU
	r.Add("time until ready, of one", r.Wall.Seconds()/n, "s")
	r.Add("private memory of one", float64(after.Anonymous)/n, "B")
	r.Add("CPU of one in a second at rest", r.ServerCPU.Seconds()/b.Rest.Seconds()/n, "s")
	for _, v := range r.Values {
		b.Sayf("%s: %s: %s", kind, v.Name, v)
	}
	return r, nil
}

func sum(servers []*testservers.Server) (all process.Usage, err error) {
	for _, s := range servers {
		u, err := s.Process.Usage()
		if err := errors.Join(s.CheckAlive(), err); err != nil {
			return all, fmt.Errorf("starts: %w", err)
		}
		all.CPU, all.RSS, all.Anonymous = all.CPU+u.CPU, all.RSS+u.RSS, all.Anonymous+u.Anonymous
	}
	return all, nil
}
