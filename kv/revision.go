package kv

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"
)

// A shared read ends after revisionTimeout. The next read may go to another member, in case this one hangs. If the
// cluster is slow, later reads may take longer, up to slowTimeout.
const (
	revisionTimeout = 3 * time.Second
	slowTimeout     = 30 * time.Second
)

// errRevisionTimeout is the error of a read that has timed out before its caller's context ended.
var errRevisionTimeout = errors.New("etcd has not responded in time")

// revisionReader shares one linearizable read among all callers that wait at the same time. Callers must not join a
// read that has begun, because it may not see a write that was acknowledged since. A caller that arrives while no read
// is running reads on its own goroutine, which saves two switches between goroutines.
type revisionReader struct {
	// delivered is the highest revision that a watch of a server in this process delivered.
	delivered atomic.Int64
	kick      chan struct{} // signals that next should be read
	reads     atomic.Uint64
	slowness  atomic.Int64 // nanoseconds that the last read took, or its timeout

	mu sync.Mutex
	// busy says that a read is running or will begin.
	busy bool
	// next is the read that has not begun; nil while no caller waits for one.
	// Invariant: it is nil unless busy.
	next *revisionRead
}

type revisionRead struct {
	done     chan struct{} // closed when the result is set
	revision int64
	err      error
}

// Revision returns the store's current revision. That of a server in this process is
// known. Otherwise one linearizable read serves all callers that were waiting when it began. Revision
// retries timeouts until ctx ends.
func (e *Etcd) Revision(ctx context.Context) (int64, error) {
	for {
		revision, err := e.sharedRevision(ctx)
		if !errors.Is(err, errRevisionTimeout) {
			return revision, err
		}
	}
}

// sharedRevision is Revision without retries: it may fail with errRevisionTimeout.
func (e *Etcd) sharedRevision(ctx context.Context) (int64, error) {
	if err := e.awaitOpen(ctx); err != nil {
		return 0, e.fail("revision", "", err)
	}
	if err := ctx.Err(); err != nil {
		return 0, e.fail("revision", "", err)
	}
	if e.connection.InProcess {
		return e.ownRevision(), nil
	}
	read := e.revisions.join()
	if read == nil {
		defer e.revisions.end()
		return e.readRevision(ctx)
	}
	select {
	case <-read.done:
		return read.revision, read.err
	case <-ctx.Done():
		return 0, e.fail("revision", "", ctx.Err())
	case <-e.ending:
		return 0, e.fail("revision", "", ErrClosed)
	}
}

// ownRevision returns the revision of a server in this process. No acknowledged write is missing, because
// ResponseRecorder records every response before its client gets it. A linearizable read would wait for the disk.
// Changes without a request, such as the expiry of a lease, are learnt from watches.
func (e *Etcd) ownRevision() int64 {
	return max(e.history.revision.Load(), e.revisions.delivered.Load())
}

// RevisionReads returns how many reads Revision has sent to etcd.
func (e *Etcd) RevisionReads() uint64 { return e.revisions.reads.Load() }

// join returns the read to wait for, or nil if the caller must read and call end afterwards.
func (r *revisionReader) join() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.busy {
		r.busy = true
		return nil
	}
	if r.next == nil {
		r.next = &revisionRead{done: make(chan struct{})}
	}
	return r.next
}

// end ends the read of a caller for which join returned nil.
func (r *revisionReader) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.busy = false
		return
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// take returns the read that all waiting callers have joined, nil if there is none. Later callers join the next one.
func (r *revisionReader) take() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	read := r.next
	r.next, r.busy = nil, read != nil
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
		for {
			runtime.Gosched() // let concurrent callers join
			read := e.revisions.take()
			if read == nil {
				break
			}
			read.revision, read.err = e.readRevision(ctx)
			if read.err != nil && ctx.Err() != nil {
				read.err = e.fail("revision", "", ErrClosed) // Run's context ended, not the callers'
			}
			close(read.done)
		}
	}
}

// timeout returns the timeout of the next read: twice the duration of the last, within limits.
func (r *revisionReader) timeout() time.Duration {
	return min(max(revisionTimeout, 2*time.Duration(r.slowness.Load())), slowTimeout)
}

// readRevision reads the revision. Its connection allows one call at a time, which revisionReader ensures.
func (e *Etcd) readRevision(ctx context.Context) (int64, error) {
	timeout := e.revisions.timeout()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errRevisionTimeout)
	defer cancel()
	e.revisions.reads.Add(1)
	mark, start := e.history.mark(), time.Now()
	var header *etcdserverpb.ResponseHeader
	if !trace.SpanContextFromContext(ctx).IsSampled() { // etcd's client records a span of its call
		header = e.connection.revisions.header(ctx, e.anyRead)
	}
	if header == nil {
		resp, err := e.connection.Client.KV.Get(ctx, e.healthKey, clientv3.WithCountOnly())
		if err != nil {
			e.observe("get", "", start, err)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err == errRevisionTimeout {
				e.revisions.slowness.Store(int64(timeout))
			}
			return 0, e.fail("revision", "", err)
		}
		header = resp.Header
	}
	e.revisions.slowness.Store(int64(time.Since(start)))
	e.observe("get", "", start, nil)
	e.observeHistory(ctx, mark, header)
	return header.Revision, nil
}
