package kv

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// etcd hands a watch that is behind no more than 1000 revisions in 100 ms, but
	// as many watches as there are (etcd server/storage/mvcc/watchable_store.go). A
	// long past is therefore read in parts of partLength by partsAtOnce watches.
	partLength  = 1000
	partsAtOnce = 16
)

// catchUp dispatches most of what happened after a revision up to the present of the
// start, and returns up to where; a watch delivers the rest.
func (t *Tail) catchUp(ctx context.Context, after int64, replacements uint64) (int64, error) {
	t.mu.Lock()
	present := t.present
	t.mu.Unlock()
	for after+partLength < present {
		parts := make([][]Batch, min((present-after-1)/partLength, partsAtOnce))
		group, groupCtx := errgroup.WithContext(ctx)
		for i := range parts {
			group.Go(func() (err error) {
				first := after + int64(i)*partLength
				parts[i], err = t.readPart(groupCtx, t.prefix, first, first+partLength)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return after, err
		}
		if t.store.Replacements() != replacements {
			return after, ErrReplaced
		}
		for _, batches := range parts {
			after += partLength
			t.dispatch(WatchResponse{Batches: batches, Progress: after})
		}
	}
	return after, nil
}

// readPart returns everything that happened under a prefix after one revision up to
// another, which the store has reached.
func (t *Tail) readPart(ctx context.Context, prefix string, after, until int64) ([]Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.stats.watches.Add(1)
	responses := t.store.Watch(ctx, prefix, after)
	silent := time.NewTicker(progressMax) // nothing may have happened since until
	defer silent.Stop()
	var batches []Batch
	for reached := after; ; {
		select {
		case response, ok := <-responses:
			switch {
			case !ok && ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case !ok:
				return nil, errWatchEnded
			case response.Err != nil:
				return nil, response.Err
			}
			if response.Progress > reached {
				reached = response.Progress
				t.advances.Add(1)
			}
			for _, batch := range response.Batches {
				if batch.Revision <= until {
					batches = append(batches, batch)
				}
			}
			if reached >= until {
				return batches, nil
			}
		case <-silent.C:
			t.requestProgress(ctx)
		}
	}
}
