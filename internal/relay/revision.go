package relay

import (
	"context"
	"time"

	"github.com/larder-io/larder/kv"
)

// revisionTimeout bounds one shared read.
const revisionTimeout = 10 * time.Second

// revisionScope is an object that need not exist. Reading one object by its namespace and name is the upstream's
// cheapest list: a name alone is compared with every object.
var revisionScope = scope{namespace: "default", name: "larder-relay"}

// revisionRead is one read for all callers that wait when it begins. A caller must not join a read that has begun,
// because that read might miss a write acknowledged since.
type revisionRead struct {
	done     chan struct{} // closed when the result is set
	revision int64
	err      error
}

// Revision returns the upstream's revision, from a consistent list of at most one object.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	read := s.nextRead()
	if read == nil {
		return 0, s.fail("revision", kv.ErrClosed)
	}
	select {
	case <-read.done:
		return read.revision, read.err
	case <-ctx.Done():
		return 0, s.fail("revision", context.Cause(ctx))
	}
}

// nextRead returns the read that has not begun, nil if the store is closed.
func (s *Store) nextRead() *revisionRead {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil && s.ctx.Err() == nil {
		read := &revisionRead{done: make(chan struct{})}
		s.next = read
		s.goroutines.Go(func() { s.readRevision(read) })
	}
	return s.next
}

// readRevision does a read when the one before has ended.
func (s *Store) readRevision(read *revisionRead) {
	defer close(read.done)
	s.reading <- struct{}{} // a read ends with the store
	defer func() { <-s.reading }()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(s.ctx, revisionTimeout)
	defer cancel()
	at := revisionScope
	if !s.config.Namespaced {
		at.namespace = ""
	}
	page, err := s.list(ctx, listing{scope: at, limit: 1})
	if err != nil {
		read.err = s.fail("revision", err)
		return
	}
	read.revision = page.revision
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if w.position.Load() == page.revision {
			s.resetSilence() // w has delivered all that there is
		}
	}
}
