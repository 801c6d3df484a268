package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// errNotInMemory says that the cache does not have a past revision.
var errNotInMemory = errors.New("registry: revision is not in the cache")

// List appends the objects that q selects to dst. It returns the errors of storage.Interface.
func (r *Resource) List(ctx context.Context, q ListRequest, dst []*cache.Object) (Listing, error) {
	q = q.withSelectors()
	shard, err := shardOf(q.Shard)
	if err != nil {
		return Listing{}, err
	}
	q.shard = shard
	if err := q.Scope.check(r.layout); err != nil {
		return Listing{}, err
	}
	prefix := r.layout.root + q.prefix()
	exact, from, err := storage.ValidateListOptions(prefix, r.codec.Versioner(), q.options())
	if err != nil {
		return Listing{}, err
	}
	read := checkedList{q: q, exact: exact, from: from, prefix: prefix}
	if err := r.goneError(); err != nil {
		return Listing{}, err
	}
	if exact > 0 && r.issued.replaced(exact) {
		return Listing{}, r.rangeError(ctx, kv.ErrCompacted, read)
	}
	history := r.store.Replacements()
	listing, err := r.listAt(ctx, read, dst)
	if err == nil {
		r.issued.issue(history, listing.Meta.Revision)
		if shard != nil {
			listing.Meta.Shard = q.Shard.String()
		}
	}
	return listing, err
}

// listAt serves a request to which upstream's rules were applied.
func (r *Resource) listAt(ctx context.Context, read checkedList, dst []*cache.Object) (Listing, error) {
	q := read.q
	if r.Cache == nil || !r.Cache.Ready() {
		if r.Cache != nil && (q.Limit <= 0 || !q.Label.Empty() || !q.Field.Empty()) {
			return Listing{}, r.notReady()
		}
		return r.listStoredCounted(ctx, read, dst)
	}
	if q.ResourceVersion == "0" && !r.uncached() {
		read.q.Limit = 0
	}
	began := time.Now()
	addSpanEvent(ctx, "Ready")
	snapshot, err := r.snapshot(ctx, read)
	q.waitedSince(began)
	switch {
	case err == nil:
		addSpanEvent(ctx, "watchCache fresh enough")
		listing, err := r.listCached(read, snapshot, dst)
		if err != nil && UnsafeDeleteEnabled() { // of all corrupt objects, not the first
			read.exact = snapshot.Revision()
			return r.listStoredCounted(ctx, read, dst)
		}
		if err == nil {
			r.reads.list(r.GroupResource, listing.Index, listing.Scanned, len(listing.Objects)-len(dst))
			addSpanEvent(ctx, "Listed items from cache", attribute.Int("count", listing.Scanned))
			addSpanEvent(ctx, "Filtered items", attribute.Int("count", len(listing.Objects)-len(dst)))
		}
		return listing, err
	case errors.Is(err, errNotInMemory):
		return r.listStoredCounted(ctx, read, dst)
	default:
		return Listing{}, err
	}
}

// indexLabel returns upstream's name in metrics of the declared index that narrowed q: of a field, or of a label
// (apiserver pkg/storage/selection_predicate.go). It is "" for a learnt index, because clients choose the label.
func indexLabel(page *cache.Page, q *ListRequest) string {
	if page.Index == "" || page.Learnt {
		return ""
	}
	if _, ok := q.Field.RequiresExactMatch(page.Index); ok {
		return storage.FieldIndex(page.Index)
	}
	return storage.LabelIndex(page.Index)
}

// listStoredCounted is listStored, counted.
func (r *Resource) listStoredCounted(ctx context.Context, read checkedList, dst []*cache.Object) (Listing, error) {
	listing, err := r.listStored(ctx, read, dst)
	if err == nil {
		r.StoreLists.Lists.Add(1)
		r.StoreLists.Fetched.Add(int64(listing.Scanned))
		r.StoreLists.Returned.Add(int64(len(listing.Objects) - len(dst)))
	}
	return listing, err
}

// snapshot returns the snapshot for a request, by the rules of apiserver
// pkg/storage/cacher/delegator/interface.go.
func (r *Resource) snapshot(ctx context.Context, read checkedList) (cache.Snapshot, error) {
	if past := read.q.Past; past > 0 && (read.q.Limit <= 0 || past >= r.store.Compaction()) { // otherwise the next page could not be read from the store
		if snapshot, err := r.Cache.At(past); err == nil { // otherwise the log has just dropped it
			return snapshot, nil
		}
	}
	switch {
	case read.exact > 0:
		if read.exact < r.store.Compaction() {
			return cache.Snapshot{}, errNotInMemory // the store returns the error
		}
		if read.q.single() {
			return cache.Snapshot{}, errNotInMemory // kube-apiserver reads it from the store
		}
		if err := r.awaitRevision(ctx, uint64(read.exact)); err != nil {
			return cache.Snapshot{}, err
		}
		snapshot, err := r.Cache.At(read.exact)
		if err != nil {
			return snapshot, fmt.Errorf("%w: %w", errNotInMemory, err)
		}
		return snapshot, nil
	case r.uncached():
		return r.snapshotPresent(ctx, read)
	case read.q.ResourceVersion == "" || read.q.Continue != "":
		waited, err := r.awaitNow(ctx, 0, 0)
		if err != nil {
			r.reads.newest(r.GroupResource, "false")
			return cache.Snapshot{}, err
		}
		r.reads.newest(r.GroupResource, "true")
		if !waited {
			r.reads.wait(r.GroupResource, 0)
		}
	default:
		revision, err := r.codec.Versioner().ParseResourceVersion(read.q.ResourceVersion)
		if err != nil {
			return cache.Snapshot{}, err
		}
		if read.q.Limit > 0 { // otherwise the next page's revision could be compacted already
			revision = max(revision, uint64(r.store.Compaction()))
		}
		if err := r.awaitNotOlderThan(ctx, revision); err != nil {
			return cache.Snapshot{}, err
		}
	}
	return r.Cache.Snapshot(), nil
}

// snapshotPresent returns a snapshot with all writes before the call, for a resource that kube-apiserver reads from
// etcd. If the cache lags, the list is read from there, too.
func (r *Resource) snapshotPresent(ctx context.Context, read checkedList) (cache.Snapshot, error) {
	revision, err := r.codec.Versioner().ParseResourceVersion(read.q.ResourceVersion)
	if err != nil {
		return cache.Snapshot{}, err
	}
	_, err = r.awaitNow(ctx, revision, 0)
	switch {
	case apierrors.IsTooManyRequests(err) && !r.mirror.Outdated():
		return cache.Snapshot{}, errNotInMemory
	case err != nil:
		return cache.Snapshot{}, err
	}
	return r.Cache.Snapshot(), nil
}

// listCached lists from a snapshot.
func (r *Resource) listCached(read checkedList, snapshot cache.Snapshot, dst []*cache.Object) (Listing, error) {
	q := read.q
	revision := read.exact
	if revision == 0 {
		revision = snapshot.Revision()
	}
	if q.single() {
		return r.listOne(q, revision, snapshot.Get(q.key()), dst)
	}
	page, err := snapshot.List(cache.Query{
		Prefix: q.prefix(), From: r.layout.rest(read.from), Label: q.Label, Field: q.Field, Shard: q.shard,
		Limit: int(q.Limit),
	}, dst)
	if err != nil {
		return Listing{}, listError(err)
	}
	out := Listing{Objects: page.Objects, Index: indexLabel(&page, &q), Scanned: page.Scanned}
	out.Meta.Revision = revision
	if page.Next == "" {
		return out, nil
	}
	// In upstream's cache the token is relative to the requested key, so that it begins with a slash for REST
	// storages. Both kinds of tokens are accepted.
	if !q.ended && !r.uncached() {
		read.prefix = strings.TrimSuffix(read.prefix, "/")
	}
	remaining := page.Remaining
	if q.shard != nil { // upstream assumes that it has examined only the objects of the page
		remaining += int64(page.Scanned) - q.Limit
	}
	return out, out.setContinue(read, r.layout.root+page.Next, remaining)
}

// ListRequest is a request for the objects of a scope.
type ListRequest struct {
	Scope
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Label           labels.Selector
	Field           fields.Selector
	Shard           sharding.Selector // nil is everything
	Limit           int64
	Continue        string

	// Past, if not 0, is the revision to read at, although ResourceVersion allows later ones. The cache's log must
	// reach it.
	Past int64

	// Waited, if not nil, is increased by the time spent waiting for the cache and the store.
	Waited *time.Duration

	shard *cache.Shard // Shard as the cache has it
	ended bool         // the requested storage key ends in "/"
}

// waitedSince adds the time since began to Waited.
func (l *ListRequest) waitedSince(began time.Time) {
	if l.Waited != nil {
		*l.Waited += time.Since(began)
	}
}

// matches reports whether o, which is not corrupt, is in the shard and has the labels and fields.
func (l *ListRequest) matches(o *cache.Object) bool {
	return (l.shard == nil || l.shard.Matches(o)) && l.Label.Matches(o.Labels()) && l.Field.Matches(o.Fields())
}

// withSelectors returns l with selectors that select everything in place of nil.
func (l ListRequest) withSelectors() ListRequest {
	if l.Label == nil {
		l.Label = labels.Everything()
	}
	if l.Field == nil {
		l.Field = fields.Everything()
	}
	return l
}

// Listing is the result of a ListRequest.
type Listing struct {
	Objects []*cache.Object
	Meta    wire.ListMeta

	Index   string // that was used, as metrics name it
	Scanned int    // objects examined

	corrupt corruptList // corrupt objects that a read of the store has found
}

// options returns l as upstream's storage.ListOptions.
func (l ListRequest) options() storage.ListOptions {
	return storage.ListOptions{
		ResourceVersion:      l.ResourceVersion,
		ResourceVersionMatch: l.Match,
		Predicate:            storage.SelectionPredicate{Label: l.Label, Field: l.Field, Limit: l.Limit, Continue: l.Continue},
		Recursive:            !l.single(),
	}
}

// checkedList is a ListRequest to which upstream's rules were applied.
type checkedList struct {
	q      ListRequest
	prefix string // of full keys
	exact  int64  // revision to read at; 0 means the newest
	from   string // full key to begin at, "" for the first
}

// setContinue sets the token for the next page. next is the full key at which that page begins; remaining
// counts the objects from there on.
func (l *Listing) setContinue(read checkedList, next string, remaining int64) error {
	token, err := storage.EncodeContinue(next, read.prefix, l.Meta.Revision)
	if err != nil {
		return err
	}
	l.Meta.Continue = token
	if read.q.Label.Empty() && read.q.Field.Empty() {
		l.Meta.Remaining = &remaining
	}
	return nil
}
