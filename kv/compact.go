package kv

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// compactionKey is the key kube-apiservers compete for; its version is the
// protocol's clock, its value the revision last compacted
// (apiserver pkg/storage/etcd3/compact.go). It stands outside every prefix.
const compactionKey = "compact_rev_key"

// compactor holds the state of the protocol: who finds the key at the version it
// last saw may raise it, and compacts at the revision it noted one interval ago.
// Everyone else notes the new version and the present revision and waits another
// interval, so that history is kept for one interval at least, two at most.
type compactor struct {
	interval time.Duration // 0: only observe
	observed atomic.Int64  // highest compacted revision known

	version  int64 // of compactionKey when last seen; owned by runCompactor
	revision int64 // of the store at that time
}

// Compaction returns the last compacted revision that was observed.
func (e *Etcd) Compaction() int64 { return e.compaction.observed.Load() }

// runCompactor takes part in the protocol every interval.
func (e *Etcd) runCompactor(ctx context.Context) error {
	if e.compaction.interval <= 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	ticker := time.NewTicker(e.compaction.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if err := e.compact(ctx, e.session.client); err != nil && ctx.Err() == nil {
			e.logger.Warn("compaction failed", "error", err)
		}
	}
}

// compact makes one move of the protocol.
func (e *Etcd) compact(ctx context.Context, client *clientv3.Client) error {
	c := &e.compaction
	ctx, cancel := context.WithTimeout(ctx, c.interval)
	defer cancel()
	resp, err := client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactionKey), "=", c.version)).
		Then(clientv3.OpPut(compactionKey, strconv.FormatInt(c.revision, 10))).
		Else(clientv3.OpGet(compactionKey)).
		Commit()
	if err != nil {
		return e.fail("compact", compactionKey, err)
	}
	if !resp.Succeeded {
		c.lost(resp)
		return nil
	}
	revision := c.revision
	c.version, c.revision = c.version+1, resp.Header.Revision
	if revision == 0 {
		return nil
	}
	if _, err := client.KV.Compact(ctx, revision); err != nil {
		return e.fail("compact", compactionKey, err)
	}
	raise(&c.observed, revision)
	return nil
}

// lost notes that another process made the move.
func (c *compactor) lost(resp *clientv3.TxnResponse) {
	c.version, c.revision = 0, resp.Header.Revision
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return
	}
	c.version = kvs[0].Version
	if revision, err := strconv.ParseInt(string(kvs[0].Value), 10, 64); err == nil {
		raise(&c.observed, revision)
	}
}

// followCompaction learns of compactions by others as they happen.
func (e *Etcd) followCompaction(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := e.watchCompaction(ctx); err != nil && ctx.Err() == nil {
			e.logger.Debug("watch of the compaction key ended", "error", err)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (e *Etcd) watchCompaction(ctx context.Context) error {
	item, found, revision, err := e.Get(ctx, compactionKey)
	if err != nil {
		return err
	}
	if found {
		e.learnCompaction(item.Value)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for resp := range e.watch(ctx, compactionKey, revision, true) {
		if resp.Err != nil {
			return resp.Err
		}
		for _, batch := range resp.Batches {
			for _, event := range batch.Events {
				if event.Key == compactionKey && event.Kind != Delete {
					e.learnCompaction(event.Value)
				}
			}
		}
	}
	return ctx.Err()
}

func (e *Etcd) learnCompaction(value []byte) {
	if revision, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		raise(&e.compaction.observed, revision)
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
