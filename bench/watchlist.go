package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// WatchListConfig is a workload of watches that begin with all objects, opened as
// client-go's informers open them.
type WatchListConfig struct {
	// Name heads the result.
	Name string
	// Path is the collection, with a selector in its query if need be.
	Path string
	// Accept is the media type of the events.
	Accept string
	// Requests is how many such watches are opened in all, Clients how many at a time.
	Requests, Clients int
	// Objects is how many objects each must see; 0 leaves that unchecked.
	Objects int
}

// WatchList records the time from the request to the bookmark that ends the initial
// events. Connections are made, and used once, before the measured parts, and broken
// off after them.
func WatchList(ctx context.Context, t *Target, c WatchListConfig) (*Result, error) {
	if err := (loop{ops: c.Requests, clients: c.Clients}).check(); err != nil {
		return nil, err
	}
	rec, err := t.newRecorder(c.Name, "request", c.Requests)
	if err != nil {
		return nil, err
	}
	defer rec.finish()
	if err := c.batch(ctx, t, nil, 1); err != nil {
		return nil, err
	}
	for left := c.Requests; left > 0; left -= c.Clients {
		if err := c.batch(ctx, t, rec, min(left, c.Clients)); err != nil {
			return nil, err
		}
	}
	return rec.finish(), nil
}

// batch opens n watches at once; without a recorder, to warm up.
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
		var err error
		if conns[i], err = t.dial(ctx, largeBuffer); err != nil {
			return err
		}
		if _, err := conns[i].do(call{path: "/version", accept: JSON}); err != nil {
			return err
		}
	}
	if rec == nil {
		_, err := c.one(conns[0])
		return err
	}
	return rec.measured(func() error {
		var group errgroup.Group
		for _, conn := range conns {
			group.Go(func() error {
				start := time.Now()
				size, err := c.one(conn)
				rec.record(time.Since(start), size, err)
				return ctx.Err()
			})
		}
		return group.Wait()
	})
}

// one reads the initial events of one watch.
func (c *WatchListConfig) one(conn *conn) (int64, error) {
	s, err := conn.watch(c.call())
	if err != nil {
		return 0, err
	}
	objects, size, err := s.readInitial()
	if err == nil && c.Objects > 0 && objects != c.Objects {
		err = fmt.Errorf("bench: %s began with %d objects, want %d", c.Path, objects, c.Objects)
	}
	return size, err
}

func (c *WatchListConfig) call() call { return call{path: WatchListPath(c.Path), accept: c.Accept} }

// WatchListPath is the path by which client-go's informers open a collection.
func WatchListPath(path string) string {
	return with(path, "allowWatchBookmarks=true", "resourceVersionMatch=NotOlderThan", "sendInitialEvents=true", "timeoutSeconds=600", "watch=true")
}
