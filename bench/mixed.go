package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// MixedConfig is a workload of the requests that a cluster sends to its API server: mostly small reads, some lists,
// some writes, in fixed proportions.
type MixedConfig struct {
	Seed SeedConfig
	Load
}

// Names of Results of Mixed: of all requests, and of the small ones.
const (
	MixedName = "mixed load"
	GetPod    = "get pod"
	ListNode  = "list node"
)

// mixedRequests lists the kinds of requests. Their weights are percentages. call gets a random number for the request.
var mixedRequests = []struct {
	name   string
	weight int
	call   func(c *MixedConfig, i int, n uint64) Request
}{
	{GetPod, 50, func(c *MixedConfig, _ int, n uint64) Request { return Request{Path: c.pod(n), Accept: Protobuf} }},
	{ListNode, 20, func(c *MixedConfig, _ int, n uint64) Request {
		return Request{Path: c.Seed.NodeSelection(below(n, c.Seed.Nodes)) + "&resourceVersion=0", Accept: Protobuf}
	}},
	{"list namespace", 9, func(c *MixedConfig, _ int, n uint64) Request {
		return Request{Path: "/api/v1/namespaces/" + fmt.Sprintf(namespaceFormat, below(n, c.Seed.Namespaces)) + "/pods", Accept: Protobuf}
	}},
	{"list all, first 500", 1, func(*MixedConfig, int, uint64) Request {
		return Request{Path: "/api/v1/pods?limit=500", Accept: Protobuf}
	}},
	{"patch pod", 20, func(c *MixedConfig, i int, n uint64) Request { return markPatch(c.pod(n), newRun(), i) }},
}

// MixedKinds returns the names of the Results of the kinds of requests that Mixed sends.
func MixedKinds() []string {
	return sequence(len(mixedRequests), func(i int) string { return mixedRequests[i].name })
}

func (c *MixedConfig) pod(n uint64) string { return c.Seed.PodPath(below(n, c.Seed.Pods)) }

// below maps a random number to one below most.
func below(n uint64, most int) int { return int(n % uint64(most)) }

// drawn returns the random number of request i, which is the same in each run and independent of the request's kind.
func drawn(i int) uint64 {
	const run = 0x6c6172646572 // seed of the sequence
	return rand.NewPCG(run, uint64(i)).Uint64()
}

// mixedOrder returns the kinds of each hundred requests in a fixed random order. Each kind occurs as often as its
// weight.
func mixedOrder() []int {
	var order []int
	for kind, s := range mixedRequests {
		order = append(order, slices.Repeat([]int{kind}, s.weight)...)
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// Mixed sends mixedRequests for random pods, nodes and namespaces. It returns one Result of all requests, which has
// the server's cost, and then one Part for each kind.
func Mixed(ctx context.Context, t *Target, c MixedConfig) ([]*Result, error) {
	l := loop{Load: c.Load}
	if err := l.check(); err != nil {
		return nil, err
	}
	if c.Seed.Pods < 1 || c.Seed.Namespaces < 1 || c.Seed.Nodes < 1 {
		return nil, fmt.Errorf("bench: --pods, --namespaces and --nodes must be at least 1, are %d, %d and %d", c.Seed.Pods, c.Seed.Namespaces, c.Seed.Nodes)
	}
	order, parts := mixedOrder(), make([]*recorder, len(mixedRequests))
	kind := func(i int) int { return order[i%len(order)] }
	request := send(func(i int) Request { return mixedRequests[kind(i)].call(&c, i, drawn(i)) })
	whole, err := t.recorded(MixedName, "request", l.total(), func(rec *recorder) error {
		if err := c.ready(ctx, t); err != nil {
			return err
		}
		for i, s := range mixedRequests {
			parts[i] = rec.part(s.name, "request")
			parts[i].result.Loop = l.kind()
		}
		if err := l.warm(ctx, t, rec, request); err != nil {
			return err
		}
		return rec.measured(func() error {
			return l.run(ctx, t, rec, func(ctx context.Context, own *conn, i int, due time.Time) (outcome, error) {
				o, err := request(ctx, own, i, due)
				if ctx.Err() == nil {
					parts[kind(i)].record(time.Since(due), o, err)
				}
				return o, err
			})
		})
	})
	if err != nil {
		return nil, err
	}
	results := []*Result{whole}
	for _, p := range parts {
		r := p.finish()
		r.Wall = whole.Wall
		results = append(results, r)
	}
	return results, nil
}

// ready checks that the last pod exists. Without the pods of Seed most requests would fail.
func (c *MixedConfig) ready(ctx context.Context, t *Target) error {
	err := t.fetch(ctx, Request{Path: c.Seed.PodPath(c.Seed.Pods - 1), Accept: Protobuf})
	if StatusOf(err) == http.StatusNotFound {
		return fmt.Errorf("bench: the server lacks some of the %d pods that seeding makes: %w", c.Seed.Pods, err)
	}
	return err
}
