package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/larder-io/larder/kv"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrUnknown means that no checkpoint has the name.
	ErrUnknown = errors.New("checkpoint: not known to this process")
	// ErrTooLarge means that the limits leave no room for another checkpoint.
	ErrTooLarge = errors.New("checkpoint: no room")
	// ErrBusy means that other clients kept writing during a reset.
	ErrBusy = errors.New("checkpoint: other clients keep writing to the store")
	// ErrReplaced means that the store was replaced after the checkpoint was taken.
	ErrReplaced = errors.New("checkpoint: the store was replaced after the checkpoint was taken")
)

// Config is the configuration of [Checkpoints]. Stores and Prefix are required.
type Config struct {
	// Stores hold the objects, each under Prefix.
	Stores []kv.Store
	Prefix string
	// MaxBytes limits the keys and values of all checkpoints together. 0 means 1 GiB.
	MaxBytes int64
	// MaxNames limits the number of checkpoints. 0 means 64.
	MaxNames int
	// Fence wraps the stores of requests; it may be nil.
	Fence *Fence
	// Pause stops controllers that delete objects, until resume is called, and warns of controllers
	// that it cannot stop. It is called before a reset restores anything; nil stops nothing.
	Pause func(ctx context.Context) (resume func(), warnings []string, err error)
	// Await, unless nil, blocks until authorization, admission and routing have seen the writes of a reset. Reset
	// returns its error.
	Await func(ctx context.Context, writes []Write) error
}

// Write is one change of a reset, at a revision of its store.
type Write struct {
	Key      string
	Revision int64
	Deleted  bool
}

// Info describes a checkpoint.
type Info struct {
	Name     string    `json:"name"`
	Taken    time.Time `json:"taken"`
	Revision int64     `json:"revision"` // of the first store
	Objects  int       `json:"objects"`
	Bytes    int64     `json:"bytes"` // size of keys and values
}

// Outcome is the result of a reset. At Revision, the first store had the checkpoint's state.
type Outcome struct {
	Name     string `json:"name"`
	Deleted  int    `json:"deleted"`  // objects created since the checkpoint
	Restored int    `json:"restored"` // objects deleted since the checkpoint
	Changed  int    `json:"changed"`  // objects changed since the checkpoint
	Revision int64  `json:"revision"`
	// Warnings name controllers that could not be stopped and may continue to delete.
	Warnings []string `json:"warnings,omitempty"`

	writes []Write
}

// Checkpoints holds named states. It is safe for concurrent use.
type Checkpoints struct {
	config Config
	busy   *semaphore.Weighted // held by one Take or Reset

	mu    sync.Mutex
	named map[string]*state
}

// state is one checkpoint. Fields other than info change only during a Take or Reset.
type state struct {
	info   Info
	stores []storeState // in the order of Config.Stores
}

// storeState is the state of one store.
type storeState struct {
	// items are the items to restore, ordered by key. Each has the last known revision of its value, from the
	// checkpoint or from the last reset.
	items        []kv.Item
	revision     int64 // revision of the checkpoint
	equal        int64 // last revision at which the store held exactly these items, 0 if unknown
	replacements uint64
}

// New returns an empty Checkpoints.
func New(config Config) *Checkpoints {
	config.Prefix = strings.TrimRight(config.Prefix, "/") + "/"
	if config.MaxBytes == 0 {
		config.MaxBytes = 1 << 30
	}
	if config.MaxNames == 0 {
		config.MaxNames = 64
	}
	return &Checkpoints{config: config, busy: semaphore.NewWeighted(1), named: make(map[string]*state)}
}

// List returns all checkpoints, ordered by name.
func (c *Checkpoints) List() []Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Info, 0, len(c.named))
	for _, name := range slices.Sorted(maps.Keys(c.named)) {
		all = append(all, c.named[name].info)
	}
	return all
}

// Drop deletes a checkpoint, or returns ErrUnknown.
func (c *Checkpoints) Drop(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.named[name] == nil {
		return fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	delete(c.named, name)
	return nil
}

// Take saves the current state under a name. It replaces an earlier checkpoint of that name.
func (c *Checkpoints) Take(ctx context.Context, name string) (Info, error) {
	if err := c.busy.Acquire(ctx, 1); err != nil {
		return Info{}, fmt.Errorf("checkpoint: waiting for another: %w", err)
	}
	defer c.busy.Release(1)
	room, err := c.maxSize(name)
	if err != nil {
		return Info{}, err
	}
	taken := &state{info: Info{Name: name, Taken: time.Now().UTC()}}
	for _, store := range c.config.Stores {
		held, bytes, err := c.read(ctx, store, room-taken.info.Bytes)
		if err != nil {
			return Info{}, err
		}
		taken.stores = append(taken.stores, held)
		taken.info.Objects += len(held.items)
		taken.info.Bytes += bytes
	}
	taken.info.Revision = taken.stores[0].revision
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named[name] = taken
	return taken.info, nil
}

// maxSize returns the maximum size in bytes of a checkpoint with that name.
func (c *Checkpoints) maxSize(name string) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room, others := c.config.MaxBytes, 0
	for n, s := range c.named {
		if n != name {
			room -= s.info.Bytes
			others++
		}
	}
	if others >= c.config.MaxNames {
		return 0, fmt.Errorf("%w: there are %d already", ErrTooLarge, others)
	}
	return room, nil
}

// read returns the state of store and its size. It fails if the size is more than room.
func (c *Checkpoints) read(ctx context.Context, store kv.Store, room int64) (storeState, int64, error) {
	held, bytes := storeState{replacements: store.Replacements()}, int64(0)
	revision, err := kv.RangeAll(ctx, store, kv.RangeOptions{Prefix: c.config.Prefix, Limit: kv.FittingPages}, func(page kv.Page) error {
		for _, item := range page.Items {
			if item.Lease != 0 || c.excluded(item.Key) {
				continue
			}
			if bytes += int64(len(item.Key) + len(item.Value)); bytes > room {
				return fmt.Errorf("%w: more than %d bytes are stored, %d are left", ErrTooLarge, bytes, room)
			}
			held.items = append(held.items, item)
		}
		return nil
	})
	if err != nil {
		return storeState{}, 0, fmt.Errorf("checkpoint: reading the state: %w", err)
	}
	held.revision = revision
	return held, bytes, nil
}

// excluded reports whether a key is a record of API servers, which checkpoints do not contain.
func (c *Checkpoints) excluded(key string) bool {
	path := key[len(c.config.Prefix):]
	return strings.HasPrefix(path, "masterleases/") || // addresses of servers
		strings.HasPrefix(path, "peerserverleases/") || // addresses at which other servers reach them
		strings.HasPrefix(path, "leases/kube-system/apiserver-") // their identities
}
