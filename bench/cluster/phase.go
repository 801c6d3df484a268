package cluster

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/larder-io/larder/bench"
)

// kinds of requests.
type requestKind int

const (
	leaseRenewal requestKind = iota
	nodeStatus
	podCreation
	binding
	podRead
	podStatus
	podDeletion
	eventWrite
	workloadStatus
	endpointsWrite
	tokenRequest
	watchAgain
	watchList
	delivery
	requestKinds
)

// String names the kind.
func (k requestKind) String() string {
	return [requestKinds]string{
		"Lease renewal", "node status", "pod creation", "binding", "GET of a pod", "pod status", "pod deletion", "event",
		"status of a ReplicaSet or Deployment", "EndpointSlice, Endpoints", "token of a service account", "watch goes on", "WatchList",
		"binding until its kubelet's watch has it",
	}[k]
}

// phase is a part of a simulation. It counts the requests that were due in it.
type phase struct {
	mu     sync.Mutex
	counts [requestKinds]*bench.Result
}

func newPhase() *phase {
	p := &phase{}
	for k := range p.counts {
		const longest = int64(10 * time.Minute / time.Microsecond)
		p.counts[k] = &bench.Result{Name: requestKind(k).String(), Unit: "request", Part: true, Loop: bench.OpenLoop, Latency: hdrhistogram.New(1, longest, 3), Statuses: make(map[int]int)}
	}
	return p
}

// record counts one request.
func (p *phase) record(kind requestKind, took time.Duration, status int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.counts[kind]
	r.Ops++
	if status != 0 {
		r.Statuses[status]++
	}
	if err == nil {
		_ = r.Latency.RecordValue(max(1, took.Microseconds())) // longer than ten minutes none takes
		return
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		r.Timeouts++
	case status == http.StatusTooManyRequests:
		r.Refused++
	default:
		r.Errors++
	}
	if r.FirstError == "" {
		r.FirstError = err.Error()
	}
}

// results returns the results of all kinds that were requested, named below a result of the whole.
// The phase must be over.
func (p *phase) results(whole *bench.Result) (all []*bench.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.counts {
		if r.Ops > 0 {
			r.Name, r.Wall = whole.Name+": "+r.Name, whole.Wall
			all = append(all, r)
		}
	}
	return all
}
