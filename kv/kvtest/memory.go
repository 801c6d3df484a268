package kvtest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/btree"

	"github.com/larder-io/larder/internal/invariants"
	"github.com/larder-io/larder/kv"
)

// Memory is a kv.Store in memory. It is open from the start, until the context of Run ends.
type Memory struct {
	closing chan struct{} // closed when the context of Run ends
	watches sync.WaitGroup

	replaced         atomic.Uint64
	replacedRevision atomic.Int64

	mu             sync.Mutex
	hook           func(op, key string) error
	held           bool // watches deliver nothing
	ignoreProgress bool // requests for progress are lost
	revision       int64
	compacted      int64
	shown          int64 // highest revision of any response or event
	keys           *btree.BTreeG[*history]
	log            []kv.Batch // every revision >= compacted, in order
	lastLease      int64
	watchers       map[*watcher]struct{}
}

// history is all versions of one key, oldest first. A version without
// CreateRevision is a deletion.
type history struct {
	key      string
	versions []kv.Item
}

// at returns the version that was present at a revision.
func (h *history) at(revision int64) (kv.Item, bool) {
	for _, version := range slices.Backward(h.versions) {
		if version.Revision <= revision {
			return version, version.CreateRevision != 0
		}
	}
	return kv.Item{}, false
}

var _ kv.Store = (*Memory)(nil)

// NewMemory returns an empty store at revision 1, like a new etcd.
func NewMemory() *Memory {
	return &Memory{
		closing:  make(chan struct{}),
		revision: 1,
		keys:     btree.NewG(16, func(a, b *history) bool { return a.key < b.key }),
		watchers: make(map[*watcher]struct{}),
	}
}

// SetHook makes every operation call fn first, without locks, with the names "get", "list", "put", "delete", "watch",
// "progress", "revision" and "health". If fn returns an error, the operation fails without an effect.
func (m *Memory) SetHook(fn func(op, key string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hook = fn
}

// Hold stops the delivery to watches until Release, as a stalled connection does.
func (m *Memory) Hold() { m.setHeld(true) }

// Release ends Hold.
func (m *Memory) Release() { m.setHeld(false) }

func (m *Memory) setHeld(held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = held
	m.wakeLocked()
}

// IgnoreProgressRequests sets whether requests for progress are ignored.
func (m *Memory) IgnoreProgressRequests(ignore bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ignoreProgress = ignore
}

// EndWatches ends all open watches with an error.
func (m *Memory) EndWatches(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if errors.Is(err, kv.ErrReplaced) {
		m.replaceLocked()
		return
	}
	for w := range m.watchers {
		w.err = err
	}
	m.wakeLocked()
}

// replaceLocked begins another history with the current contents.
func (m *Memory) replaceLocked() {
	m.replacedRevision.Store(max(m.replacedRevision.Load(), m.shown))
	m.shown = m.revision
	m.replaced.Add(1)
	for w := range m.watchers {
		w.err = kv.ErrReplaced
	}
	m.wakeLocked()
}

// recordResponseLocked records a linearizable response. If an earlier one had a higher revision, the store counts as
// replaced.
func (m *Memory) recordResponseLocked() {
	if m.revision < m.shown {
		m.replaceLocked()
	}
	m.shown = m.revision
}

// Compact discards the revisions before a revision.
func (m *Memory) Compact(revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.compacted {
		return m.failure("compact", "", kv.ErrCompacted)
	}
	if revision > m.revision {
		return m.failure("compact", "", kv.ErrFutureRevision)
	}
	m.compacted = revision
	m.log = slices.DeleteFunc(m.log, func(b kv.Batch) bool { return b.Revision < revision })
	m.wakeLocked()
	return nil
}

// Restore resets the store to its state at a revision. If announce is set, watches end, as when the client sees another
// cluster. Otherwise they wait for new revisions, until a response has a lower revision.
func (m *Memory) Restore(revision int64, announce bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys.Ascend(func(h *history) bool {
		h.versions = slices.DeleteFunc(h.versions, func(v kv.Item) bool { return v.Revision > revision })
		return true
	})
	m.log = slices.DeleteFunc(m.log, func(b kv.Batch) bool { return b.Revision > revision })
	m.revision = revision
	for w := range m.watchers {
		w.position = w.delivered // like a client that reconnects and resumes
	}
	if announce {
		m.replaceLocked()
	}
	m.wakeLocked()
}

// Watches returns how many watches are open.
func (m *Memory) Watches() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.watchers)
}

// begin runs the hook. It returns an error if the operation must fail.
func (m *Memory) begin(ctx context.Context, op, key string) error {
	m.mu.Lock()
	hook := m.hook
	m.mu.Unlock()
	var err error
	if hook != nil {
		err = hook(op, key)
	}
	select {
	case <-m.closing:
		err = kv.ErrClosed
	default:
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return m.failure(op, key, err)
	}
	return nil
}

func (m *Memory) failure(op, key string, err error) error {
	return &kv.Error{Op: op, Key: key, Err: err}
}

// Get returns the item of one key and the store's revision.
func (m *Memory) Get(ctx context.Context, key string) (kv.Item, bool, int64, error) {
	if err := m.begin(ctx, "get", key); err != nil {
		return kv.Item{}, false, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recordResponseLocked()
	item, found := m.currentLocked(key)
	return item, found, m.revision, nil
}

func (m *Memory) currentLocked(key string) (kv.Item, bool) {
	if h, ok := m.keys.Get(&history{key: key}); ok {
		if item, found := h.at(m.revision); found {
			return item, true
		}
	}
	return kv.Item{}, false
}

// Range returns one page of the keys under a prefix.
func (m *Memory) Range(ctx context.Context, opts kv.RangeOptions) (kv.Page, error) {
	if err := m.begin(ctx, "list", opts.Prefix); err != nil {
		return kv.Page{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recordResponseLocked()
	revision := opts.Revision
	switch {
	case revision == 0:
		revision = m.revision
	case revision < m.compacted:
		return kv.Page{}, m.failure("list", opts.Prefix, kv.ErrCompacted)
	case revision > m.revision:
		return kv.Page{}, m.failure("list", opts.Prefix, kv.ErrFutureRevision)
	}
	page := kv.Page{Revision: revision}
	m.keys.AscendGreaterOrEqual(&history{key: max(opts.Start, opts.Prefix)}, func(h *history) bool {
		if !strings.HasPrefix(h.key, opts.Prefix) {
			return false
		}
		item, found := h.at(revision)
		if !found {
			return true
		}
		page.Count++
		switch {
		case opts.CountOnly:
		case opts.Limit > 0 && int64(len(page.Items)) == opts.Limit:
			page.More = true
		default:
			if opts.KeysOnly {
				item.Value = nil
			}
			page.Items = append(page.Items, item)
		}
		return true
	})
	if opts.Borrow {
		cloneValues(&page)
	}
	return page, nil
}

// cloneValues gives a page its own values, which are overwritten when the page is released, so that tests detect
// callers that keep one.
func cloneValues(page *kv.Page) {
	for i := range page.Items {
		page.Items[i].Value = bytes.Clone(page.Items[i].Value)
	}
	items := page.Items
	page.OnRelease = func() {
		for i := range items {
			invariants.Overwrite(items[i].Value)
		}
	}
}

// Put writes one key if its last revision is the expected one.
func (m *Memory) Put(ctx context.Context, key string, value []byte, opts kv.PutOptions) (kv.WriteResult, error) {
	if err := m.begin(ctx, "put", key); err != nil {
		return kv.WriteResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.recordResponseLocked()
	current, found := m.currentLocked(key)
	if current.Revision != opts.IfRevision {
		return kv.WriteResult{Revision: m.revision, Current: current, Found: found}, nil
	}
	var lease int64
	if opts.TTL > 0 {
		ttl := (opts.TTL + time.Second - 1).Truncate(time.Second)
		m.lastLease++
		lease = m.lastLease
		time.AfterFunc(ttl, func() { m.expire(lease) })
	}
	m.commitLocked([]write{{key: key, value: slices.Clone(value), lease: lease}})
	return kv.WriteResult{Committed: true, Revision: m.revision}, nil
}

// Delete removes one key if its last revision is the expected one.
func (m *Memory) Delete(ctx context.Context, key string, ifRevision int64) (kv.WriteResult, error) {
	if err := m.begin(ctx, "delete", key); err != nil {
		return kv.WriteResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.recordResponseLocked()
	current, found := m.currentLocked(key)
	if !found || current.Revision != ifRevision {
		return kv.WriteResult{Revision: m.revision, Current: current, Found: found}, nil
	}
	m.commitLocked([]write{{key: key, remove: true}})
	return kv.WriteResult{Committed: true, Revision: m.revision, Current: current, Found: true}, nil
}

// PutAll writes several keys in one revision, unconditionally, like another client's transaction. A nil value deletes.
func (m *Memory) PutAll(values map[string][]byte) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var writes []write
	for key, value := range values {
		_, found := m.currentLocked(key)
		if value != nil || found {
			writes = append(writes, write{key: key, value: value, remove: value == nil})
		}
	}
	slices.SortFunc(writes, func(a, b write) int { return strings.Compare(a.key, b.key) })
	m.commitLocked(writes)
	return m.revision
}

// write is one key's part of a transaction.
type write struct {
	key    string
	value  []byte
	lease  int64
	remove bool
}

// commitLocked gives writes the next revision.
func (m *Memory) commitLocked(writes []write) {
	if len(writes) == 0 {
		return
	}
	m.revision++
	batch := kv.Batch{Revision: m.revision}
	for _, w := range writes {
		h, ok := m.keys.Get(&history{key: w.key})
		if !ok {
			h = &history{key: w.key}
			m.keys.ReplaceOrInsert(h)
		}
		event := kv.Event{Key: w.key, Revision: m.revision, Kind: kv.Delete}
		version := kv.Item{Key: w.key, Revision: m.revision}
		if !w.remove {
			event.Kind, event.Value = kv.Create, w.value
			version.Value, version.Lease, version.CreateRevision = w.value, w.lease, m.revision
			if old, found := h.at(m.revision); found {
				event.Kind, version.CreateRevision = kv.Update, old.CreateRevision
			}
		}
		h.versions = append(h.versions, version)
		batch.Events = append(batch.Events, event)
	}
	m.log = append(m.log, batch)
	m.wakeLocked()
}

// Revision returns the store's revision.
func (m *Memory) Revision(ctx context.Context) (int64, error) {
	if err := m.begin(ctx, "revision", ""); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recordResponseLocked()
	return m.revision, nil
}

// Replacements counts the calls of Restore that were announced, or detected later.
func (m *Memory) Replacements() uint64 { return m.replaced.Load() }

// ReplacedRevision returns the highest revision that was shown before a replacement.
func (m *Memory) ReplacedRevision() int64 { return m.replacedRevision.Load() }

// Health returns the hook's error.
func (m *Memory) Health(ctx context.Context) error { return m.begin(ctx, "health", "") }

// Compaction returns the last compacted revision.
func (m *Memory) Compaction() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.compacted
}

// Run closes the store when ctx ends, and returns when all watches have ended.
func (m *Memory) Run(ctx context.Context) error {
	<-ctx.Done()
	m.mu.Lock()
	close(m.closing)
	m.mu.Unlock()
	m.watches.Wait()
	return nil
}

func (m *Memory) expire(lease int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.closing:
		return
	default:
	}
	var writes []write
	m.keys.Ascend(func(h *history) bool {
		if item, found := h.at(m.revision); found && item.Lease == lease {
			writes = append(writes, write{key: h.key, remove: true})
		}
		return true
	})
	m.commitLocked(writes)
}

// RunUntilEnd runs fn until the test ends, or stop is called, and fails the test if fn failed.
func RunUntilEnd(t testing.TB, fn func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Put sets a key unconditionally and returns the revision of the write.
func Put(t testing.TB, store kv.Store, key, value string) int64 {
	t.Helper()
	item, _, _, err := store.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	result, err := store.Put(t.Context(), key, []byte(value), kv.PutOptions{IfRevision: item.Revision})
	if err != nil || !result.Committed {
		t.Fatalf("put %s: %+v, %v", key, result, err)
	}
	return result.Revision
}
