package bench

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// Media types that servers answer in.
const (
	Protobuf = "application/vnd.kubernetes.protobuf"
	JSON     = "application/json"
)

// ReadConfig is a closed-loop workload of GET requests for one path, which may
// be a single object, a collection or a selection.
type ReadConfig struct {
	// Name heads the result.
	Name string
	// Path is the request's path and query.
	Path string
	// Accept is the media type asked for.
	Accept string
	// Encoding is the Accept-Encoding header, "" for none.
	Encoding string
	// Requests is how many are sent in all, Clients how many at a time.
	Requests, Clients int
}

// Read runs the workload after one unmeasured request, which makes the server
// build what it builds on first use.
func Read(ctx context.Context, t *Target, c ReadConfig) (*Result, error) {
	if _, err := t.get(ctx, c.Path, c.Accept, c.Encoding, make([]byte, 256<<10)); err != nil {
		return nil, err
	}
	return measure(t, c.Name, func(rec *recorder) error {
		group, ctx := errgroup.WithContext(ctx)
		for worker := range c.Clients {
			share := c.Requests / c.Clients
			if worker < c.Requests%c.Clients {
				share++
			}
			group.Go(func() error {
				buf := make([]byte, 256<<10)
				for range share {
					start := time.Now()
					n, err := t.get(ctx, c.Path, c.Accept, c.Encoding, buf)
					rec.record(time.Since(start), n, err)
					if ctx.Err() != nil {
						return ctx.Err()
					}
				}
				return nil
			})
		}
		return group.Wait()
	})
}
