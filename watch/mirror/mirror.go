package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch"
)

// Config configures a Mirror. Store and Prefix are required.
type Config struct {
	// Store has the keys. The caller runs it.
	Store kv.Store
	// Prefix of the keys in the store; it ends in "/". The rest of a key is the object's key.
	Prefix string

	// Decode is [cache.Config].Decode. Nil makes objects whose bodies are the stored values.
	Decode func(ctx context.Context, key string, value []byte, revision int64) *cache.Object
	// DecodeCopies is [cache.Config].DecodeCopies.
	DecodeCopies bool
	// Schema describes the objects; nil means one without indexes. It is required with Decode.
	Schema *cache.ResourceSchema

	// Tail follows the store for several Mirrors, and the caller runs it. If it is nil, the Mirror
	// has its own Tail.
	Tail *kv.Tail
	// Log limits the past events, from which watchers can resume.
	Log cache.LogConfig
	// Since is [cache.ReflectorConfig].Since.
	Since int64
	// Workers is [cache.ReflectorConfig].Workers.
	Workers int
	// OnClose is [watch.Config].OnClose.
	OnClose func(history uint64, revision int64)
	Logger  *slog.Logger // nil discards
}

// Mirror is a Cache of the keys under a prefix of a store, the Reflector that keeps it current, and
// the Hub that serves its watchers.
type Mirror struct {
	Cache     *cache.Cache
	Hub       *watch.Hub
	Reflector *cache.Reflector

	store kv.Store
	tail  *kv.Tail
	owned bool // Run runs the tail
	sub   *kv.Subscription
}

// New returns a Mirror, which is empty until Run has loaded it. It does no I/O.
func New(config Config) (*Mirror, error) {
	switch {
	case config.Store == nil:
		return nil, errors.New("mirror: Config.Store is missing")
	case !strings.HasSuffix(config.Prefix, "/"):
		return nil, fmt.Errorf("mirror: prefix %q does not end in /", config.Prefix)
	case config.Schema == nil && config.Decode != nil:
		return nil, errors.New("mirror: Config.Schema is missing")
	}
	config.setDefaults()
	m := &Mirror{store: config.Store, tail: config.Tail}
	if m.owned = m.tail == nil; m.owned {
		m.tail = kv.NewTail(kv.TailConfig{Store: config.Store, Prefix: config.Prefix, Logger: config.Logger})
	}
	m.sub = m.tail.Subscribe(config.Prefix)
	if err := m.assemble(config); err != nil {
		m.sub.Close()
		return nil, fmt.Errorf("mirror: %w", err)
	}
	return m, nil
}

// setDefaults fills in a Schema without indexes and a Decode that keeps values as they are.
func (c *Config) setDefaults() {
	if c.Schema == nil {
		c.Schema = cache.NewResourceSchema(c.Prefix, nil)
	}
	if schema := c.Schema; c.Decode == nil {
		c.DecodeCopies = false
		c.Decode = func(_ context.Context, key string, value []byte, revision int64) *cache.Object {
			return cache.NewObject(cache.ObjectConfig{Key: key, Revision: revision, Body: value, StoredSize: len(value)}, schema)
		}
	}
}

func (m *Mirror) assemble(config Config) (err error) {
	m.Cache, err = cache.New(cache.Config{
		Schema:       config.Schema,
		Decode:       config.Decode,
		DecodeCopies: config.DecodeCopies,
		Source:       m.sub,
		Log:          config.Log,
		OnAppend:     func() { m.Hub.Notify() },
	})
	if err != nil {
		return err
	}
	if m.Hub, err = watch.New(watch.Config{Cache: m.Cache, OnClose: config.OnClose}); err != nil {
		return err
	}
	m.Reflector, err = cache.NewReflector(cache.ReflectorConfig{
		Store: config.Store, Sub: m.sub, Cache: m.Cache, Prefix: config.Prefix,
		Since: config.Since, Workers: config.Workers, Logger: config.Logger,
	})
	return err
}

// Run keeps the Mirror current and serves its watchers until ctx ends, and then returns nil. It returns when all its
// goroutines have ended. It may be called once.
func (m *Mirror) Run(ctx context.Context) error {
	group, inner := errgroup.WithContext(ctx)
	if m.owned {
		group.Go(func() error { return m.tail.Run(inner) })
	}
	group.Go(func() error { return m.reflect(inner) })
	_ = m.Hub.Run(inner) // on this goroutine, because a server has many mirrors (T5); its error is inner's
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// reflect runs the Reflector after the tail has found its start revision. If the store changed before that, the load
// would have to be repeated, which ends watches.
func (m *Mirror) reflect(ctx context.Context) error {
	for {
		err := m.tail.Wait(ctx, 1)
		if errors.Is(err, kv.ErrReplaced) {
			continue // the tail starts again in the new history
		}
		if err != nil {
			return err
		}
		return m.Reflector.Run(ctx)
	}
}

// Retire frees a Mirror whose Run has ended or will never start. The Mirror still has its last objects, but drops its
// Log and its encodings.
func (m *Mirror) Retire() {
	m.Cache.Retire()
	m.sub.Close()
}

// Snapshot returns the current state of the cache, without waiting. Until the Mirror has
// loaded, it is empty ([cache.Cache.WaitReady]).
func (m *Mirror) Snapshot() cache.Snapshot { return m.Cache.Snapshot() }

// Outdated reports whether the store was replaced since the Mirror has loaded. Until it has reloaded, it may show
// objects that the store never held.
func (m *Mirror) Outdated() bool { return m.Snapshot().History() != m.store.Replacements() }

// HasRevision reports whether the Mirror has loaded the store's current history and has reached a revision.
func (m *Mirror) HasRevision(revision int64) bool {
	snapshot := m.Snapshot()
	return snapshot.Revision() >= revision && snapshot.History() == m.store.Replacements()
}

// ConsistentSnapshot waits until the Mirror has every write that the store acknowledged before the call, and returns a
// Snapshot. If the store is replaced meanwhile, it reads the revision again, because the earlier one belongs to another
// history.
func (m *Mirror) ConsistentSnapshot(ctx context.Context) (cache.Snapshot, error) {
	for {
		history := m.store.Replacements()
		revision, err := m.store.Revision(ctx)
		if err == nil {
			err = m.Cache.WaitReady(ctx) // WaitIn does not wait until watches may begin
		}
		if err == nil {
			err = m.sub.WaitIn(ctx, history, revision)
		}
		snapshot := m.Snapshot()
		switch {
		case m.store.Replacements() != history:
		case err != nil:
			return cache.Snapshot{}, fmt.Errorf("mirror: %w", err)
		case snapshot.History() == history:
			return snapshot, nil
		}
	}
}

// Get returns the object with a key from a ConsistentSnapshot, nil if there is none. A corrupt object is an error.
func (m *Mirror) Get(ctx context.Context, key string) (*cache.Object, error) {
	snapshot, err := m.ConsistentSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	o := snapshot.Get(key)
	if o != nil && o.Err() != nil {
		return nil, &cache.CorruptError{Object: o}
	}
	return o, nil
}

// List lists a ConsistentSnapshot, and returns its revision. To get several pages of one revision, list them from one
// Snapshot.
func (m *Mirror) List(ctx context.Context, query cache.Query) (cache.Page, int64, error) {
	snapshot, err := m.ConsistentSnapshot(ctx)
	if err != nil {
		return cache.Page{}, 0, err
	}
	page, err := snapshot.List(query, nil)
	return page, snapshot.Revision(), err
}

// Watch returns a Watcher of the changes after a Snapshot or a revision. Until the Mirror has
// loaded, the error is [cache.ErrNotReady]. The caller closes the Watcher.
func (m *Mirror) Watch(options watch.Options) (*watch.Watcher, error) { return m.Hub.Watch(options) }
