package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/larder-io/larder/bench"
	"github.com/larder-io/larder/bench/process"
)

// measured calls work and adds a result of its cost. A restart of the server in work must be reported to the Meter.
func (t *trial) measured(ctx context.Context, part string, work func(*bench.Meter) error) (*bench.Result, error) {
	before, err := t.etcdMetrics(ctx)
	if err != nil {
		return nil, err
	}
	m, err := t.server.Target.Meter()
	if err != nil {
		return nil, err
	}
	if err := work(m); err != nil {
		return nil, err
	}
	m.End()
	after, err := t.etcdMetrics(ctx)
	if err != nil {
		return nil, err
	}
	result := &bench.Result{Name: t.name() + ": " + part, Unit: "request"}
	m.Charge(result)
	if rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", t.server.Process.PID)); err == nil {
		result.Add("resident (PSS)", float64(process.Figure(rollup, "Pss:")<<10), "B")
	}
	for _, c := range []struct{ name, metric, unit string }{
		{"ranges of etcd", "etcd_mvcc_range_total", ""}, {"puts of etcd", "etcd_mvcc_put_total", ""},
		{"sent by etcd", "etcd_network_client_grpc_sent_bytes_total", "B"},
	} {
		result.Add(c.name, metric(after, c.metric)-metric(before, c.metric), c.unit)
	}
	t.results = append(t.results, result)
	t.config.Sayf("%s: %s, %s of CPU", result.Name, bench.Duration(result.Wall), bench.Duration(result.ServerCPU))
	return result, nil
}

func (t *trial) etcdMetrics(ctx context.Context) ([]byte, error) {
	return t.started.Etcd().Target.Capture(ctx, bench.Request{Path: "/metrics", Accept: "*/*"})
}

func perMinute(r *bench.Result) {
	minutes := r.Wall.Minutes()
	r.Add("CPU of the server a minute", r.ServerCPU.Seconds()/minutes, "s")
	r.Add("CPU of the client a minute", r.ClientCPU.Seconds()/minutes, "s")
	for _, c := range r.Beside {
		r.Add("CPU of "+c.Name+" a minute", c.CPU.Seconds()/minutes, "s")
	}
}

// metric returns the value of a metric without labels, 0 if the metric is missing.
func metric(text []byte, name string) float64 {
	_, rest, _ := bytes.Cut(text, []byte("\n"+name+" "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	v, _ := strconv.ParseFloat(string(line), 64)
	return v
}

type requestKind string

const (
	leaseRenewal   requestKind = "Lease renewal"
	nodeStatus     requestKind = "node status"
	podCreation    requestKind = "pod creation"
	binding        requestKind = "binding"
	podRead        requestKind = "GET of a pod"
	podStatus      requestKind = "pod status"
	podDeletion    requestKind = "pod deletion"
	eventWrite     requestKind = "event"
	workloadStatus requestKind = "status of a ReplicaSet or Deployment"
	endpointsWrite requestKind = "EndpointSlice, Endpoints"
	tokenRequest   requestKind = "token of a service account"
	watchAgain     requestKind = "watch goes on"
	watchList      requestKind = "WatchList"
	delivery       requestKind = "binding until its kubelet's watch has it"
)

// phase counts the requests that are due in one part of a simulation.
type phase struct {
	mu     sync.Mutex
	counts map[requestKind]*bench.Result
}

func newPhase() *phase { return &phase{counts: make(map[requestKind]*bench.Result)} }

func (p *phase) record(kind requestKind, took time.Duration, status int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.counts[kind]
	if r == nil {
		r = bench.NewResult(string(kind), "request")
		r.Part, r.Loop, p.counts[kind] = true, bench.OpenLoop, r
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", bench.ErrTimeout, err)
	}
	r.Record(took, status, err)
}

// results returns the results by kind. Their names begin with that of whole. The phase must be over.
func (p *phase) results(whole *bench.Result) (all []*bench.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(p.counts)) {
		r := p.counts[kind]
		r.Name, r.Wall = whole.Name+": "+r.Name, whole.Wall
		all = append(all, r)
	}
	return all
}
