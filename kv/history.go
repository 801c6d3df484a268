package kv

import (
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// history watches over etcd's promise that there is one history and that it only
// grows. Linearizable answers are ordered by real time: one whose request began
// after another was answered has a revision and a raft term at least as high.
// An answer that breaks this comes from a store that was restored from a backup;
// one with another cluster id comes from another cluster. Answers of watches and
// of lagging members prove nothing but the cluster id.
type history struct {
	generation atomic.Uint64 // counts replacements
	revision   atomic.Int64  // highest of a linearizable answer
	term       atomic.Uint64
	clusterID  atomic.Uint64

	mu sync.Mutex // serializes replacements
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

// observe takes in a linearizable answer and reports whether it begins another
// history.
func (h *history) observe(mark historyMark, header *etcdserverpb.ResponseHeader) bool {
	id := h.clusterID.Load()
	if id == 0 && h.clusterID.CompareAndSwap(0, header.ClusterId) {
		id = header.ClusterId
	}
	if header.ClusterId != id || header.Revision < mark.revision || header.RaftTerm < mark.term {
		return h.replace(mark.generation, header)
	}
	raise(&h.revision, header.Revision)
	for {
		term := h.term.Load()
		if header.RaftTerm <= term || h.term.CompareAndSwap(term, header.RaftTerm) {
			return false
		}
	}
}

// foreign reports whether an answer of a watch comes from another cluster.
func (h *history) foreign(header *etcdserverpb.ResponseHeader) bool {
	id := h.clusterID.Load()
	return id != 0 && header.ClusterId != 0 && header.ClusterId != id
}

// replace begins a new history, unless another answer has done so since the
// request was marked.
func (h *history) replace(generation uint64, header *etcdserverpb.ResponseHeader) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.generation.Load() != generation {
		return false
	}
	h.clusterID.Store(header.ClusterId)
	h.revision.Store(header.Revision)
	h.term.Store(header.RaftTerm)
	h.generation.Add(1)
	return true
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
