package kv

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactionKey is the key that all kube-apiservers on an etcd update by compare-and-swap. Its value is the last
// compacted revision (apiserver pkg/storage/etcd3/compact.go). It is outside every prefix.
const compactionKey = "compact_rev_key"

// compactor takes part in this protocol. If the key's version has not changed for an interval, a process raises it and
// compacts at the revision that it recorded one interval ago. All other processes record the new version and the
// current revision. So revisions are kept for one to two intervals.
//
// The state is valid for one history of the store, because the key may have the same version in another.
type compactor struct {
	interval time.Duration              // 0: only observe
	observed atomic.Pointer[compaction] // nil: none

	// The goroutine of runCompactor owns the rest.
	history  uint64 // that version and revision belong to
	version  int64  // of compactionKey when last seen
	revision int64  // of the store at that time
}

// compaction is the highest revision of a history that is known to be compacted.
type compaction struct {
	history  uint64
	revision int64
}

// Compaction returns the highest revision at which the store is known to be compacted. See [Store].
func (e *Etcd) Compaction() int64 {
	if last := e.compaction.observed.Load(); last != nil && last.history == e.history.replacements.Load() {
		return last.revision
	}
	return 0
}

// observeCompaction records that a history is compacted up to a revision.
func (e *Etcd) observeCompaction(history uint64, revision int64) {
	for next := (&compaction{history, revision}); history == e.history.replacements.Load(); {
		last := e.compaction.observed.Load()
		if last != nil && last.history == history && last.revision >= revision {
			return
		}
		if e.compaction.observed.CompareAndSwap(last, next) {
			return
		}
	}
}

// runCompactor calls compact every interval.
func (e *Etcd) runCompactor(ctx context.Context) error {
	if e.compaction.interval <= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	for ticks := time.Tick(e.compaction.interval); ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks:
		}
		if err := e.compact(ctx); err != nil && ctx.Err() == nil {
			e.logger.Warn("compaction failed", "error", err)
		}
	}
}

func (e *Etcd) compact(ctx context.Context) error {
	c := &e.compaction
	ctx, cancel := context.WithTimeout(ctx, c.interval)
	defer cancel()
	if _, err := e.Revision(ctx); err != nil { // notices if the store was replaced
		return err
	}
	mark := e.history.mark()
	if mark.replacements != c.history {
		c.history, c.version, c.revision = mark.replacements, 0, 0
	}
	resp, err := e.connection.Client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactionKey), "=", c.version)).
		Then(clientv3.OpPut(compactionKey, strconv.FormatInt(c.revision, 10))).
		Else(clientv3.OpGet(compactionKey)).
		Commit()
	if err != nil {
		return e.fail("compact", compactionKey, err)
	}
	e.observeHistory(ctx, mark, resp.Header)
	if e.history.replacements.Load() != c.history {
		return ErrReplaced // the recorded revision belongs to the previous history
	}
	if !resp.Succeeded {
		e.lostCompaction(resp)
		return nil
	}
	revision := c.revision
	c.version, c.revision = c.version+1, resp.Header.Revision
	if revision == 0 {
		return nil
	}
	if _, err := e.connection.Client.KV.Compact(ctx, revision); err != nil {
		return e.fail("compact", compactionKey, err)
	}
	e.observeCompaction(c.history, revision)
	return nil
}

// lostCompaction records that another process has raised the key's version.
func (e *Etcd) lostCompaction(resp *clientv3.TxnResponse) {
	c := &e.compaction
	c.version, c.revision = 0, resp.Header.Revision
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return
	}
	c.version = kvs[0].Version
	e.learnCompaction(c.history, kvs[0].Value)
}

// followCompaction observes compactions by other processes as they happen.
func (e *Etcd) followCompaction(ctx context.Context) error {
	for {
		err := e.watchCompaction(ctx)
		e.logger.Debug("watch of the compaction key ended", "error", err)
		pause := time.Second
		if errors.Is(err, rpctypes.ErrPermissionDenied) {
			pause = 5 * time.Minute // the administrator may grant the right later
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (e *Etcd) watchCompaction(ctx context.Context) error {
	history := e.history.replacements.Load()
	item, found, revision, err := e.Get(ctx, compactionKey)
	if err != nil {
		return err
	}
	if found {
		e.learnCompaction(history, item.Value)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	responses := e.watch(ctx, compactionKey, revision, true)
	if e.history.replacements.Load() != history {
		return ErrReplaced // before the watch was opened, so the watch does not end
	}
	for resp := range responses {
		if resp.Err != nil {
			return resp.Err
		}
		for _, batch := range resp.Batches {
			for _, event := range batch.Events {
				if event.Key == compactionKey && event.Kind != Delete {
					e.learnCompaction(history, event.Value)
				}
			}
		}
	}
	return ctx.Err()
}

func (e *Etcd) learnCompaction(history uint64, value []byte) {
	if revision, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		e.observeCompaction(history, revision)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
