package kv

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// revisionTimeout bounds one shared read, so that a member that stopped
// answering delays the next read, which may go to another member, no longer.
const revisionTimeout = 3 * time.Second

// revisionReader lets all callers that wait at the same time share one
// linearizable read. A caller may not join a read that has begun: a write
// acknowledged since might be missing from it.
type revisionReader struct {
	kick  chan struct{} // has an element when next was set
	reads atomic.Uint64

	mu   sync.Mutex
	next *revisionRead // the read that has not begun; nil while nobody waits for one
}

type revisionRead struct {
	done     chan struct{} // closed when the result is set
	revision int64
	err      error
}

// Revision returns the store's current revision by a linearizable read that is
// shared by all callers that were waiting when it began.
func (e *Etcd) Revision(ctx context.Context) (int64, error) {
	if _, err := e.client(ctx); err != nil {
		return 0, e.fail("revision", "", err)
	}
	read := e.revisions.join()
	select {
	case <-read.done:
		return read.revision, read.err
	case <-ctx.Done():
		return 0, e.fail("revision", "", ctx.Err())
	case <-e.done:
		return 0, e.fail("revision", "", ErrClosed)
	}
}

// RevisionReads returns how many reads Revision has asked of etcd.
func (e *Etcd) RevisionReads() uint64 { return e.revisions.reads.Load() }

func (r *revisionReader) join() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &revisionRead{done: make(chan struct{})}
		select {
		case r.kick <- struct{}{}:
		default:
		}
	}
	return r.next
}

// take returns the read that all who wait have joined; who comes later joins
// another one.
func (r *revisionReader) take() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := r.next
	r.next = nil
	return read
}

// runRevisions does the reads that callers of Revision wait for.
func (e *Etcd) runRevisions(ctx context.Context) error {
	for {
		select {
		case <-e.revisions.kick:
		case <-ctx.Done():
			return ctx.Err()
		}
		if read := e.revisions.take(); read != nil {
			read.revision, read.err = e.readRevision(ctx)
			close(read.done)
		}
	}
}

func (e *Etcd) readRevision(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	e.revisions.reads.Add(1)
	mark, start := e.history.mark(), time.Now()
	resp, err := e.session.client.KV.Get(ctx, compactionKey, clientv3.WithCountOnly())
	e.observe("get", "", start, err)
	if err != nil {
		return 0, e.fail("revision", "", err)
	}
	e.observeHistory(mark, resp.Header)
	return resp.Header.Revision, nil
}
