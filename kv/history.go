package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// history watches over etcd's promise that there is one history and that it only
// grows. Linearizable answers are ordered by real time: one whose request began
// after another was answered has a revision at least as high. An answer that breaks
// this comes from a store that was restored from a backup; one with another cluster
// id comes from another cluster. What a watch delivers was committed, so that a
// linearizable answer that is asked for later has at least its revision; it proves
// nothing else but the cluster id.
//
// A restored store may have got ahead of the old one meanwhile; then its raft term
// tells, if it is lower. But a term is that of the last entry which the answering
// member applied, and a member that was sent a snapshot has it from before: a lower
// term only raises a doubt (E12).
type history struct {
	generation atomic.Uint64 // counts replacements
	revision   atomic.Int64  // highest that was shown
	lost       atomic.Int64  // highest of a history that was replaced
	term       atomic.Uint64
	clusterID  atomic.Uint64

	mu sync.Mutex // held by who changes revision and term, or replaces all
}

// historyMark is what was known when a request began.
type historyMark struct {
	generation uint64
	revision   int64
	term       uint64
}

// mark is to be called before the request is sent. The generation is read first:
// a replacement stores it last, so a new generation never meets an old revision.
func (h *history) mark() historyMark {
	return historyMark{generation: h.generation.Load(), revision: h.revision.Load(), term: h.term.Load()}
}

// verdict is what an answer says of the history.
type verdict int

const (
	same     verdict = iota
	replaced         // it begins another history, which nobody has told before
	doubtful         // to be settled
)

// observe takes in a linearizable answer.
func (h *history) observe(mark historyMark, header *etcdserverpb.ResponseHeader) verdict {
	h.clusterID.CompareAndSwap(0, header.ClusterId) // of several first answers one
	switch {
	case header.ClusterId != h.clusterID.Load() || header.Revision < mark.revision:
		return h.replace(mark.generation, header)
	case header.RaftTerm < mark.term:
		return doubtful
	}
	h.raise(mark.generation, header)
	return same
}

// raise takes in what an answer shows of its history, unless that was replaced since
// the request was marked: the answer may come late.
func (h *history) raise(generation uint64, header *etcdserverpb.ResponseHeader) {
	if header.Revision <= h.revision.Load() && header.RaftTerm <= h.term.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation.Load() == generation {
		raise(&h.revision, header.Revision)
		h.term.Store(max(h.term.Load(), header.RaftTerm))
	}
}

// show takes in the revision of what a watch delivered that was opened in a generation.
func (h *history) show(generation uint64, revision int64) {
	if revision <= h.revision.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation.Load() == generation {
		raise(&h.revision, revision)
	}
}

// settle takes in the answer that was asked for because of a doubt, of a member whose
// term is not from before the mark.
func (h *history) settle(mark historyMark, header *etcdserverpb.ResponseHeader) verdict {
	if header.RaftTerm < mark.term {
		return h.replace(mark.generation, header)
	}
	return h.observe(mark, header)
}

// currentHeader returns an answer whose raft term is not from before the call. A member
// learns the present term when the cluster agrees to a proposal, and has applied what a
// first proposal changed once it has applied a second. So it proposes twice to revoke a
// lease that does not exist, which changes nothing.
func (e *Etcd) currentHeader(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	client := e.session.Client
	for range 2 {
		_, err := client.Lease.Revoke(ctx, clientv3.NoLease)
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil, fmt.Errorf("kv: ask for the present term: %w", err)
		}
	}
	resp, err := client.KV.Get(ctx, compactionKey, clientv3.WithCountOnly())
	if err != nil {
		return nil, fmt.Errorf("kv: ask for the present term: %w", err)
	}
	return resp.Header, nil
}

// foreign reports whether an answer of a watch comes from another cluster.
func (h *history) foreign(header *etcdserverpb.ResponseHeader) bool {
	id := h.clusterID.Load()
	return id != 0 && header.ClusterId != 0 && header.ClusterId != id
}

// replace begins a new history, unless another answer has done so since the
// request was marked.
func (h *history) replace(generation uint64, header *etcdserverpb.ResponseHeader) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation.Load() != generation {
		return same
	}
	raise(&h.lost, h.revision.Load())
	h.clusterID.Store(header.ClusterId)
	h.revision.Store(header.Revision)
	h.term.Store(header.RaftTerm)
	h.generation.Add(1)
	return replaced
}

// raise sets v to at least n.
func raise(v *atomic.Int64, n int64) {
	for {
		old := v.Load()
		if n <= old || v.CompareAndSwap(old, n) {
			return
		}
	}
}
