package kv

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrCompacted says that the requested revision has been compacted.
	ErrCompacted = errors.New("kv: required revision has been compacted")
	// ErrFutureRevision says that the requested revision has not been written yet.
	ErrFutureRevision = errors.New("kv: required revision is a future revision")
	// ErrClosed says that the store has been closed.
	ErrClosed = errors.New("kv: store is closed")
	// ErrReplaced ends a watch when its store was replaced by another store or by
	// an older state of itself.
	ErrReplaced = errors.New("kv: the store's history was replaced")
)

// Error is the error of a failed operation. Err is etcd's own error, so that clients get its text and code unchanged.
type Error struct {
	Op  string
	Key string
	Err error
}

// Error names the operation and the key before etcd's text.
func (e *Error) Error() string {
	if e.Key == "" {
		return "kv: " + e.Op + ": " + e.Err.Error()
	}
	return "kv: " + e.Op + " " + e.Key + ": " + e.Err.Error()
}

// Unwrap returns etcd's error.
func (e *Error) Unwrap() error { return e.Err }

// Is recognizes this package's sentinels in etcd's errors.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrCompacted:
		return errors.Is(e.Err, rpctypes.ErrCompacted) || errors.Is(e.Err, errMisreported)
	case ErrFutureRevision:
		return errors.Is(e.Err, rpctypes.ErrFutureRev)
	}
	return false
}

// Item is one key at some revision. Its Value is shared and never written.
type Item struct {
	Key            string
	Value          []byte
	Revision       int64 // of the last write of the key
	CreateRevision int64 // of the write that created it
	Lease          int64 // 0 when the key does not expire
}

// EventKind is the kind of a change of a key.
type EventKind uint8

// The kinds of events.
const (
	Create EventKind = iota + 1
	Update
	Delete
)

// String returns "create", "update" or "delete".
func (k EventKind) String() string {
	switch k {
	case Create:
		return "create"
	case Update:
		return "update"
	case Delete:
		return "delete"
	}
	return "invalid"
}

// Event is one change of one key. Value is nil for a Delete: a reader that needs the previous
// value must have kept it.
type Event struct {
	Key      string
	Value    []byte
	Revision int64
	Kind     EventKind
}

// Batch has all events of one revision among the watched keys. It is never split.
//
// Invariant: Events is not empty, and the Revision of each is the batch's.
type Batch struct {
	Revision int64
	Events   []Event
}

// bytes returns about how much memory the batch keeps.
func (b Batch) bytes() int64 {
	n := 0
	for i := range b.Events {
		n += len(b.Events[i].Key) + len(b.Events[i].Value) + 64
	}
	return int64(n)
}

// RangeOptions selects the keys that a Range returns.
type RangeOptions struct {
	Prefix    string
	Start     string // the first key, inclusive; "" begins with the first under Prefix
	Limit     int64  // of items; 0 is all
	Revision  int64  // 0 is now, linearizable
	KeysOnly  bool   // omits the values
	CountOnly bool   // omits the items
	// Borrow says that the caller calls Page.Release, so the store may put the values into
	// reusable memory. A store may ignore it.
	Borrow bool
}

// Page is the result of a Range, in key order. Revision is the requested one, or the store's current one if none was
// requested. Count counts all keys from Start on, and More says that Limit omitted some of them.
type Page struct {
	Items    []Item
	Revision int64
	Count    int64
	More     bool

	// OnRelease is called by Release; nil for nothing.
	OnRelease func()
}

// Release lets the store overwrite the values of a page that was requested with RangeOptions.Borrow. It must be called
// at most once, when the values are no longer used. If it is not called, the garbage collector frees the values.
func (p *Page) Release() {
	if p.OnRelease != nil {
		p.OnRelease()
	}
}

// PutOptions has the condition of a Put: the key's last revision must be IfRevision, or the key must not exist if that
// is 0. A TTL, rounded up to seconds, attaches the key to a lease; without one the key does not expire.
type PutOptions struct {
	IfRevision int64
	TTL        time.Duration
}

// WriteResult is the outcome of a conditional write. If it was not Committed, Current and Found are the
// key's present state. After a committed Delete, Current is the deleted item; after a committed Put
// it is empty.
type WriteResult struct {
	Committed bool
	Revision  int64
	Current   Item
	Found     bool
}

// WatchResponse is one response of a watch. The last one may have an error; all others have Progress p, which means
// that every event of a revision <= p has been delivered.
type WatchResponse struct {
	Batches  []Batch
	Progress int64
	Err      error
}

// Store is a revisioned map of keys to values. Any number of goroutines may call
// its methods. Until the store is open, they wait.
type Store interface {
	// Get returns the item of one key, linearizably, and the store's revision.
	Get(ctx context.Context, key string) (item Item, found bool, revision int64, err error)
	// Range returns one page of the keys under a prefix.
	Range(ctx context.Context, opts RangeOptions) (Page, error)
	// Put writes one key if its last revision is the expected one.
	Put(ctx context.Context, key string, value []byte, opts PutOptions) (WriteResult, error)
	// Delete removes one key if its last revision is the expected one. The Delete of
	// a missing key is not committed.
	Delete(ctx context.Context, key string, ifRevision int64) (WriteResult, error)
	// Watch delivers every event under the prefix with a revision > after. The
	// channel is closed after an error response, and when ctx ends.
	Watch(ctx context.Context, prefix string, after int64) <-chan WatchResponse
	// RequestProgress requests a progress response in every open watch. It does not wait for the responses, which may
	// never come.
	RequestProgress(ctx context.Context) error
	// Revision returns the store's current revision. All callers that wait when a
	// linearizable read begins share that read.
	Revision(ctx context.Context) (int64, error)
	// Replacements counts how often the store was replaced (K6), which ends all watches. A caller that starts a watch
	// at a known revision must compare the count once the watch is open.
	Replacements() uint64
	// ReplacedRevision returns the highest revision that a replaced history is known to
	// have reached, 0 if none was replaced. A client's revision up to this one may belong to
	// either history.
	ReplacedRevision() int64
	// Health reads from the store and returns the error.
	Health(ctx context.Context) error
	// Compaction returns the highest revision at which the store is known to be compacted. It is a hint: another
	// process may have compacted without the protocol, and another implementation of etcd's API may keep older
	// revisions.
	Compaction() int64
}

const (
	// FittingPages, as a page size, lets RangeAll choose the size: about pageBytes, or more if there would be more than
	// manyPages pages, but at most maxPageBytes and maxPageItems. For each page the store counts all remaining keys, so
	// few large pages are cheaper, but need more memory.
	FittingPages = -1

	firstPageItems = 500 // of the first page, when the size of items is not known
	maxPageItems   = 10_000
	pageBytes      = 8 << 20
	maxPageBytes   = 32 << 20
	manyPages      = 32
)

// RangeAll reads a range page by page at one revision, which it returns, and calls fn with each page. opts.Limit is the
// page size: 0 is one page for everything; see also FittingPages. With Borrow, fn or the last reader of a page's values
// releases the page.
func RangeAll(ctx context.Context, store Store, opts RangeOptions, fn func(Page) error) (int64, error) {
	fitting, bytes := opts.Limit == FittingPages, 0
	if fitting {
		opts.Limit = firstPageItems
	}
	for {
		page, err := store.Range(ctx, opts)
		if err != nil {
			return 0, err
		}
		more, next, limit := page.More && len(page.Items) > 0, "", opts.Limit
		if more {
			next = page.Items[len(page.Items)-1].Key + "\x00"
			if fitting {
				limit, bytes = fittingLimit(&page, bytes)
			}
		}
		if err := fn(page); err != nil {
			return 0, err
		}
		if !more {
			return page.Revision, nil
		}
		opts.Revision, opts.Start, opts.Limit = page.Revision, next, limit
	}
}

// fittingLimit returns how many items of the page's average size fit into the next page, and the size of
// the next pages in bytes. bytes is that size as the last call returned it, 0 in the first call.
func fittingLimit(page *Page, bytes int) (limit int64, next int) {
	all := 0
	for i := range page.Items {
		all += len(page.Items[i].Key) + len(page.Items[i].Value)
	}
	size := max(all/len(page.Items), 1)
	if bytes == 0 {
		left := int(page.Count) - len(page.Items)
		bytes = min(max(pageBytes, left*size/manyPages), maxPageBytes)
	}
	return int64(min(max(bytes/size, 1), maxPageItems)), bytes
}
