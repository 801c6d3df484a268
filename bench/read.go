package bench

import (
	"context"
	"errors"
)

// ReadConfig is a workload of GET requests for one object, collection or selection.
type ReadConfig struct {
	Name   string
	Path   string
	Accept string
	// Encoding is the Accept-Encoding header, "" for none.
	Encoding string
	Load
	// Between, unless nil, is called before each request of a closed loop. It may change an object, so that the server
	// cannot repeat its last response. No latency includes its time.
	Between func(ctx context.Context, request int) error
}

// Read runs the workload.
func Read(ctx context.Context, t *Target, c ReadConfig) (*Result, error) {
	if c.Between != nil && c.open() {
		return nil, errors.New("bench: Between needs a closed loop")
	}
	get := Request{Path: c.Path, Accept: c.Accept, Encoding: c.Encoding}
	return repeat(ctx, t, c.Name, loop{Load: c.Load, between: c.Between}, func(int) Request { return get })
}

// Patch patches an annotation of the objects at paths, in turn. Each patch is a change.
func Patch(ctx context.Context, t *Target, name string, paths []string, load Load) (*Result, error) {
	return repeat(ctx, t, name, loop{Load: load}, func(i int) Request { return markPatch(paths[i%len(paths)], newRun(), i) })
}

// repeat runs a workload of requests of one kind. It first sends one that is not measured, because servers initialize
// parts on first use.
func repeat(ctx context.Context, t *Target, name string, l loop, request func(i int) Request) (*Result, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	if err := t.fetch(ctx, request(0)); err != nil {
		return nil, err
	}
	return l.measure(ctx, t, name, "request", send(request))
}
