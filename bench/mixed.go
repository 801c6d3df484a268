package bench

import (
	"context"
	"fmt"
	"time"
)

// MixedConfig is a workload of the requests that a cluster sends to its server: mostly small
// reads, some lists, some writes, in fixed proportions.
type MixedConfig struct {
	// Seed says which pods there are to read.
	Seed SeedConfig
	// Rate is requests per second, 0 for as many as Clients get answered.
	Rate float64
	// Requests is how many are sent in all, Clients how many at most at a time.
	Requests, Clients int
}

// share is one kind of request of the mixed load.
type share struct {
	name   string
	weight int
	call   func(c *MixedConfig, i int) call
}

// mixture adds up to 100.
var mixture = []share{
	{"get pod", 50, func(c *MixedConfig, i int) call { return call{path: c.pod(i), accept: Protobuf} }},
	{"list node", 20, func(c *MixedConfig, i int) call {
		return call{path: c.Seed.NodeSelection(i%c.Seed.Nodes) + "&resourceVersion=0", accept: Protobuf}
	}},
	{"list namespace", 9, func(c *MixedConfig, i int) call {
		return call{path: "/api/v1/namespaces/" + fmt.Sprintf(namespaceFormat, i%c.Seed.Namespaces) + "/pods", accept: Protobuf}
	}},
	{"list all, first 500", 1, func(*MixedConfig, int) call { return call{path: "/api/v1/pods?limit=500", accept: Protobuf} }},
	{"patch pod", 20, func(c *MixedConfig, i int) call { return markPatch(c.pod(i), newRun(), i) }},
}

func (c *MixedConfig) pod(i int) string {
	// A stride that is prime to any number of pods in use visits all of them.
	const stride = 7919
	return c.Seed.PodPath(i * stride % c.Seed.Pods)
}

// Mixed runs the mixture and returns one Result for all of it and then one of each
// kind of request. The server's cost is known only for the whole.
func Mixed(ctx context.Context, t *Target, c MixedConfig) ([]*Result, error) {
	l := loop{ops: c.Requests, clients: c.Clients, rate: c.Rate}
	if err := l.check(); err != nil {
		return nil, err
	}
	rec, err := t.newRecorder("mixed load", "request", c.Requests)
	if err != nil {
		return nil, err
	}
	defer rec.finish()
	parts := make([]*recorder, len(mixture))
	for i, s := range mixture {
		parts[i] = &recorder{result: &Result{Name: s.name, Unit: "request", Latency: newHistogram()}}
	}
	err = rec.measured(func() error {
		return l.run(ctx, t, rec, func(ctx context.Context, own *lane, i int, intended time.Time) (int64, error) {
			kind := pick(i)
			n, err := own.do(ctx, mixture[kind].call(&c, i))
			parts[kind].record(time.Since(intended), n, err)
			return n, err
		})
	})
	if err != nil {
		return nil, err
	}
	results := []*Result{rec.finish()}
	for _, p := range parts {
		p.result.Wall = results[0].Wall
		results = append(results, p.result)
	}
	return results, nil
}

// pick returns the kind of request i: evenly mixed, the same in each run.
func pick(i int) int {
	const stride = 37 // prime to 100
	at := i * stride % 100
	for kind, s := range mixture {
		if at -= s.weight; at < 0 {
			return kind
		}
	}
	return 0
}
