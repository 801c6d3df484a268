package registry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/wire"
	"github.com/larder-io/larder/kv"
)

// Scope is where a read looks: in one namespace or, if that is empty, in all of
// the resource; at one object if Name is not empty.
type Scope struct {
	Namespace, Name string

	// one says that rest is the key, even if namespace and name do not make it up.
	one  bool
	rest string
}

// single reports whether the scope is one key.
func (s Scope) single() bool { return s.one || s.Name != "" }

// key is the object's key within the resource.
func (s Scope) key() string {
	switch {
	case s.one:
		return s.rest
	case s.Namespace == "":
		return s.Name
	}
	return s.Namespace + "/" + s.Name
}

// prefix is what the keys of the scope's objects begin with.
func (s Scope) prefix() string {
	if s.Namespace == "" {
		return ""
	}
	return s.Namespace + "/"
}

// Get returns the object that scope names, not older than resourceVersion: ""
// asks for the newest there is, "0" for whatever is at hand. Errors are those of
// storage.Interface; an object that cannot be read is one.
func (r *Resource) Get(ctx context.Context, scope Scope, resourceVersion string) (*cache.Object, error) {
	if err := r.check(scope); err != nil {
		return nil, err
	}
	revision, err := r.codec.Versioner().ParseResourceVersion(resourceVersion)
	switch {
	case err != nil && r.uncached():
		return nil, badRevision(err)
	case err != nil:
		return nil, err
	}
	if err := r.gone(); err != nil {
		return nil, err
	}
	if r.Cache == nil || !r.Cache.Ready() || scope.key() == "" { // the root is nobody's key
		return r.getStored(ctx, scope.key(), revision)
	}
	if resourceVersion == "" {
		err = r.awaitNow(ctx)
	} else {
		err = r.await(ctx, revision)
	}
	if err != nil {
		return nil, err
	}
	o := r.Cache.Snapshot().Get(scope.key())
	switch {
	case o == nil:
		return nil, storage.NewKeyNotFoundError(r.layout.root+scope.key(), 0)
	case o.Err() != nil:
		// The store may hold something readable by now, and has the exact error.
		return r.getStored(ctx, scope.key(), 0)
	}
	return o, nil
}

// getStored reads one object from the store.
func (r *Resource) getStored(ctx context.Context, rest string, atLeast uint64) (*cache.Object, error) {
	full := r.layout.root + rest
	item, found, revision, err := r.store.Get(ctx, full)
	switch {
	case err != nil:
		return nil, etcdError(err)
	case atLeast > uint64(revision):
		return nil, storage.NewTooLargeResourceVersionError(atLeast, uint64(revision), 0)
	case !found:
		return nil, storage.NewKeyNotFoundError(full, 0)
	}
	o := r.codec.DecodeValue(ctx, full, rest, item.Value, item.Revision)
	if _, _, err := r.codec.Decrypt(ctx, full, item.Value); err != nil {
		return nil, r.unreadable(full, o, err) // a list says it in other words
	}
	return o, r.unreadable(full, o, o.Err())
}

// notReady sends readers away for the longer, the longer it takes to load
// (apiserver pkg/storage/cacher/util.go).
func (r *Resource) notReady() error {
	seconds := math.Exp(0.06 * time.Since(r.made).Seconds())
	return apierrors.NewTooManyRequests("storage is (re)initializing", int(min(max(seconds, 1), 30)))
}

// uncached reports whether upstream keeps no cache of the resource (kubernetes
// pkg/kubeapiserver/default_storage_factory_builder.go): what clients see of that is
// kept: the words of errors, limits at any revision, and not waiting for the future.
func (r *Resource) uncached() bool { return r.layout.resource == "/events" }

// refuseFuture fails if the store has not reached revision, with a hint after how
// many seconds to try again.
func (r *Resource) refuseFuture(ctx context.Context, revision uint64, retry int) error {
	current, err := r.store.Revision(ctx)
	switch {
	case err != nil:
		return etcdError(err)
	case revision > uint64(current):
		return storage.NewTooLargeResourceVersionError(revision, uint64(current), retry)
	}
	return nil
}

// check refuses a namespace that is no step down the path of a key (apiserver
// pkg/storage/interfaces.go, PrepareKey).
func (r *Resource) check(s Scope) error {
	if s.Namespace != "." && s.Namespace != ".." {
		return nil
	}
	key := r.layout.resource + "/" + s.Namespace
	if s.Name != "" {
		key += "/" + s.Name
	}
	return fmt.Errorf("invalid key: %q", key)
}

// badRevision is the error of a resourceVersion that is none.
func badRevision(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("invalid resource version: %v", err))
}

// ListRequest asks for the objects of a scope.
type ListRequest struct {
	Scope
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Label           labels.Selector
	Field           fields.Selector
	Limit           int64
	Continue        string

	ended bool // the storage key that was asked for ends in "/"
}

// withSelectors gives a request that selects everything where q has no selector.
func (q ListRequest) withSelectors() ListRequest {
	if q.Label == nil {
		q.Label = labels.Everything()
	}
	if q.Field == nil {
		q.Field = fields.Everything()
	}
	return q
}

// Listing is the answer to a ListRequest.
type Listing struct {
	Objects []*cache.Object
	Meta    wire.ListMeta

	Index   string // that narrowed the search, "" if none
	Scanned int    // objects looked at

	corrupt corruptList // what a read of the store stumbled over
}

// options is what upstream's rules work with.
func (q ListRequest) options() storage.ListOptions {
	return storage.ListOptions{
		ResourceVersion:      q.ResourceVersion,
		ResourceVersionMatch: q.Match,
		Predicate:            storage.SelectionPredicate{Label: q.Label, Field: q.Field, Limit: q.Limit, Continue: q.Continue},
		Recursive:            !q.single(),
	}
}

// List returns the objects that q asks for, appended to dst. Errors are those of
// storage.Interface.
func (r *Resource) List(ctx context.Context, q ListRequest, dst []*cache.Object) (Listing, error) {
	q = q.withSelectors()
	if err := r.check(q.Scope); err != nil {
		return Listing{}, err
	}
	prefix := r.layout.root + q.prefix()
	exact, from, err := storage.ValidateListOptions(prefix, r.codec.Versioner(), q.options())
	if err != nil {
		return Listing{}, err
	}
	read := listing{q: q, exact: exact, from: from, prefix: prefix}
	if err := r.gone(); err != nil {
		return Listing{}, err
	}
	if exact > 0 && r.lost(exact) {
		return Listing{}, r.rangeError(ctx, kv.ErrCompacted, read)
	}
	history := r.store.Replacements()
	listing, err := r.listAt(ctx, read, dst)
	if err == nil {
		r.handOut(history, listing.Meta.Revision)
	}
	return listing, err
}

// listAt answers a request that upstream's rules were applied to.
func (r *Resource) listAt(ctx context.Context, read listing, dst []*cache.Object) (Listing, error) {
	q := read.q
	if r.Cache == nil || !r.Cache.Ready() {
		if r.Cache != nil && (q.Limit <= 0 || !q.Label.Empty() || !q.Field.Empty()) {
			return Listing{}, r.notReady()
		}
		return r.listStored(ctx, read, dst)
	}
	if q.ResourceVersion == "0" && !r.uncached() {
		read.q.Limit = 0
	}
	snapshot, err := r.snapshot(ctx, read)
	switch {
	case err == nil:
		listing, err := r.listCached(read, snapshot, dst)
		if err != nil && deletesUnread() { // of all corrupt objects, not the first
			read.exact = snapshot.Revision()
			return r.listStored(ctx, read, dst)
		}
		return listing, err
	case errors.Is(err, errNotKept):
		return r.listStored(ctx, read, dst)
	default:
		return Listing{}, err
	}
}

// listing is a request after upstream's rules were applied to it.
type listing struct {
	q      ListRequest
	prefix string // of full keys
	exact  int64  // revision to read at; 0 is a newest one
	from   string // full key to begin at, "" for the first
}

// errNotKept says that a past revision is not in memory any more.
var errNotKept = errors.New("registry: revision is not kept")

// snapshot finds the state that a request asks for: apiserver
// pkg/storage/cacher/delegator/interface.go has the same rules.
func (r *Resource) snapshot(ctx context.Context, read listing) (cache.Snapshot, error) {
	switch {
	case read.exact > 0:
		if read.exact < r.store.Compaction() {
			return cache.Snapshot{}, errNotKept // the store says it best
		}
		if read.q.single() {
			return cache.Snapshot{}, errNotKept // upstream reads it from the store
		}
		if err := r.await(ctx, uint64(read.exact)); err != nil {
			return cache.Snapshot{}, err
		}
		snapshot, err := r.Cache.At(read.exact)
		if err != nil {
			return snapshot, fmt.Errorf("%w: %w", errNotKept, err)
		}
		return snapshot, nil
	case read.q.ResourceVersion == "" || read.q.Continue != "":
		if err := r.awaitNow(ctx); err != nil {
			return cache.Snapshot{}, err
		}
	default:
		revision, err := r.codec.Versioner().ParseResourceVersion(read.q.ResourceVersion)
		if err != nil {
			return cache.Snapshot{}, err
		}
		if read.q.Limit > 0 { // the next page must not be of what was compacted
			revision = max(revision, uint64(r.store.Compaction()))
		}
		if err := r.awaitTold(ctx, revision); err != nil {
			return cache.Snapshot{}, err
		}
	}
	return r.Cache.Snapshot(), nil
}

// listCached answers from a snapshot.
func (r *Resource) listCached(read listing, snapshot cache.Snapshot, dst []*cache.Object) (Listing, error) {
	q := read.q
	revision := read.exact
	if revision == 0 {
		revision = snapshot.Revision()
	}
	if q.single() {
		return r.listOne(q, revision, snapshot.Get(q.key()), dst)
	}
	page, err := snapshot.List(cache.Query{
		Prefix: q.prefix(),
		From:   r.layout.rest(read.from),
		Label:  q.Label,
		Field:  q.Field,
		Limit:  int(q.Limit),
	}, dst)
	if err != nil {
		return Listing{}, listError(err)
	}
	out := Listing{Objects: page.Objects, Index: page.Index, Scanned: page.Scanned}
	out.Meta.Revision = revision
	if page.Next == "" {
		return out, nil
	}
	// Upstream's cache leaves to the token what follows the key that it was asked for:
	// a slash first, as REST storages ask. Either way is understood.
	if !q.ended && !r.uncached() {
		read.prefix = strings.TrimSuffix(read.prefix, "/")
	}
	return out, r.setContinue(&out, read, r.layout.root+page.Next, page.Remaining)
}

// listOne answers a request for a single object.
func (r *Resource) listOne(q ListRequest, revision int64, o *cache.Object, dst []*cache.Object) (Listing, error) {
	out := Listing{Objects: dst, Meta: wire.ListMeta{Revision: revision}}
	if o == nil {
		return out, nil
	}
	out.Scanned = 1
	if o.Err() != nil {
		if deletesUnread() {
			out.corrupt.add(r.layout.root+q.key(), o)
			return Listing{}, out.corrupt.status(r)
		}
		return Listing{}, o.Err()
	}
	if q.Label.Matches(o.Labels()) && q.Field.Matches(o.Fields()) {
		out.Objects = append(out.Objects, o)
	}
	return out, nil
}

// setContinue puts the token for the next page into out. next is the full key to
// go on at; remaining counts the objects from there on.
func (r *Resource) setContinue(out *Listing, read listing, next string, remaining int64) error {
	token, err := storage.EncodeContinue(next, read.prefix, out.Meta.Revision)
	if err != nil {
		return err
	}
	out.Meta.Continue = token
	if read.q.Label.Empty() && read.q.Field.Empty() {
		out.Meta.Remaining = &remaining
	}
	return nil
}

// listError is the error of the object that a list stumbled over.
func listError(err error) error {
	var poison *cache.PoisonError
	if errors.As(err, &poison) {
		return poison.Object.Err()
	}
	return err
}

// maxPage bounds how far a filtered read of the store widens its pages.
const maxPage = 10000

// listStored answers from the store, for revisions that are not kept and caches
// that have not loaded.
func (r *Resource) listStored(ctx context.Context, read listing, dst []*cache.Object) (Listing, error) {
	q, replacements := read.q, r.store.Replacements()
	opts := kv.RangeOptions{Prefix: read.prefix, Start: read.from, Limit: max(q.Limit, 0), Revision: read.exact}
	if q.single() {
		return r.listStoredOne(ctx, read, dst)
	}
	out := Listing{Objects: dst}
	for {
		page, err := r.store.Range(ctx, opts)
		if err != nil {
			return Listing{}, r.rangeError(ctx, err, read)
		}
		if err := r.atLeast(q.ResourceVersion, page.Revision); err != nil {
			return Listing{}, err
		}
		opts.Revision = page.Revision
		out.Meta.Revision = page.Revision
		if read.exact == 0 {
			r.tell(page.Revision, replacements)
		}
		full, err := r.take(ctx, &out, q, len(dst), page.Items)
		if err != nil {
			return Listing{}, err
		}
		if full >= 0 || !page.More || len(page.Items) == 0 {
			if err := out.corrupt.status(r); err != nil {
				return Listing{}, err
			}
			last := len(page.Items) - 1
			if full >= 0 {
				last = full
			}
			if last >= 0 && (page.More || last < len(page.Items)-1) {
				next := page.Items[last].Key + "\x00"
				return out, r.setContinue(&out, read, next, page.Count-int64(last)-1)
			}
			return out, nil
		}
		opts.Start = page.Items[len(page.Items)-1].Key + "\x00"
		opts.Limit = min(opts.Limit*2, max(maxPage, q.Limit))
	}
}

// take appends what q selects of items and returns the index of the item that
// filled the page, -1 if none did.
func (r *Resource) take(ctx context.Context, out *Listing, q ListRequest, before int, items []kv.Item) (int, error) {
	object := r.decoded(ctx, items)
	for i, item := range items {
		o := object(i)
		switch {
		case o.Err() == nil:
		case !deletesUnread():
			return -1, o.Err()
		case !out.corrupt.add(item.Key, o):
			return -1, out.corrupt.status(r)
		default:
			continue
		}
		out.Scanned++
		if q.Label.Matches(o.Labels()) && q.Field.Matches(o.Fields()) {
			out.Objects = append(out.Objects, o)
		}
		if q.Limit > 0 && int64(len(out.Objects)-before) >= q.Limit {
			return i, nil
		}
	}
	return -1, nil
}

// decoded returns what makes the object of each item: in the order of asking, or all at
// once beforehand where a service has to be asked for keys.
func (r *Resource) decoded(ctx context.Context, items []kv.Item) func(i int) *cache.Object {
	decode := func(i int) *cache.Object {
		item := items[i]
		return r.codec.DecodeValue(ctx, item.Key, r.layout.rest(item.Key), item.Value, item.Revision)
	}
	if !r.codec.Encrypted() {
		return decode
	}
	objects := make([]*cache.Object, len(items))
	var group errgroup.Group
	group.SetLimit(decryptWorkers)
	for i := range items {
		group.Go(func() error {
			objects[i] = decode(i)
			return nil
		})
	}
	_ = group.Wait() // none fails
	return func(i int) *cache.Object { return objects[i] }
}

// listStoredOne reads one key at an exact revision, or now.
func (r *Resource) listStoredOne(ctx context.Context, read listing, dst []*cache.Object) (Listing, error) {
	full, replacements := r.layout.root+read.q.key(), r.store.Replacements()
	page, err := r.store.Range(ctx, kv.RangeOptions{Prefix: full, Limit: 1, Revision: read.exact})
	if err != nil {
		return Listing{}, r.rangeError(ctx, err, read)
	}
	if err := r.atLeast(read.q.ResourceVersion, page.Revision); err != nil {
		return Listing{}, err
	}
	if read.exact == 0 {
		r.tell(page.Revision, replacements)
	}
	var o *cache.Object
	if len(page.Items) == 1 && page.Items[0].Key == full {
		item := page.Items[0]
		o = r.codec.DecodeValue(ctx, full, read.q.key(), item.Value, item.Revision)
	}
	return r.listOne(read.q, page.Revision, o, dst)
}

// atLeast fails if the store is behind what the request asked for.
func (r *Resource) atLeast(resourceVersion string, current int64) error {
	wanted, err := r.codec.Versioner().ParseResourceVersion(resourceVersion)
	if err != nil {
		return badRevision(err)
	}
	if wanted > uint64(current) {
		return storage.NewTooLargeResourceVersionError(wanted, uint64(current), 0)
	}
	return nil
}

// Messages of apiserver pkg/storage/etcd3/errors.go, which clients know.
const (
	expiredList     = "The resourceVersion for the provided list is too old."
	expiredContinue = "The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided " +
		"token results in an inconsistent list - objects that were created, " +
		"modified, or deleted between the time the first chunk was returned " +
		"and now may show up in the list."
)

// rangeError says why the store did not answer. A token that is too old comes back
// with another one for the same place, at whatever the newest revision is then.
func (r *Resource) rangeError(ctx context.Context, err error, read listing) error {
	switch {
	case errors.Is(err, kv.ErrFutureRevision):
		current, rerr := r.store.Revision(ctx)
		if rerr != nil {
			current = 0
		}
		return storage.NewTooLargeResourceVersionError(uint64(read.exact), uint64(current), 0)
	case !errors.Is(err, kv.ErrCompacted):
		return etcdError(err)
	case read.q.Continue == "":
		return apierrors.NewResourceExpired(expiredList)
	}
	token, terr := storage.EncodeContinue(read.from, read.prefix, -1)
	if terr != nil {
		return apierrors.NewResourceExpired(expiredList)
	}
	expired := apierrors.NewResourceExpired(expiredContinue)
	expired.ErrStatus.ListMeta.Continue = token
	return expired
}

// etcdError returns etcd's own error, whose text clients see.
func etcdError(err error) error {
	var e *kv.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
