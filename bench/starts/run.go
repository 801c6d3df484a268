package starts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Config says which starts are measured.
type Config struct {
	testservers.Trials
	// Data are kinds of data, of Names. Objects is the number of objects of each kind.
	Data    []string
	Objects int
}

// check returns an error for a Config that cannot be run, or else the kinds of data.
func (c *Config) check() ([]*data, error) {
	if c.Objects < 1 {
		return nil, errors.New("starts: want at least one object")
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	for _, name := range c.Data {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("starts: %q is no data: want some of %s", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(kinds(), func(d *data) bool { return !slices.Contains(c.Data, d.name) }), nil
}

// Run measures all starts. It returns the results so far with an error, too.
func Run(ctx context.Context, c Config) (all []*bench.Result, err error) {
	kinds, err := c.check()
	if err != nil {
		return nil, err
	}
	for _, d := range kinds {
		results, err := c.run(ctx, d)
		all = append(all, results...)
		if err != nil {
			return all, fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return all, nil
}

// run measures the starts on one kind of data, in an etcd of its own.
func (c *Config) run(ctx context.Context, d *data) (all []*bench.Result, err error) {
	c.Sayf("%s: starting etcd and writing %d objects", d.name, c.Objects)
	servers, err := testservers.New(ctx, c.TestServers, d.name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	if err := c.prepare(ctx, servers, d); err != nil {
		return nil, err
	}
	var first *bench.Result // list
	return c.Each(func(kind string, _ int) ([]*bench.Result, error) {
		ready, listed, err := measure(ctx, servers, d, kind)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = listed
		}
		compare(first, listed)
		found := []*bench.Result{ready, listed}
		for _, r := range found {
			c.Sayf("%s: %s, %s of CPU", r.Name, bench.Duration(r.Wall), bench.Duration(r.ServerCPU))
		}
		return found, nil
	})
}

// prepare starts each server once before there are objects, so that no measured start creates what
// every cluster has. Then it writes the objects.
func (c *Config) prepare(ctx context.Context, f *testservers.Servers, d *data) error {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{f.EtcdURL()}})
	if err != nil {
		return fmt.Errorf("starts: %w", err)
	}
	defer etcd.Close()
	for _, kind := range c.Servers {
		if err := first(ctx, f, d, kind); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	var stored []byte
	if d.custom {
		if stored, err = value(ctx, etcd, workers+"bench-0/worker-0"); err != nil {
			return err
		}
	}
	if d.item != nil {
		if err := fill(ctx, etcd, d.prefix, c.Objects, func(i int) (pair, error) { return d.item(i, c.Objects, stored) }); err != nil {
			return err
		}
	}
	return compact(ctx, etcd)
}

// first starts a server that is not measured. It defines custom resources.
func first(ctx context.Context, f *testservers.Servers, d *data, kind string) error {
	server, err := f.Start(ctx, kind, testservers.Usual())
	if err != nil {
		return err
	}
	if d.custom {
		err = bench.DefineWorkers(ctx, server.Target)
	}
	return errors.Join(err, server.Stop())
}

// measure starts a server, waits until it is ready and lists all objects.
func measure(ctx context.Context, f *testservers.Servers, d *data, kind string) (ready, listed *bench.Result, err error) {
	etcd := f.Etcd().Process
	before, err := etcd.CPU()
	if err != nil {
		return ready, listed, fmt.Errorf("starts: %w", err)
	}
	server, err := f.Start(ctx, kind, testservers.Usual())
	if err != nil {
		return ready, listed, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	until := func(what string) (*bench.Result, error) {
		r := &bench.Result{Name: fmt.Sprintf("%s: %s %s, %s", kind, d.id, d.name, what), Unit: "start", Counts: bench.Counts{Ops: 1}, Wall: time.Since(server.Started)}
		used, err := server.Process.Usage()
		if err != nil {
			return r, fmt.Errorf("starts: %w", err)
		}
		r.Server, r.ServerCPU = used, used.CPU
		after, err := etcd.CPU()
		r.Beside = []bench.Cost{{Name: "etcd", CPU: after - before}}
		return r, err
	}
	if ready, err = until("ready"); err != nil {
		return ready, listed, err
	}
	size, err := list(ctx, server, d)
	if err != nil {
		return ready, listed, err
	}
	if listed, err = until("first list received"); err != nil {
		return ready, listed, err
	}
	listed.Bytes = size
	listed.Server.PeakRSS = max(listed.Server.PeakRSS, ready.Server.PeakRSS)
	return ready, listed, nil
}

// compare makes a result a failure if its list has another length than an earlier list of the
// same objects: one of them must be wrong. Revisions may differ in length.
func compare(first, r *bench.Result) {
	const revision = 8
	if difference := first.Bytes - r.Bytes; max(difference, -difference) > revision {
		r.Errors, r.FirstError = 1, fmt.Sprintf("the list has %d bytes, and that of %s %d", r.Bytes, first.Name, first.Bytes)
	}
}

// list requests all objects once. It repeats the request for custom resources, which are served
// some time after the server is ready.
func list(ctx context.Context, server *testservers.Server, d *data) (size int64, err error) {
	const longest, pause = 5 * time.Minute, 20 * time.Millisecond
	var last error
	err = wait.PollUntilContextTimeout(ctx, pause, longest, true, func(ctx context.Context) (bool, error) {
		size, last = server.Target.Once(ctx, bench.Request{Path: d.path, Accept: d.accept}, io.Discard)
		switch {
		case last == nil:
			return true, nil
		case !d.custom:
			return false, last
		}
		return false, server.CheckAlive()
	})
	if err != nil && last != nil {
		return 0, errors.Join(fmt.Errorf("starts: %s is not served: %w", d.path, last), server.CheckAlive())
	}
	return size, err
}
