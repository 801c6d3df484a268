package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Tenants is a group of users who are not administrators. [Target.AllowTenants] lets them read.
const Tenants = "bench-tenants"

// AllowTenants lets [Tenants] read pods, and creates a priority level with few seats for their requests. It waits
// until the server lets tenant, one of these users, read. It does not change existing objects.
func (t *Target) AllowTenants(ctx context.Context, tenant *Target) error {
	const flowcontrol, rbac = "/apis/flowcontrol.apiserver.k8s.io/v1/", "/apis/rbac.authorization.k8s.io/v1/"
	for _, object := range [][2]string{
		{rbac + "clusterroles", `{"metadata":{"name":"bench-tenants"},"rules":[{"verbs":["get","list","watch"],"apiGroups":[""],"resources":["pods"]}]}`},
		{rbac + "clusterrolebindings", `{"metadata":{"name":"bench-tenants"},
			"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"bench-tenants"}],
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"bench-tenants"}}`},
		// The level has five of the 600 seats that servers have by default, and lends and borrows none.
		{flowcontrol + "prioritylevelconfigurations", `{"metadata":{"name":"bench-tenants"},"spec":{"type":"Limited","limited":{
			"nominalConcurrencyShares":2,"lendablePercent":0,"borrowingLimitPercent":0,
			"limitResponse":{"type":"Queue","queuing":{"queues":128,"handSize":6,"queueLengthLimit":50}}}}}`},
		// The schema gives each user separate queues.
		{flowcontrol + "flowschemas", `{"metadata":{"name":"bench-tenants"},"spec":{"priorityLevelConfiguration":{"name":"bench-tenants"},
			"matchingPrecedence":900,"distinguisherMethod":{"type":"ByUser"},"rules":[{
				"subjects":[{"kind":"Group","group":{"name":"bench-tenants"}}],
				"resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"clusterScope":true,"namespaces":["*"]}]}]}}`},
	} {
		if err := t.ensure(ctx, object[0], json.RawMessage(object[1])); err != nil {
			return err
		}
	}
	const interval, longest = 20 * time.Millisecond, time.Minute // servers see a new binding a little later
	var err error
	_ = wait.PollUntilContextTimeout(ctx, interval, longest, true, func(ctx context.Context) (bool, error) {
		err = tenant.fetch(ctx, Request{Path: "/api/v1/namespaces/default/pods?limit=1", Accept: JSON})
		return StatusOf(err) != http.StatusForbidden, nil
	})
	return err
}

// FloodConfig is a workload of one user's reads, first alone and then while another user sends as many requests
// as the server serves.
type FloodConfig struct {
	// Quiet is the measured workload. Flood's Target sends its requests.
	Quiet ReadConfig
	// By requests Path repeatedly, from Clients clients at once. A response of 429 (Too Many Requests) is
	// not an error.
	By           *Target
	Path, Accept string
	Clients      int
}

// Values of a Result of Flood.
const (
	AloneP99 = "p99 alone"
	Slowdown = "p99 beside the flood, of that alone"
)

// Flood runs the workload. It returns the Result of Quiet during the flood.
func Flood(ctx context.Context, t *Target, c FloodConfig) (*Result, error) {
	const repeats = 2 // of both parts
	var alone, beside []*Result
	flood := &recorder{result: NewResult("flood", "request")}
	for range repeats {
		r, err := Read(ctx, t, c.Quiet)
		if err != nil {
			return nil, err
		}
		alone = append(alone, r)
		stop := c.start(ctx, flood)
		r, err = Read(ctx, t, c.Quiet)
		stop()
		if err != nil {
			return nil, err
		}
		beside = append(beside, r)
	}
	a, b := Merge(alone...), Merge(beside...)
	b.Add(AloneP99, a.Quantile(99).Seconds(), "s")
	if p99 := a.Quantile(99); p99 > 0 {
		b.Add(Slowdown, float64(b.Quantile(99))/float64(p99), "")
	}
	b.Errors += a.Failures()
	b.FirstError = cmp.Or(b.FirstError, a.FirstError)
	if failed := flood.result.Failures() - flood.result.Refused; failed > 0 {
		b.Errors += failed
		b.FirstError = cmp.Or(b.FirstError, flood.result.FirstError)
	}
	return b, nil
}

// start starts the flood and records how its requests end. It returns after the first response. The function
// that it returns ends the flood.
func (c *FloodConfig) start(ctx context.Context, rec *recorder) (stop func()) {
	const pause = 50 * time.Millisecond // after a 429; shorter than its Retry-After
	ctx, cancel := context.WithCancel(ctx)
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	l := loop{Load: Load{Operations: math.MaxInt, Clients: c.Clients}}
	var running sync.WaitGroup
	running.Go(func() { // the loop has no errors but that of ctx
		_ = l.run(ctx, c.By, rec, func(ctx context.Context, own *conn, _ int, _ time.Time) (outcome, error) {
			o, err := own.do(Request{Path: c.Path, Accept: c.Accept})
			begin()
			if err != nil {
				_ = Sleep(ctx, pause)
			}
			return o, err
		})
	})
	select {
	case <-begun:
	case <-ctx.Done():
	}
	return func() { cancel(); running.Wait() }
}
