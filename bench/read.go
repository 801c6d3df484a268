package bench

import "context"

// ReadConfig is a workload of GET requests for one path, which may be a single
// object, a collection or a selection.
type ReadConfig struct {
	// Name heads the result.
	Name string
	// Path is the request's path and query.
	Path string
	// Accept is the media type asked for.
	Accept string
	// Encoding is the Accept-Encoding header, "" for none.
	Encoding string
	Load
	// Between is called before each request, nil for nothing: it may change something, so
	// that an answer is not the last one again. Its time is in no latency, also where it
	// makes a request of an open loop begin late.
	Between func(ctx context.Context, request int) error
}

// Read runs the workload after one unmeasured request, which makes the server
// build what it builds on first use.
func Read(ctx context.Context, t *Target, c ReadConfig) (*Result, error) {
	l := loop{Load: c.Load, between: c.Between}
	if err := l.check(); err != nil {
		return nil, err
	}
	get := Request{Path: c.Path, Accept: c.Accept, Encoding: c.Encoding}
	if err := t.once(ctx, get); err != nil {
		return nil, err
	}
	op := send(func(int) Request { return get })
	return l.measure(ctx, t, c.Name, "request", op, op)
}
