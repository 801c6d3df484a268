package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// Observer has callbacks for requests to etcd. They must not block, and may be nil.
type Observer struct {
	// Request is called after each request. op is kube-apiserver's name of the operation: get, list, listOnlyKeys,
	// listWithCount, create, update or delete. key is the key or prefix, "" for a read of the revision alone.
	Request func(op, key string, took time.Duration, err error)
	// LeaseObjects is called when a lease is no longer reused, with the number of
	// keys attached to it.
	LeaseObjects func(count int64)
}

// Etcd is a Store over etcd, in a cluster or in this process.
type Etcd struct {
	name       string
	healthKey  string                     // below the prefix, because the etcd user may have no other rights
	anyRead    *etcdserverpb.RangeRequest // returns only a header; read only
	logger     *slog.Logger
	observer   Observer
	compaction compactor
	open       func(ctx context.Context, recorder ResponseRecorder) (*Connection, error)

	ready      chan struct{} // closed when connection is set
	ending     chan struct{} // closed when Run begins to end
	connection *Connection   // written before ready is closed, never after
	failure    error         // why ready will never close; written before ending is closed

	revisions revisionReader
	leases    *leaseManager
	history   history
	watches   watches
	pages     sync.Pool // of *[]byte: buffers of released pages
}

// NewEtcd returns a store that Run opens. Programs call [NewExternal], or New of package
// embedded.
func NewEtcd(config EtcdConfig) *Etcd {
	leases := newLeaseManager(config.Observer.LeaseObjects)
	if config.LeaseReuse != 0 {
		leases.longest = int64(max(config.LeaseReuse, 0) / time.Second)
	}
	healthKey := strings.TrimSuffix(config.Prefix, "/") + "/health"
	return &Etcd{
		name:       config.Name,
		healthKey:  healthKey,
		anyRead:    &etcdserverpb.RangeRequest{Key: []byte(healthKey), CountOnly: true},
		logger:     cmp.Or(config.Logger, slog.New(slog.DiscardHandler)),
		observer:   config.Observer,
		compaction: compactor{interval: config.CompactionInterval},
		open:       config.Open,
		ready:      make(chan struct{}),
		ending:     make(chan struct{}),
		revisions:  revisionReader{kick: make(chan struct{}, 1)},
		leases:     leases,
	}
}

// Run opens the store and blocks until ctx ends or etcd fails. It may be called once.
func (e *Etcd) Run(ctx context.Context) error {
	s, err := e.open(ctx, ResponseRecorder{e})
	if err != nil {
		e.failure = fmt.Errorf("kv: open %s etcd: %w", e.name, err)
		close(e.ending)
		e.watches.close()
		if ctx.Err() != nil {
			return nil
		}
		return e.failure
	}
	e.connection = s
	close(e.ready)
	defer s.Close()
	defer e.watches.close()
	defer close(e.ending) // afterwards fail reports ErrClosed as the cause

	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.runRevisions(groupCtx) })
	for _, u := range []*unaryClient{s.revisions, s.writes} {
		if u != nil {
			group.Go(func() error { return u.run(groupCtx) })
		}
	}
	if s.Maintain != nil {
		group.Go(func() error { return s.Maintain(groupCtx) })
	}
	group.Go(func() error { return e.runCompactor(groupCtx) })
	group.Go(func() error { return e.followCompaction(groupCtx) })
	group.Go(func() error {
		select {
		case err := <-s.Failed:
			return fmt.Errorf("kv: %s etcd failed: %w", e.name, err)
		case <-groupCtx.Done():
			return groupCtx.Err()
		}
	})
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// Ready returns a channel that is closed once the store is open.
func (e *Etcd) Ready() <-chan struct{} { return e.ready }

// awaitOpen waits until the store is open and has a connection.
func (e *Etcd) awaitOpen(ctx context.Context) error {
	select {
	case <-e.ending:
		return cmp.Or(e.failure, ErrClosed)
	default:
	}
	select {
	case <-e.ready:
		return nil
	case <-e.ending:
		return cmp.Or(e.failure, ErrClosed)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Get returns the item of one key, linearizably, and the store's revision.
func (e *Etcd) Get(ctx context.Context, key string) (Item, bool, int64, error) {
	if err := e.awaitOpen(ctx); err != nil {
		return Item{}, false, 0, e.fail("get", key, err)
	}
	mark, start := e.history.mark(), time.Now()
	resp, err := e.connection.Client.KV.Get(ctx, key)
	e.observe("get", key, start, err)
	if err != nil {
		return Item{}, false, 0, e.fail("get", key, err)
	}
	e.observeHistory(ctx, mark, resp.Header)
	if len(resp.Kvs) == 0 {
		return Item{}, false, resp.Header.Revision, nil
	}
	return itemOf(resp.Kvs[0]), true, resp.Header.Revision, nil
}

// Range returns one page of the keys under a prefix.
func (e *Etcd) Range(ctx context.Context, opts RangeOptions) (Page, error) {
	if err := e.awaitOpen(ctx); err != nil {
		return Page{}, e.fail("list", opts.Prefix, err)
	}
	from := cmp.Or(max(opts.Start, opts.Prefix), "\x00")
	ops := []clientv3.OpOption{
		clientv3.WithRange(clientv3.GetPrefixRangeEnd(opts.Prefix)),
		clientv3.WithLimit(opts.Limit),
		clientv3.WithRev(opts.Revision),
	}
	op := "list"
	if opts.KeysOnly {
		op, ops = "listOnlyKeys", append(ops, clientv3.WithKeysOnly())
	}
	if opts.CountOnly {
		op, ops = "listWithCount", append(ops, clientv3.WithCountOnly())
	}
	mark, start := e.history.mark(), time.Now()
	var own *borrowed
	if opts.Borrow {
		own = &borrowed{pool: &e.pages}
		ctx = context.WithValue(ctx, borrowedKey{}, own)
	}
	resp, err := e.connection.Client.KV.Get(ctx, from, ops...)
	e.observe(op, opts.Prefix, start, err)
	if err != nil {
		return Page{}, e.fail("list", opts.Prefix, err)
	}
	e.observeHistory(ctx, mark, resp.Header)
	page := Page{Revision: cmp.Or(opts.Revision, resp.Header.Revision), Count: resp.Count, More: resp.More}
	if own != nil && len(own.items) > 0 {
		page.Items, page.OnRelease = own.items, own.release
	}
	if len(resp.Kvs) > 0 {
		page.Items = make([]Item, len(resp.Kvs))
		for i, kv := range resp.Kvs {
			page.Items[i] = itemOf(kv)
		}
	}
	return page, nil
}

// Put writes one key if its last revision is the expected one.
func (e *Etcd) Put(ctx context.Context, key string, value []byte, opts PutOptions) (WriteResult, error) {
	op := "update"
	if opts.IfRevision == 0 {
		op = "create"
	}
	if err := e.awaitOpen(ctx); err != nil {
		return WriteResult{}, e.fail(op, key, err)
	}
	put := func(lease clientv3.LeaseID) (WriteResult, error) {
		write := clientv3.OpPut(key, "", clientv3.WithLease(lease))
		write.WithValueBytes(value) // a string would be copied twice
		return e.commit(ctx, op, key, opts.IfRevision, write)
	}
	if opts.TTL <= 0 {
		return put(clientv3.NoLease)
	}
	for attempt := 1; ; attempt++ {
		lease, err := e.leases.lease(ctx, e.connection.Client, opts.TTL, e.history.replacements.Load())
		if err != nil {
			return WriteResult{}, e.fail("grant lease for", key, err)
		}
		result, err := put(lease)
		if attempt > 1 || !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return result, err
		}
		e.leases.discard(lease) // revoked, or of a replaced store
	}
}

// Delete removes one key if its last revision is the expected one.
func (e *Etcd) Delete(ctx context.Context, key string, ifRevision int64) (WriteResult, error) {
	if err := e.awaitOpen(ctx); err != nil {
		return WriteResult{}, e.fail("delete", key, err)
	}
	result, err := e.commit(ctx, "delete", key, ifRevision, clientv3.OpDelete(key, clientv3.WithPrevKV()))
	if err == nil && result.Committed && result.Current.Revision != ifRevision {
		return e.readDeleted(ctx, key, result)
	}
	return result, err
}

// readDeleted reads the deleted item from a store that does not return it with the deletion
// (kine pkg/logstructured/logstructured.go).
func (e *Etcd) readDeleted(ctx context.Context, key string, result WriteResult) (WriteResult, error) {
	resp, err := e.connection.Client.KV.Get(ctx, key, clientv3.WithRev(result.Revision-1))
	if err != nil {
		return WriteResult{}, e.fail("delete", key, err)
	}
	if len(resp.Kvs) == 0 { // the key did not exist
		return WriteResult{Revision: result.Revision}, nil
	}
	result.Current, result.Found = itemOf(resp.Kvs[0]), true
	return result, nil
}

// commit runs write if the key's last revision is ifRevision, and otherwise reads the key, in one transaction.
func (e *Etcd) commit(ctx context.Context, op, key string, ifRevision int64, write clientv3.Op) (WriteResult, error) {
	mark, start := e.history.mark(), time.Now()
	resp, err := e.connection.Client.KV.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", ifRevision)).
		Then(write).
		Else(clientv3.OpGet(key)).
		Commit()
	e.observe(op, key, start, err)
	if err != nil {
		return WriteResult{}, e.fail(op, key, err)
	}
	e.observeHistory(ctx, mark, resp.Header)
	result := WriteResult{Committed: resp.Succeeded, Revision: resp.Header.Revision}
	var kvs []*mvccpb.KeyValue
	if !resp.Succeeded {
		kvs = resp.Responses[0].GetResponseRange().Kvs
	} else if deleted := resp.Responses[0].GetResponseDeleteRange(); deleted != nil {
		kvs = deleted.PrevKvs
		result.Committed = deleted.Deleted > 0
	}
	if len(kvs) > 0 {
		result.Current, result.Found = itemOf(kvs[0]), true
	}
	return result, nil
}

// Health reads from etcd, as kube-apiserver's probe does. It shares the reads of Revision, whose connection leaves a
// member that does not respond. If the revision is known without a read, Health reads a key that need not exist.
func (e *Etcd) Health(ctx context.Context) error {
	if err := e.awaitOpen(ctx); err != nil {
		return e.fail("health", "", err)
	}
	if e.connection.InProcess {
		_, _, _, err := e.Get(ctx, e.healthKey)
		return err
	}
	_, err := e.Revision(ctx)
	return err
}

// Size returns the size of the database file in bytes. In a cluster it is the file of one of the members.
func (e *Etcd) Size(ctx context.Context) (int64, error) {
	if err := e.awaitOpen(ctx); err != nil {
		return 0, e.fail("size", "", err)
	}
	size, err := e.connection.Size(ctx)
	if err != nil {
		return 0, e.fail("size", "", err)
	}
	return size, nil
}

// Recent returns the oldest revision >= past such that the values of all later revisions up to present have at most
// that many bytes in total. For a cluster it returns past, because a cluster does not report their sizes.
func (e *Etcd) Recent(ctx context.Context, past, present, bytes int64) (int64, error) {
	if err := e.awaitOpen(ctx); err != nil {
		return 0, e.fail("measure", "", err)
	}
	if e.connection.Recent == nil {
		return past, nil
	}
	revision, err := e.connection.Recent(ctx, past, present, bytes)
	if err != nil {
		return 0, e.fail("measure", "", err)
	}
	return revision, nil
}

// Replacements counts how often the store was replaced.
func (e *Etcd) Replacements() uint64 { return e.history.replacements.Load() }

// ReplacedRevision returns the highest revision that a replaced history is known to have
// reached.
func (e *Etcd) ReplacedRevision() int64 { return e.history.replaced.Load() }

// Newest returns the highest revision that etcd is known to have reached.
func (e *Etcd) Newest() int64 { return e.history.revision.Load() }

func (e *Etcd) observe(op, key string, start time.Time, err error) {
	if e.observer.Request != nil {
		e.observer.Request(op, key, time.Since(start), err)
	}
}

// observeHistory compares a linearizable response with the mark from before its request, and ends all watches if the
// store was replaced. If that is doubtful, it reads the current raft term. If that fails, the next response with a
// lower term makes it try again.
func (e *Etcd) observeHistory(ctx context.Context, mark historyMark, header *etcdserverpb.ResponseHeader) {
	verdict := e.history.observe(mark, header)
	if verdict == doubtful {
		current, err := e.currentHeader(ctx)
		if err != nil {
			e.logger.Warn("etcd's raft term decreased, but etcd does not report whether its history was replaced", "error", err)
			return
		}
		header, verdict = current, e.history.decide(mark, current)
	}
	if verdict == replaced {
		e.logger.Error("etcd's history was replaced", "cluster", header.ClusterId, "revision", header.Revision,
			"term", header.RaftTerm, "previousRevision", mark.revision, "previousTerm", mark.term)
		e.watches.end(ErrReplaced)
	}
}

func (e *Etcd) fail(op, key string, err error) error {
	select {
	case <-e.ending:
		if !errors.Is(err, ErrClosed) {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
	default:
	}
	return &Error{Op: op, Key: key, Err: err}
}

func itemOf(kv *mvccpb.KeyValue) Item {
	return Item{
		Key:            string(kv.Key),
		Value:          kv.Value,
		Revision:       kv.ModRevision,
		CreateRevision: kv.CreateRevision,
		Lease:          kv.Lease,
	}
}
