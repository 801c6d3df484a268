package kv

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// watchBuffer is how many responses a watch may be ahead of its reader; beyond
// them etcd's client keeps what has arrived.
const watchBuffer = 16

// watches holds the open watches of a store.
type watches struct {
	wait sync.WaitGroup // the watches' goroutines

	mu     sync.Mutex
	closed bool
	// slots number the streams to etcd; nil ones are free. The client finds a
	// stream by the context's metadata and a watch that ends may leave its stream
	// behind, which the next user of the slot takes over.
	slots []*watch
}

// watch is one open watch.
type watch struct {
	slot     int
	internal bool // needs no progress
	cancel   context.CancelCauseFunc
}

func (w *watches) add(cancel context.CancelCauseFunc, internal bool) *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	slot := slices.Index(w.slots, nil)
	if slot < 0 {
		slot = len(w.slots)
		w.slots = append(w.slots, nil)
	}
	w.wait.Add(1)
	w.slots[slot] = &watch{slot: slot, internal: internal, cancel: cancel}
	return w.slots[slot]
}

func (w *watches) remove(watch *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slots[watch.slot] = nil
	w.wait.Done()
}

// each calls fn with every open watch.
func (w *watches) each(fn func(*watch)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watch := range w.slots {
		if watch != nil {
			fn(watch)
		}
	}
}

// replaced ends all watches because the store is not the one it was.
func (w *watches) replaced() {
	w.each(func(watch *watch) { watch.cancel(ErrReplaced) })
}

// close ends all watches and waits for them.
func (w *watches) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.each(func(watch *watch) { watch.cancel(ErrClosed) })
	w.wait.Wait()
}

// streamContext returns ctx with the metadata that names the stream of a slot and
// asks etcd to end it while there is no leader. A stream of its own keeps a watch
// that is catching up from holding back the progress of the others.
func streamContext(ctx context.Context, slot int) context.Context {
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader,
		"larder-watch", strconv.Itoa(slot),
	))
}

// Watch delivers every event under the prefix with a revision > after.
func (e *Etcd) Watch(ctx context.Context, prefix string, after int64) <-chan WatchResponse {
	return e.watch(ctx, prefix, after, false)
}

func (e *Etcd) watch(ctx context.Context, prefix string, after int64, internal bool) <-chan WatchResponse {
	out := make(chan WatchResponse, watchBuffer)
	inner, cancel := context.WithCancelCause(ctx)
	watch := e.watches.add(cancel, internal)
	if watch == nil {
		cancel(ErrClosed)
		out <- WatchResponse{Err: e.fail("watch", prefix, ErrClosed)}
		close(out)
		return out
	}
	go func() {
		defer e.watches.remove(watch)
		defer cancel(nil)
		defer close(out)
		err := e.follow(inner, watch.slot, prefix, after, out)
		if ctx.Err() != nil {
			return
		}
		if cause := context.Cause(inner); cause != nil {
			err = cause
		}
		last := WatchResponse{Err: e.fail("watch", prefix, err)}
		if errors.Is(err, ErrClosed) { // nobody may be reading any more
			select {
			case out <- last:
			default:
			}
			return
		}
		select {
		case out <- last:
		case <-ctx.Done():
		}
	}()
	return out
}

// follow copies one etcd watch to out until it ends and returns why.
func (e *Etcd) follow(ctx context.Context, slot int, prefix string, after int64, out chan<- WatchResponse) error {
	client, err := e.client(ctx)
	if err != nil {
		return err
	}
	opts := []clientv3.OpOption{clientv3.WithRange(prefixEnd(prefix)), clientv3.WithRev(after + 1)}
	from := prefix
	if from == "" {
		from = "\x00"
	}
	delivered := after
	for resp := range client.Watcher.Watch(streamContext(ctx, slot), from, opts...) {
		if resp.CompactRevision > 0 {
			raise(&e.compaction.observed, resp.CompactRevision)
		}
		if err := resp.Err(); err != nil {
			return err
		}
		if e.history.foreign(resp.Header) {
			return ErrReplaced
		}
		response := WatchResponse{Batches: batchesOf(resp.Events, delivered)}
		switch {
		case len(response.Batches) > 0:
			response.Progress = response.Batches[len(response.Batches)-1].Revision
		case resp.IsProgressNotify() && resp.Header.Revision >= delivered:
			response.Progress = resp.Header.Revision
		default:
			continue // a repetition, or progress of a member that lags behind
		}
		delivered = response.Progress
		select {
		case out <- response:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return errWatchEnded
}

// errWatchEnded stands for the reason that etcd's client did not give.
var errWatchEnded = errors.New("etcdclient: watch ended")

// RequestProgress asks for a progress response in every open watch.
func (e *Etcd) RequestProgress(ctx context.Context) error {
	client, err := e.client(ctx)
	if err != nil {
		return e.fail("request progress", "", err)
	}
	var slots []int
	e.watches.each(func(watch *watch) {
		if !watch.internal {
			slots = append(slots, watch.slot)
		}
	})
	for _, slot := range slots {
		if err := client.Watcher.RequestProgress(streamContext(ctx, slot)); err != nil {
			return e.fail("request progress", "", err)
		}
	}
	return nil
}

// batchesOf groups events of revisions > after by revision. etcd sends whole
// revisions, in order.
func batchesOf(events []*mvccpb.Event, after int64) []Batch {
	for len(events) > 0 && events[0].Kv.ModRevision <= after {
		events = events[1:]
	}
	switch len(events) {
	case 0:
		return nil
	case 1:
		single := &struct { // one allocation for the usual case
			batch [1]Batch
			event [1]Event
		}{}
		single.event[0] = eventOf(events[0])
		single.batch[0] = Batch{Revision: single.event[0].Revision, Events: single.event[:]}
		return single.batch[:]
	}
	converted := make([]Event, len(events))
	revisions := 0
	for i, event := range events {
		converted[i] = eventOf(event)
		if i == 0 || converted[i].Revision != converted[i-1].Revision {
			revisions++
		}
	}
	batches := make([]Batch, 0, revisions)
	first := 0
	for i := range converted {
		if i+1 == len(converted) || converted[i+1].Revision != converted[i].Revision {
			batches = append(batches, Batch{Revision: converted[i].Revision, Events: converted[first : i+1 : i+1]})
			first = i + 1
		}
	}
	return batches
}

func eventOf(event *mvccpb.Event) Event {
	kv := event.Kv
	converted := Event{Key: string(kv.Key), Revision: kv.ModRevision}
	switch {
	case event.Type == mvccpb.Event_DELETE:
		converted.Kind = Delete
	case kv.CreateRevision == kv.ModRevision:
		converted.Kind, converted.Value = Create, kv.Value
	default:
		converted.Kind, converted.Value = Update, kv.Value
	}
	return converted
}
