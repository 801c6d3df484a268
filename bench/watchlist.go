package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"
)

// WatchListConfig is a workload of watches with initial events, as client-go's informers open them.
type WatchListConfig struct {
	Name string
	Path string
	// Shards, if positive, is the number of equal shards that the watches select in turn. The server needs the
	// feature gate ShardedListAndWatch.
	Shards int
	Accept string
	// Objects is how many objects each watch must receive; 0 disables the check.
	Objects int
	// Load must be closed. Its operations are watches.
	Load
}

// WatchList records the time from the request to the bookmark that ends the initial events. It opens connections
// and sends one request over each before each measured part, and closes them afterwards.
func WatchList(ctx context.Context, t *Target, c WatchListConfig) (*Result, error) {
	l := loop{Load: c.Load}
	if err := l.check(); err != nil {
		return nil, err
	}
	if l.open() {
		return nil, errors.New("bench: --stages must have numbers of clients, not rates: watches that begin with all objects are opened in a closed loop")
	}
	return t.recorded(c.Name, "request", l.total(), func(rec *recorder) error {
		if err := c.batch(ctx, t, nil, 1); err != nil {
			return err
		}
		rec.set(func(r *Result) { r.Loop = ClosedLoop })
		within, cut := t.graceful(ctx)
		defer cut()
		for warm := time.Now(); time.Since(warm) < c.Warmup && !t.stopped(); {
			rec.phase("warming up")
			if err := c.batch(within, t, nil, c.Clients); err != nil {
				return err
			}
		}
		rec.phase("")
		if err := c.batches(within, t, rec); err != nil && (ctx.Err() != nil || !t.stopped()) {
			return err
		}
		return nil
	})
}

// batches opens Clients watches at a time, until it has opened all Operations or the time of the plan is over.
func (c *WatchListConfig) batches(ctx context.Context, t *Target, rec *recorder) error {
	plan, start := c.Plan, time.Now()
	for left := c.Operations; !t.stopped(); {
		n := min(left, c.Clients)
		if !plan.IsZero() {
			if time.Since(start) >= plan.Length() {
				return nil
			}
			if n = plan.Clients(time.Since(start)); n == 0 {
				if err := Sleep(ctx, planInterval); err != nil {
					return err
				}
				continue
			}
		}
		if n == 0 {
			return nil
		}
		if err := c.batch(ctx, t, rec, n); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// batch opens n connections and a watch over each, all at once. Without a recorder it opens one watch, to warm up.
func (c *WatchListConfig) batch(ctx context.Context, t *Target, rec *recorder, n int) error {
	conns := make([]*conn, n)
	defer func() {
		for _, conn := range conns {
			if conn != nil {
				conn.close()
			}
		}
	}()
	for i := range conns {
		conns[i] = t.conn(ctx)
		if _, err := conns[i].do(Request{Path: "/version", Accept: JSON}); err != nil {
			return err
		}
	}
	if rec == nil {
		_, err := c.one(conns[0], 0)
		return err
	}
	return rec.measured(func() error {
		var group errgroup.Group
		for i, conn := range conns {
			group.Go(func() error {
				start := time.Now()
				o, err := c.one(conn, i)
				if ctx.Err() == nil {
					rec.record(time.Since(start), o, err)
				}
				return ctx.Err()
			})
		}
		return group.Wait()
	})
}

func (c *WatchListConfig) one(conn *conn, i int) (o outcome, err error) {
	s, err := conn.watch(c.call(i))
	o.status = StatusOf(err)
	if err != nil {
		return o, err
	}
	conn.limit(conn.t.Timeout)
	objects, size, err := s.readInitial()
	o.bytes, err = size, conn.explain(err)
	if err == nil && c.Objects > 0 && objects != c.Objects {
		err = fmt.Errorf("bench: %s began with %d objects, want %d", c.Path, objects, c.Objects)
	}
	return o, err
}

func (c *WatchListConfig) call(i int) Request {
	path := c.Path
	if c.Shards > 0 {
		path = Shards(path, c.Shards)[i%c.Shards]
	}
	return Request{Path: WatchListPath(path), Accept: c.Accept}
}

// Shards returns the paths of n equal shards of a collection, divided by the hashes of UIDs.
func Shards(path string, n int) []string {
	paths, span := make([]string, n), math.MaxUint64/uint64(n)+1
	for i := range paths {
		end := "0x10000000000000000"
		if i < n-1 {
			end = fmt.Sprintf("0x%016x", uint64(i+1)*span)
		}
		selector := fmt.Sprintf("shardRange(object.metadata.uid, '0x%016x', '%s')", uint64(i)*span, end)
		paths[i] = WithQuery(path, "shardSelector="+url.QueryEscape(selector))
	}
	return paths
}

// WatchListPath returns the path of the watch that client-go's informers open for a collection.
func WatchListPath(path string) string {
	return WithQuery(path, "allowWatchBookmarks=true", "resourceVersionMatch=NotOlderThan", "sendInitialEvents=true", "timeoutSeconds=600", "watch=true")
}
