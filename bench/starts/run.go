package starts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/testservers"
)

// Config configures the measured starts.
type Config struct {
	testservers.Trials
	// Data lists kinds of data by their Names. Objects is the number of objects of each kind.
	Data    []string
	Objects int
}

// check validates the configuration and returns the kinds of data.
func (c *Config) check() ([]*data, error) {
	if c.Objects < 1 {
		return nil, fmt.Errorf("starts: --objects must be at least 1, is %d", c.Objects)
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	for _, name := range c.Data {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("starts: --data=%s: want some of %s", name, strings.Join(Names(), ", "))
		}
	}
	return slices.DeleteFunc(kinds(), func(d *data) bool { return !slices.Contains(c.Data, d.name) }), nil
}

// Run measures all starts. With an error it also returns the results so far.
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

// run measures the starts on one kind of data, in a new etcd.
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
	var first *bench.Result // the first list
	return c.Each(func(kind string, _ int) ([]*bench.Result, error) {
		found, err := measure(ctx, servers, d, kind)
		if err != nil {
			return nil, err
		}
		first = cmp.Or(first, found[1])
		compare(first, found[1])
		for _, r := range found {
			c.Sayf("%s: %s, %s of CPU", r.Name, bench.Duration(r.Wall), bench.Duration(r.ServerCPU))
		}
		return found, nil
	})
}

// prepare starts each server once and then writes the objects, so that no measured start creates the objects that every
// cluster has.
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
	stored := &unstructured.Unstructured{}
	if d.custom {
		if err := read(ctx, etcd, workers+"bench-0/worker-0", stored); err != nil {
			return err
		}
	}
	if d.item != nil {
		if err := fill(ctx, etcd, d.prefix, c.Objects, func(i int) object { return d.item(i, c.Objects, stored) }); err != nil {
			return err
		}
	}
	return compact(ctx, etcd)
}

// first starts and stops a server without measuring it. For custom data it creates the CRD.
func first(ctx context.Context, f *testservers.Servers, d *data, kind string) error {
	server, err := f.Start(ctx, kind, testservers.DefaultGuards())
	if err != nil {
		return err
	}
	if d.custom {
		err = bench.DefineWorkers(ctx, server.Target)
	}
	return errors.Join(err, server.Stop())
}

// measure starts a server, waits until it is ready and lists all objects. It returns the cost until each.
func measure(ctx context.Context, f *testservers.Servers, d *data, kind string) (found []*bench.Result, err error) {
	etcd := f.Etcd().Process
	before, err := etcd.CPU()
	if err != nil {
		return nil, fmt.Errorf("starts: %w", err)
	}
	server, err := f.Start(ctx, kind, testservers.DefaultGuards())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	until := func(what string) (*bench.Result, error) {
		r, err := server.SinceStart(fmt.Sprintf("%s: %s %s, %s", kind, d.id, d.name, what))
		if err != nil {
			return nil, err
		}
		after, err := etcd.CPU()
		r.Beside = []bench.Cost{{Name: "etcd", CPU: after - before}}
		return r, err
	}
	ready, err := until("ready")
	if err != nil {
		return nil, err
	}
	size, err := list(ctx, server, d)
	if err != nil {
		return nil, err
	}
	listed, err := until("first list received")
	if err != nil {
		return nil, err
	}
	listed.Bytes = size
	listed.Server.PeakRSS = max(listed.Server.PeakRSS, ready.Server.PeakRSS)
	return []*bench.Result{ready, listed}, nil
}

// compare records an error in r if its list and the first list of the same objects differ in length. One of them must
// be wrong. Revisions may differ by a few digits.
func compare(first, r *bench.Result) {
	const revision = 8
	if difference := first.Bytes - r.Bytes; max(difference, -difference) > revision {
		r.Errors, r.FirstError = 1, fmt.Sprintf("the list has %d bytes, but the first list (%s) has %d", r.Bytes, first.Name, first.Bytes)
	}
}

// list requests all objects once. It retries requests for custom resources, which a server may serve only some time
// after it is ready.
func list(ctx context.Context, server *testservers.Server, d *data) (size int64, err error) {
	const longest, pause = 5 * time.Minute, 20 * time.Millisecond
	accept := bench.Protobuf
	if d.custom {
		accept = bench.JSON
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, pause, longest, true, func(ctx context.Context) (bool, error) {
		size, last = server.Target.Fetch(ctx, bench.Request{Path: d.path, Accept: accept}, io.Discard)
		switch {
		case last == nil:
			return true, nil
		case !d.custom:
			return false, last
		}
		return false, server.CheckAlive()
	})
	if err != nil && last != nil {
		return 0, errors.Join(fmt.Errorf("starts: the server does not serve %s: %w", d.path, last), server.CheckAlive())
	}
	return size, err
}

// read reads a custom resource from etcd.
func read(ctx context.Context, etcd *clientv3.Client, key string, o *unstructured.Unstructured) error {
	resp, err := etcd.Get(ctx, key)
	if err == nil && len(resp.Kvs) != 1 {
		err = fmt.Errorf("etcd has no %s", key)
	}
	if err == nil {
		err = o.UnmarshalJSON(resp.Kvs[0].Value)
	}
	if err != nil {
		return fmt.Errorf("starts: %w", err)
	}
	return nil
}

// fill writes n objects, many in each transaction, and checks their number below prefix.
func fill(ctx context.Context, etcd *clientv3.Client, prefix string, n int, item func(i int) object) error {
	const (
		each    = 64 // in a transaction: etcd's limits are 128, and 1.5 MB
		clients = 4
	)
	writing, within := errgroup.WithContext(ctx)
	writing.SetLimit(clients)
	for first := 0; first < n; first += each {
		writing.Go(func() error {
			var puts []clientv3.Op
			for i := first; i < min(first+each, n); i++ {
				o := item(i)
				value, err := encode(o)
				if err != nil {
					return err
				}
				puts = append(puts, clientv3.OpPut(prefix+o.GetNamespace()+"/"+o.GetName(), string(value)))
			}
			_, err := etcd.Txn(within).Then(puts...).Commit()
			return err
		})
	}
	if err := writing.Wait(); err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	resp, err := etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && resp.Count != int64(n) {
		err = fmt.Errorf("%d objects below %s, want %d", resp.Count, prefix, n)
	}
	if err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	return nil
}

// compact removes the history, so that servers do not replay it.
func compact(ctx context.Context, etcd *clientv3.Client) error {
	now, err := etcd.Get(ctx, "none")
	if err == nil {
		_, err = etcd.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = etcd.Defragment(ctx, etcd.Endpoints()[0])
	}
	if err != nil {
		return fmt.Errorf("starts: etcd: %w", err)
	}
	return nil
}
