package kv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// history checks that etcd has one history, and that it only grows.
//
// A linearizable answer has at least the revision of every answer before its request, and of
// everything that a watch had delivered by then. A lower revision shows that the store was restored
// from a backup, and a different cluster id that it is another cluster. The header of a watch
// response proves only the cluster id.
//
// A restored store may be ahead of the old one by now. Then a lower raft term shows the replacement.
// But a member that has received a snapshot may also answer with an old term, so a lower term only
// raises a doubt (E12).
type history struct {
	replacements atomic.Uint64 // counts replacements
	revision     atomic.Int64  // highest that was shown
	replaced     atomic.Int64  // highest revision of the histories that were replaced
	term         atomic.Uint64
	clusterID    atomic.Uint64

	mu sync.Mutex // held while revision and term are raised, or all are replaced
}

// historyMark is the known history when a request began.
type historyMark struct {
	replacements uint64
	revision     int64
	term         uint64
}

// mark is called before the request is sent. It reads replacements first, and replace stores it
// last: a new count is never read with the revision of the history before.
func (h *history) mark() historyMark {
	return historyMark{replacements: h.replacements.Load(), revision: h.revision.Load(), term: h.term.Load()}
}

// verdict says which history an answer belongs to.
type verdict int

const (
	same     verdict = iota
	replaced         // it is the first answer of another history
	doubtful         // see decide
)

// observe records a linearizable answer.
func (h *history) observe(mark historyMark, header *etcdserverpb.ResponseHeader) verdict {
	h.clusterID.CompareAndSwap(0, header.ClusterId) // one of several first answers
	switch {
	case header.ClusterId != h.clusterID.Load() || header.Revision < mark.revision:
		return h.replace(mark.replacements, header)
	case header.RaftTerm < mark.term:
		return doubtful
	}
	h.raise(mark.replacements, header.Revision, header.RaftTerm)
	return same
}

// raise records the revision and term of an answer, or the revision that a watch has delivered, with
// term 0. It does nothing if the history was replaced since the request was marked or the watch was
// opened, because the answer may be late.
func (h *history) raise(replacements uint64, revision int64, term uint64) {
	if revision <= h.revision.Load() && term <= h.term.Load() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replacements.Load() == replacements {
		raise(&h.revision, revision)
		h.term.Store(max(h.term.Load(), term))
	}
}

// decide settles a doubt by the answer of currentHeader, whose term is known to be current:
// if that is still lower than the mark's, the store was replaced.
func (h *history) decide(mark historyMark, header *etcdserverpb.ResponseHeader) verdict {
	if header.RaftTerm < mark.term {
		return h.replace(mark.replacements, header)
	}
	return h.observe(mark, header)
}

// currentHeader returns an answer whose raft term is not older than the call. A member learns the
// current term when it applies an entry, a little after it has answered. So currentHeader makes
// proposals that change nothing until one member has answered twice.
func (e *Etcd) currentHeader(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	header, err := secondAnswer(func() (*etcdserverpb.ResponseHeader, error) {
		// No key was created before revision 0; a transaction that may delete is proposed.
		resp, err := e.connection.Client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.healthKey), "<", 0)).
			Then(clientv3.OpDelete(e.healthKey)).Commit()
		if err != nil {
			return nil, err
		}
		return resp.Header, nil
	})
	if err != nil {
		return nil, fmt.Errorf("kv: read the current term: %w", err)
	}
	return header, nil
}

// secondAnswer proposes until a member has answered twice, and returns its second answer.
func secondAnswer(propose func() (*etcdserverpb.ResponseHeader, error)) (*etcdserverpb.ResponseHeader, error) {
	const most = 16 // members take turns, and few clusters have more than seven
	answered := make(map[uint64]bool)
	for range most {
		header, err := propose()
		if err != nil {
			return nil, err
		}
		if answered[header.MemberId] {
			return header, nil
		}
		answered[header.MemberId] = true
	}
	return nil, errors.New("no member answers twice")
}

// otherCluster reports whether an answer of a watch comes from another cluster.
func (h *history) otherCluster(header *etcdserverpb.ResponseHeader) bool {
	id := h.clusterID.Load()
	return id != 0 && header.ClusterId != 0 && header.ClusterId != id
}

// replace begins a new history, unless another answer has done so since the
// request was marked.
func (h *history) replace(replacements uint64, header *etcdserverpb.ResponseHeader) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replacements.Load() != replacements {
		return same
	}
	raise(&h.replaced, h.revision.Load())
	h.clusterID.Store(header.ClusterId)
	h.revision.Store(header.Revision)
	h.term.Store(header.RaftTerm)
	h.replacements.Add(1)
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
