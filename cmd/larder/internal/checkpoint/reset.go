package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/kv"
)

const (
	// maxRounds is how often the state is compared and written before the others who
	// write are told of.
	maxRounds = 10
	// writers is how many writes are under way at a time: the store commits what waits
	// for it together.
	writers = 64
	// scanItems is how many keys a page of a comparison has.
	scanItems = 10_000
)

// change is one difference between a checkpoint and the present.
type change struct {
	key  string
	item *kv.Item // what the checkpoint has; nil if it has nothing
	now  int64    // the key's revision in the store; 0 if there is none
}

// Reset brings the state of that name back. It returns ErrUnknown, ErrReplaced, ErrBusy,
// or what the store returned.
func (c *Checkpoints) Reset(ctx context.Context, name string) (Outcome, error) {
	if err := c.begin(ctx); err != nil {
		return Outcome{}, err
	}
	defer c.end()
	c.mu.Lock()
	wanted := c.named[name]
	c.mu.Unlock()
	if wanted == nil {
		return Outcome{}, fmt.Errorf("%w: %q", ErrUnknown, name)
	}
	r := reset{Checkpoints: c, wanted: wanted, all: Outcome{Name: name}}
	defer r.resume()
	for round := range maxRounds {
		// What was received before does not write any more. In the first round, that may have
		// been deleting what is put back. Later, it may have been let in by what was in force
		// before the last round: by a namespace, or a definition, that is gone.
		c.config.Fence.Raise()
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

// reset is one Reset under way.
type reset struct {
	*Checkpoints
	wanted  *state
	all     Outcome
	release func() // what Config.Pause returned; nil before
}

// round makes all stores hold what is wanted.
func (r *reset) round(ctx context.Context) error {
	for i, store := range r.config.Stores {
		done, err := r.bringBack(ctx, store, &r.wanted.stores[i])
		first := r.all.Revision
		r.all.add(done)
		if err != nil {
			return err
		}
		if r.all.Revision = first; i == 0 {
			r.all.Revision = done.Revision
		}
	}
	return nil
}

// pause stops whatever deletes objects by itself, before anything is put back.
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

func (r *reset) resume() {
	if r.release != nil {
		r.release()
	}
}

// bringBack makes store hold what wanted says, and returns what that took and a revision
// at which it did.
func (r *reset) bringBack(ctx context.Context, store kv.Store, wanted *storeState) (Outcome, error) {
	var all Outcome
	if wanted.equal != 0 { // comparing may take much longer
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

// compare returns what differs, and the revision at which it did.
func (c *Checkpoints) compare(ctx context.Context, store kv.Store, wanted *storeState) ([]change, int64, error) {
	var changes []change
	rest := wanted.items
	opts := kv.RangeOptions{Prefix: c.config.Prefix, KeysOnly: true, Limit: scanItems}
	for {
		page, err := store.Range(ctx, opts)
		if err != nil {
			return nil, 0, err
		}
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
			case c.leftOut(item.Key), item.Lease != 0 && item.CreateRevision <= wanted.revision:
			default:
				changes = append(changes, change{key: item.Key, now: item.Revision})
			}
		}
		if !page.More || len(page.Items) == 0 {
			for i := range rest {
				changes = append(changes, change{key: rest[i].Key, item: &rest[i]})
			}
			return changes, page.Revision, nil
		}
		opts.Revision = page.Revision
		opts.Start = page.Items[len(page.Items)-1].Key + "\x00"
	}
}

// write writes changes, those of a phase after those of the phase before, and returns how
// many, and the last revision that one of them was committed at. A key that somebody else
// has written meanwhile is left for the next comparison.
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
	var next atomic.Int64
	outcomes := make([]Outcome, min(writers, len(changes)))
	group, ctx := errgroup.WithContext(ctx)
	for w := range outcomes {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(changes)); i = next.Add(1) - 1 {
				if err := changes[i].write(ctx, store, &outcomes[w]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	var all Outcome
	for _, o := range outcomes {
		all.add(o)
	}
	return all, err
}

// add counts what other did, too.
func (o *Outcome) add(other Outcome) {
	o.Deleted += other.Deleted
	o.Restored += other.Restored
	o.Changed += other.Changed
	o.Revision = max(o.Revision, other.Revision)
	o.writes = append(o.writes, other.writes...)
}

// write makes one key what the checkpoint has, if it still is what was compared, and counts
// that in done. No other change is of the same item, of which the new revision is noted.
func (ch *change) write(ctx context.Context, store kv.Store, done *Outcome) error {
	count, put := &done.Deleted, ch.item != nil
	var result kv.Result
	var err error
	if put {
		result, err = store.Put(ctx, ch.key, ch.item.Value, kv.PutOptions{IfRevision: ch.now})
		if count = &done.Changed; ch.now == 0 {
			count = &done.Restored
		}
	} else {
		result, err = store.Delete(ctx, ch.key, ch.now)
	}
	if err != nil || !result.Committed {
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

// phases is how many phases there are.
const phases = 4

// phase says when a change is written. What holds other objects is put back before
// anything else happens, and deleted after what it held.
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
