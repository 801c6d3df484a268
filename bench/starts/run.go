package starts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
	"github.com/larder-io/larder/bench/testservers"
)

// Config says which starts are measured.
type Config struct {
	testservers.Trials
	// Data are kinds of data, of Names; Objects is how many objects of each there are.
	Data    []string
	Objects int
}

// check returns an error for what cannot be, and the kinds of data.
func (c *Config) check() ([]*data, error) {
	if c.Objects < 1 {
		return nil, errors.New("starts: want at least one object")
	}
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("starts: %w", err)
	}
	for _, name := range c.Data {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("starts: %q is no data: want some of %s", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(kinds(), func(d *data) bool { return !slices.Contains(c.Data, d.name) }), nil
}

// Run measures all starts. What was measured is returned with an error, too.
func Run(ctx context.Context, c Config) (*Table, error) {
	all, err := c.check()
	if err != nil {
		return nil, err
	}
	t := &Table{Head: c.Head(), Objects: c.Objects}
	for _, d := range all {
		if err := c.runData(ctx, t, d); err != nil {
			return t, fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return t, nil
}

// runData measures the starts on one kind of data, in an etcd of its own.
func (c *Config) runData(ctx context.Context, t *Table, d *data) (err error) {
	servers, err := testservers.NewBelow(c.TestServers, d.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	c.Sayf("%s: starting etcd and writing %d objects", d.name, c.Objects)
	if err := servers.StartEtcd(ctx); err != nil {
		return err
	}
	if err := c.prepare(ctx, servers, d); err != nil {
		return err
	}
	return c.Each(func(kind string, round int) error {
		r := &Result{Data: d.name, Server: kind, Round: round}
		if err := r.measure(ctx, servers, d); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		t.Results = append(t.Results, r)
		c.Sayf("%s, %s: %s", d.name, kind, r.summary())
		return nil
	})
}

// prepare starts each server once while there is nothing yet, so that none of the measured
// starts makes what every cluster has, and then writes the objects.
func (c *Config) prepare(ctx context.Context, f *testservers.Servers, d *data) error {
	s := &store{url: f.EtcdURL(), client: &http.Client{}}
	defer s.client.CloseIdleConnections()
	var stored []byte
	for _, kind := range c.Servers {
		if err := c.first(ctx, f, d, kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	if d.custom {
		var err error
		if stored, err = s.get(ctx, workers+"bench-0/worker-0"); err != nil {
			return err
		}
	}
	if d.item != nil {
		if err := s.fill(ctx, c.Objects, func(i int) (pair, error) { return d.item(i, c.Objects, stored) }); err != nil {
			return err
		}
		if n, err := s.count(ctx, d.prefix); err != nil || n != fmt.Sprint(c.Objects) {
			return fmt.Errorf("starts: etcd has %q objects below %s, want %d: %w", n, d.prefix, c.Objects, err)
		}
	}
	return s.compact(ctx)
}

// first starts a server that is not measured. It defines custom resources.
func (c *Config) first(ctx context.Context, f *testservers.Servers, d *data, kind string) (err error) {
	server, err := f.Start(kind, testservers.Usual())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := server.Ready(ctx); err != nil || !d.custom {
		return err
	}
	return bench.DefineWorkers(ctx, server.Target)
}

// measure starts a server, waits until it is ready and lists all objects.
func (r *Result) measure(ctx context.Context, f *testservers.Servers, d *data) (err error) {
	etcd := f.Etcd().Process
	before, err := etcd.CPU()
	if err != nil {
		return fmt.Errorf("starts: %w", err)
	}
	server, err := f.Start(r.Server, testservers.Usual())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := server.Ready(ctx); err != nil {
		return err
	}
	if r.Ready, err = costSince(server, etcd, before); err != nil {
		return err
	}
	if r.Bytes, err = list(ctx, server.Target, d); err != nil {
		return err
	}
	if r.Listed, err = costSince(server, etcd, before); err != nil {
		return err
	}
	r.Listed.Server.PeakRSS = max(r.Listed.Server.PeakRSS, r.Ready.Server.PeakRSS)
	return nil
}

// list asks for all objects once. Custom resources are served some time after the server is
// ready; it asks again until then.
func list(ctx context.Context, t *bench.Target, d *data) (int64, error) {
	const longest, pause = 5 * time.Minute, 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for {
		n, err := t.Once(ctx, d.path, d.accept)
		if err == nil || !d.custom {
			return n, err
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("starts: %s is not served: %w", d.path, err)
		case <-time.After(pause):
		}
	}
}

// costSince returns the cost of a server since its start, and of etcd since then.
func costSince(s *testservers.Server, etcd process.Process, before time.Duration) (Cost, error) {
	c := Cost{Wall: time.Since(s.Started)}
	var err error
	if c.Server, err = s.Process.Usage(); err != nil {
		return c, fmt.Errorf("starts: %w", err)
	}
	after, err := etcd.CPU()
	if err != nil {
		return c, fmt.Errorf("starts: %w", err)
	}
	c.Etcd = after - before
	return c, nil
}
