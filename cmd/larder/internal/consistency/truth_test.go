package consistency

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch/watchtest"
)

// truth is the history that an independent etcd client has received.
type truth struct {
	store *kv.Etcd

	mu      sync.Mutex
	batches []kv.Batch
	present map[string]kv.Event // the last event of each key
	last    int64
	err     error // set if the log has a gap
}

// follow watches from revision 1 until the test ends.
func follow(t *testing.T, urls []string) *truth {
	t.Helper()
	store, err := kv.NewExternal(kv.ExternalConfig{StoreConfig: kv.StoreConfig{Prefix: "/registry"}, Endpoints: urls})
	if err != nil {
		t.Fatal(err)
	}
	tr := &truth{store: store, present: make(map[string]kv.Event)}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { store.Run(ctx) })
	group.Go(func() { tr.watch(ctx) })
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	return tr
}

func (tr *truth) watch(ctx context.Context) {
	select {
	case <-tr.store.Ready():
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		for response := range tr.store.Watch(ctx, "/registry/", tr.newest()) {
			tr.take(response)
		}
		select {
		case <-time.After(20 * time.Millisecond): // there is no leader
		case <-ctx.Done():
		}
	}
}

func (tr *truth) take(response kv.WatchResponse) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if errors.Is(response.Err, kv.ErrCompacted) || errors.Is(response.Err, kv.ErrReplaced) {
		tr.err = response.Err
	}
	for _, batch := range response.Batches {
		if batch.Revision <= tr.last {
			tr.err = fmt.Errorf("etcd's watch went back from %d to %d", tr.last, batch.Revision)
		}
		tr.last = batch.Revision
		batch.Events = slices.DeleteFunc(batch.Events, func(event kv.Event) bool { return resourceOf(event.Key) == nil })
		for i := range batch.Events {
			event := &batch.Events[i]
			if len(event.Value) > 8<<10 { // the checks use only the beginning of large values
				event.Value = bytes.Clone(payloads.Find(event.Value))
			}
			tr.present[event.Key] = *event
		}
		if len(batch.Events) > 0 {
			tr.batches = append(tr.batches, batch)
		}
	}
}

// revisions returns the revisions of a resource's objects, by name.
func (tr *truth) revisions(of *resource) map[string]int64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	found := make(map[string]int64)
	for key, event := range tr.present {
		if name, ok := strings.CutPrefix(key, of.prefix); ok && event.Kind != kv.Delete {
			found[name] = event.Revision
		}
	}
	return found
}

// latest returns the newest known event of a key, or one with revision 0.
func (tr *truth) latest(key string) kv.Event {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	event := tr.present[prefix+key]
	if event.Kind == kv.Delete {
		return kv.Event{}
	}
	return event
}

func (tr *truth) newest() int64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.last
}

// await waits until everything up to an object's revision is known.
func (tr *truth) await(t *testing.T, revision int64) {
	t.Helper()
	proctest.Eventually(t, "the etcd client has the revision", func() error {
		if newest := tr.newest(); newest < revision {
			return fmt.Errorf("the client is at revision %d, want %d", newest, revision)
		}
		return nil
	})
}

// entry is a change in the log.
type entry struct {
	revision int64
	key      string
	payload  payload // id 0 means a deletion
	replaced int64   // revision of the replaced version; 0 means none
}

// past is the truth of one resource, as the checks read it.
type past struct {
	entries []entry
	history watchtest.History
	byKey   map[string][]entry
}

// changes returns the number of changes in a revision.
func (p *past) changes(revision int64) (n int) {
	at, _ := slices.BinarySearchFunc(p.entries, revision, func(e entry, r int64) int { return cmp.Compare(e.revision, r) })
	for ; at < len(p.entries) && p.entries[at].revision == revision; at++ {
		n++
	}
	return n
}

// past returns the past of a resource.
func (tr *truth) past(t *testing.T, of *resource) *past {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.err != nil {
		t.Fatalf("invalid: the log of the truth has a gap: %v", tr.err)
	}
	p := &past{byKey: make(map[string][]entry)}
	for _, batch := range tr.batches {
		var changes []watchtest.Change
		for _, event := range batch.Events {
			key, of := strings.CutPrefix(event.Key, of.prefix)
			if !of {
				continue
			}
			e := entry{revision: batch.Revision, key: key}
			if before := p.byKey[key]; len(before) > 0 && before[len(before)-1].payload.id != 0 {
				e.replaced = before[len(before)-1].revision
			}
			change := watchtest.Change{Key: key}
			if event.Kind != kv.Delete {
				found := false
				if e.payload, found = readPayload(event.Value); !found {
					t.Fatalf("invalid: %s@%d has no payload", key, batch.Revision)
				}
				change.State = &watchtest.State{
					Key: key, Revision: batch.Revision, Labels: map[string]string{"g": e.payload.group}, Digest: e.payload.String(),
				}
			}
			changes = append(changes, change)
			p.entries = append(p.entries, e)
			p.byKey[key] = append(p.byKey[key], e)
		}
		if len(changes) > 0 {
			p.history.Add(batch.Revision, changes...)
		}
	}
	return p
}
