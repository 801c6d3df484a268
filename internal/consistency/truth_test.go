package consistency

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/watch/watchtest"
)

// truth is what happened, as an independent client of etcd sees it.
type truth struct {
	store *kv.Etcd

	mu      sync.Mutex
	batches []kv.Batch
	present map[string]kv.Event // the last one, by key
	last    int64
	err     error // the log has a gap
}

// follow begins to watch at revision 1 and goes on until the test ends.
func follow(t *testing.T, urls []string) *truth {
	t.Helper()
	store, err := kv.NewExternal(kv.ExternalConfig{Endpoints: urls, Prefix: "/registry"})
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
		store.Close()
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
		for response := range tr.store.Watch(ctx, prefix, tr.newest()) {
			tr.take(response)
		}
		select {
		case <-time.After(20 * time.Millisecond): // the leader is away
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
			tr.err = fmt.Errorf("etcd's own watch went back from %d to %d", tr.last, batch.Revision)
		}
		tr.batches, tr.last = append(tr.batches, batch), batch.Revision
		for _, event := range batch.Events {
			tr.present[event.Key] = event
		}
	}
}

// latest is the present item of a key, as far as is known yet: without a Value and with
// revision 0 if there is none.
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

// await returns once everything up to a revision of an object is known.
func (tr *truth) await(t *testing.T, revision int64) {
	t.Helper()
	proctest.Eventually(t, "invalid: the truth is known", func() error {
		if newest := tr.newest(); newest < revision {
			return fmt.Errorf("it stands at %d, not %d", newest, revision)
		}
		return nil
	})
}

// entry is one change of the log.
type entry struct {
	revision int64
	key      string
	payload  payload // id 0 for a deletion
	replaced int64   // revision of what was there before, 0 if nothing was
}

// past is the truth in the forms that checkers read.
type past struct {
	entries []entry
	history watchtest.History
	byKey   map[string][]entry
}

func (tr *truth) past(t *testing.T) *past {
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
			key := strings.TrimPrefix(event.Key, prefix)
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
		p.history.Add(batch.Revision, changes...)
	}
	return p
}
