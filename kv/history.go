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

// history detects that etcd's history was replaced.
//
// A linearizable response has at least the revision of every response before its request, and of every event that a
// watch had delivered. A lower revision shows that the store was restored from a backup, and a different cluster id
// that it is another cluster. Only the cluster id of a watch response is checked.
//
// If a restored store is already ahead of the old one, a lower raft term shows the replacement. But a member that has
// received a snapshot may also respond with an old term, so a lower term must be confirmed (E12).
type history struct {
	replacements atomic.Uint64 // counts replacements
	revision     atomic.Int64  // highest of any response or event
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

// mark is called before the request is sent. It reads replacements first, and replace stores it last, so a new count is
// never combined with a revision of the previous history.
func (h *history) mark() historyMark {
	return historyMark{replacements: h.replacements.Load(), revision: h.revision.Load(), term: h.term.Load()}
}

// verdict says which history a response belongs to.
type verdict int

const (
	same     verdict = iota
	replaced         // the first response of another history
	doubtful         // see decide
)

// observe records a linearizable response, and returns its verdict.
func (h *history) observe(mark historyMark, header *etcdserverpb.ResponseHeader) verdict {
	h.clusterID.CompareAndSwap(0, header.ClusterId) // one of several first responses
	switch {
	case header.ClusterId != h.clusterID.Load() || header.Revision < mark.revision:
		return h.replace(mark.replacements, header)
	case header.RaftTerm < mark.term:
		return doubtful
	}
	h.raise(mark.replacements, header.Revision, header.RaftTerm)
	return same
}

// raise records the revision and term of a response, or the revision that a watch has delivered, with term 0. It does
// nothing if the history was replaced since the request was marked or the watch was opened.
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

// decide resolves a doubtful verdict with the result of currentHeader. If its term is still lower than the mark's, the
// store was replaced.
func (h *history) decide(mark historyMark, header *etcdserverpb.ResponseHeader) verdict {
	if header.RaftTerm < mark.term {
		return h.replace(mark.replacements, header)
	}
	return h.observe(mark, header)
}

// currentHeader returns a header whose raft term is not older than the call. A member learns the current term when it
// applies an entry, a little after it has responded. So currentHeader makes proposals that change nothing until one
// member has responded twice.
func (e *Etcd) currentHeader(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	header, err := secondResponse(func() (*etcdserverpb.ResponseHeader, error) {
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

// secondResponse proposes until a member has responded twice, and returns its second header.
func secondResponse(propose func() (*etcdserverpb.ResponseHeader, error)) (*etcdserverpb.ResponseHeader, error) {
	const most = 16 // the client alternates between members, and few clusters have more than seven
	responded := make(map[uint64]bool)
	for range most {
		header, err := propose()
		if err != nil {
			return nil, err
		}
		if responded[header.MemberId] {
			return header, nil
		}
		responded[header.MemberId] = true
	}
	return nil, errors.New("no member responds twice")
}

// otherCluster reports whether a response of a watch comes from another cluster.
func (h *history) otherCluster(header *etcdserverpb.ResponseHeader) bool {
	id := h.clusterID.Load()
	return id != 0 && header.ClusterId != 0 && header.ClusterId != id
}

// replace begins a new history, unless another response has done so since the request was marked.
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
