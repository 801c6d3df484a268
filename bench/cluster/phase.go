package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/larder-io/larder/bench"
)

// requestKind is a kind of request.
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

// String returns the name of the kind.
func (k requestKind) String() string {
	return [requestKinds]string{
		"Lease renewal", "node status", "pod creation", "binding", "GET of a pod", "pod status", "pod deletion", "event",
		"status of a ReplicaSet or Deployment", "EndpointSlice, Endpoints", "token of a service account", "watch goes on", "WatchList",
		"binding until its kubelet's watch has it",
	}[k]
}

// phase counts the requests that are due in one part of a simulation.
type phase struct {
	mu     sync.Mutex
	counts [requestKinds]*bench.Result
}

func newPhase() *phase {
	p := &phase{}
	for k := range p.counts {
		r := bench.NewResult(requestKind(k).String(), "request")
		r.Part, r.Loop, p.counts[k] = true, bench.OpenLoop, r
	}
	return p
}

// record counts one request.
func (p *phase) record(kind requestKind, took time.Duration, status int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", bench.ErrTimeout, err)
	}
	p.counts[kind].Record(took, status, err)
}

// results returns the results of all kinds with requests. Their names begin with that of whole. The phase must be
// over.
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
