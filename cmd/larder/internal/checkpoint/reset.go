package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/kv"
)

const (
	// maxRounds limits the rounds of comparing and writing. With concurrent writes, Reset fails after them.
	maxRounds = 10
	// writers is the number of concurrent writes, which the store commits together.
	writers = 64
	// scanItems is the number of keys in a page of a comparison.
	scanItems = 10_000
)

// change is one difference between a checkpoint and the current state.
type change struct {
	key  string
	item *kv.Item // the checkpoint's item; nil if it has none
	now  int64    // the key's revision in the store; 0 if the store does not have it
}

// Reset restores the named state. It returns ErrUnknown, ErrReplaced, ErrBusy, or an error of the store.
func (c *Checkpoints) Reset(ctx context.Context, name string) (Outcome, error) {
	if err := c.busy.Acquire(ctx, 1); err != nil {
		return Outcome{}, fmt.Errorf("checkpoint: waiting for another: %w", err)
	}
	defer c.busy.Release(1)
	c.mu.Lock()
	wanted := c.named[name]
	c.mu.Unlock()
	if wanted == nil {
		return Outcome{}, fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	r := reset{Checkpoints: c, wanted: wanted, all: Outcome{Name: name}}
	defer func() {
		if r.release != nil {
			r.release()
		}
	}()
	for round := range maxRounds {
		before := len(r.all.writes)
		if err := r.round(ctx); err != nil {
			return r.all, err
		}
		written := r.all.writes[before:]
		if len(written) == 0 {
			return r.all, nil
		}
		if c.config.Await != nil {
			if err := c.config.Await(ctx, written); err != nil {
				return r.all, fmt.Errorf("checkpoint: %w", err)
			}
		}
		if round > 0 && !slices.ContainsFunc(written, func(w Write) bool { return c.holds(w.Key) }) {
			return r.all, nil
		}
	}
	return r.all, ErrBusy
}

// reset is the state of one Reset.
type reset struct {
	*Checkpoints
	wanted  *state
	all     Outcome
	release func() // result of Config.Pause; nil until that is called
}

// round writes the checkpoint's state to all stores.
func (r *reset) round(ctx context.Context) error {
	for i, store := range r.config.Stores {
		done, err := r.restore(ctx, store, &r.wanted.stores[i])
		if i > 0 {
			done.Revision = 0 // Outcome has the revision of the first store only
		}
		r.all.add(done)
		if err != nil {
			return err
		}
	}
	return nil
}

// pause stops the controllers that delete objects, unless they are stopped or changes restore nothing.
func (r *reset) pause(ctx context.Context, changes []change) error {
	if r.release != nil || r.config.Pause == nil || !slices.ContainsFunc(changes, func(ch change) bool { return ch.item != nil }) {
		return nil
	}
	var err error
	if r.release, r.all.Warnings, err = r.config.Pause(ctx); err != nil {
		return fmt.Errorf("checkpoint: stopping controllers: %w", err)
	}
	return nil
}

// restore writes the wanted state to store. It returns the changes, and a revision at which store had that state.
func (r *reset) restore(ctx context.Context, store kv.Store, wanted *storeState) (Outcome, error) {
	var all Outcome
	if wanted.equal != 0 { // try the revision first, because comparing may take much longer
		r.config.Fence.Raise()
		revision, err := store.Revision(ctx)
		if err != nil {
			return all, fmt.Errorf("checkpoint: comparing: %w", err)
		}
		if revision == wanted.equal && store.Replacements() == wanted.replacements {
			all.Revision = revision
			return all, nil
		}
	}
	for range maxRounds {
		// From now on, requests received earlier cannot write. They might delete restored objects, or rely on a
		// namespace or CRD that no longer exists.
		r.config.Fence.Raise()
		changes, revision, err := r.compare(ctx, store, wanted)
		if err != nil {
			return all, fmt.Errorf("checkpoint: comparing: %w", err)
		}
		if store.Replacements() != wanted.replacements {
			return all, ErrReplaced
		}
		if len(changes) == 0 {
			all.Revision, wanted.equal = revision, revision
			return all, nil
		}
		if err := r.pause(ctx, changes); err != nil {
			return all, err
		}
		done, err := r.write(ctx, store, changes)
		all.add(done)
		if err != nil {
			return all, fmt.Errorf("checkpoint: writing: %w", err)
		}
		if n := len(done.writes); n == len(changes) && done.Revision == revision+int64(n) {
			wanted.equal = done.Revision
			return all, nil // every revision since the comparison is one of these writes
		}
	}
	return all, ErrBusy
}

// compare returns the differences, and the revision at which the store was read.
func (c *Checkpoints) compare(ctx context.Context, store kv.Store, wanted *storeState) ([]change, int64, error) {
	var changes []change
	rest := wanted.items
	opts := kv.RangeOptions{Prefix: c.config.Prefix, KeysOnly: true, Limit: scanItems}
	revision, err := kv.RangeAll(ctx, store, opts, func(page kv.Page) error {
		for _, item := range page.Items {
			for len(rest) > 0 && rest[0].Key < item.Key {
				changes = append(changes, change{key: rest[0].Key, item: &rest[0]})
				rest = rest[1:]
			}
			switch {
			case len(rest) > 0 && rest[0].Key == item.Key:
				if rest[0].Revision != item.Revision {
					changes = append(changes, change{key: item.Key, item: &rest[0], now: item.Revision})
				}
				rest = rest[1:]
			case c.excluded(item.Key), item.Lease != 0 && item.CreateRevision <= wanted.revision:
			default:
				changes = append(changes, change{key: item.Key, now: item.Revision})
			}
		}
		return nil
	})
	for i := range rest {
		changes = append(changes, change{key: rest[i].Key, item: &rest[i]})
	}
	return changes, revision, err
}

// write writes changes, one phase after the other. It returns their number and the last committed revision. It skips
// keys that others have written meanwhile; the next comparison finds them.
func (c *Checkpoints) write(ctx context.Context, store kv.Store, changes []change) (Outcome, error) {
	var byPhase [phases][]change
	for _, ch := range changes {
		n := c.phase(ch)
		byPhase[n] = append(byPhase[n], ch)
	}
	var all Outcome
	for _, phase := range byPhase {
		done, err := writePhase(ctx, store, phase)
		all.add(done)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// writePhase writes changes in any order.
func writePhase(ctx context.Context, store kv.Store, changes []change) (Outcome, error) {
	outcomes := make([]Outcome, len(changes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range changes {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err // after another write has failed
			}
			return changes[i].write(ctx, store, &outcomes[i])
		})
	}
	err := group.Wait()
	var all Outcome
	for _, o := range outcomes {
		all.add(o)
	}
	return all, err
}

// add adds the counts of other.
func (o *Outcome) add(other Outcome) {
	o.Deleted += other.Deleted
	o.Restored += other.Restored
	o.Changed += other.Changed
	o.Revision = max(o.Revision, other.Revision)
	o.writes = append(o.writes, other.writes...)
}

// write writes the checkpoint's value of one key, unless the key has changed since the comparison. It adds the write
// to done and stores the new revision in the item, which no other change shares.
func (ch *change) write(ctx context.Context, store kv.Store, done *Outcome) error {
	count, put := &done.Deleted, ch.item != nil
	var result kv.WriteResult
	var err error
	if put {
		result, err = store.Put(ctx, ch.key, ch.item.Value, kv.PutOptions{IfRevision: ch.now})
		if count = &done.Changed; ch.now == 0 {
			count = &done.Restored
		}
	} else {
		result, err = store.Delete(ctx, ch.key, ch.now)
	}
	if !result.Committed { // the write has failed, or another client has written the key
		return err
	}
	if put {
		ch.item.Revision = result.Revision
	}
	*count++
	done.Revision = max(done.Revision, result.Revision)
	done.writes = append(done.writes, Write{Key: ch.key, Revision: result.Revision, Deleted: !put})
	return nil
}

// phases is the number of results of phase.
const phases = 4

// phase returns the phase in which a change is written. Objects that hold others, such as namespaces, are
// restored before all other changes, and deleted after their contents.
func (c *Checkpoints) phase(ch change) int {
	holds := c.holds(ch.key)
	switch {
	case holds && ch.item != nil:
		return 0
	case ch.item == nil && !holds:
		return 1
	case ch.item == nil:
		return 2
	default:
		return 3
	}
}

// holds reports whether the object of a key holds other objects.
func (c *Checkpoints) holds(key string) bool {
	path := key[len(c.config.Prefix):]
	return strings.HasPrefix(path, "namespaces/") || strings.HasPrefix(path, "apiextensions.k8s.io/customresourcedefinitions/")
}
