package bench

import "context"

// ReadConfig is a workload of GET requests for one object, collection or selection.
type ReadConfig struct {
	// Name is the name of the result.
	Name string
	// Path is the request's path and query.
	Path string
	// Accept is the requested media type.
	Accept string
	// Encoding is the Accept-Encoding header, "" for none.
	Encoding string
	Load
	// Between, unless nil, is called before each request. It may change an object, so that the server cannot
	// repeat its last response. No latency includes its time, even if it delays a request of an open loop.
	Between func(ctx context.Context, request int) error
}

// Read runs the workload. It first sends one unmeasured request, because servers initialize parts on first use.
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
