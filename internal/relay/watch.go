package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/larder-io/larder/kv"
)

const (
	// watchBuffer is how many responses, and events read from upstream, wait for their reader.
	watchBuffer = 16
	// A watch ends after watchTimeout or up to twice as long, as informers' do.
	watchTimeout = 5 * time.Minute
	// earlyEnd is how much before its time a watch may end that upstream does not cut short.
	earlyEnd = 10 * time.Second
	// maxSilence is how long a watch may be without an event or a bookmark. Bookmarks come each minute.
	maxSilence = 90 * time.Second
	// settleTime is how long a deletion waits for others of the same revision.
	settleTime = 20 * time.Millisecond

	// Pauses before a watch is opened after one could not be opened.
	retryFirst = 100 * time.Millisecond
	retryMax   = 5 * time.Second
)

var (
	errWatchEnded = errors.New("upstream ended the watch")
	errSilent     = fmt.Errorf("upstream sent nothing in %v", maxSilence)
	errNotOpened  = fmt.Errorf("upstream has not answered in %v", openTimeout)
)

// Watch opens one watch of the objects below a prefix, which ends after some minutes: the reader resumes it at
// the revision that was delivered last. Only one watch of a prefix may be open.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) <-chan kv.WatchResponse {
	out := make(chan kv.WatchResponse, watchBuffer)
	inner, cancel := context.WithCancelCause(ctx)
	w := &watcher{store: s, prefix: prefix, out: out, cancel: cancel, kick: make(chan struct{}, 1),
		sent: after, replacements: s.history.mark().replacements}
	w.position.Store(after)
	if !s.add(ctx, inner, w) {
		cancel(nil)
		out <- kv.WatchResponse{Err: s.fail("watch", kv.ErrClosed)}
		close(out)
	}
	return out
}

// add starts the goroutine of a watch. It reports whether the store is still open.
func (s *Store) add(ctx, inner context.Context, w *watcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.watches[w] = struct{}{}
	s.goroutines.Go(func() {
		defer s.remove(w)
		defer close(w.out)
		err := cause(inner, w.run(inner))
		w.cancel(nil)
		if errors.Is(err, kv.ErrCompacted) || errors.Is(err, kv.ErrReplaced) {
			s.setUnproven(w.prefix, kv.Batch{}) // the reader loads again
		}
		if ctx.Err() == nil {
			w.sendLast(ctx, kv.WatchResponse{Err: s.fail("watch", err)})
		}
	})
	return true
}

func (s *Store) remove(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// endWatches ends all open watches.
func (s *Store) endWatches(reason error) {
	for _, w := range s.open() {
		w.cancel(reason)
	}
}

// open returns the open watches.
func (s *Store) open() []*watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make([]*watcher, 0, len(s.watches))
	for w := range s.watches {
		open = append(open, w)
	}
	return open
}

// RequestProgress asks each open watch to prove progress.
func (s *Store) RequestProgress(ctx context.Context) error {
	_, done, err := s.begin(ctx)
	if err != nil {
		return s.fail("request progress", err)
	}
	defer done()
	for _, w := range s.open() {
		select {
		case w.kick <- struct{}{}:
		default: // a probe that has not begun serves this caller, too
		}
	}
	return nil
}

// watcher is one watch.
type watcher struct {
	store        *Store
	prefix       string
	at           scope
	out          chan<- kv.WatchResponse
	cancel       context.CancelCauseFunc
	kick         chan struct{} // has an element if a probe shall begin
	replacements uint64

	// position is the revision up to which everything was delivered. The watch's goroutine writes it.
	position atomic.Int64
	sent     int64      // the position that the reader was told
	next     []kv.Batch // to deliver
	// held is the batch that may not be complete yet. It is later than next.
	held  kv.Batch
	proof *proof // that is not used yet
}

// sendLast sends the last response, unless the reader is gone.
func (w *watcher) sendLast(ctx context.Context, last kv.WatchResponse) {
	select {
	case w.out <- last:
	default:
		select {
		case w.out <- last:
		case <-ctx.Done():
		case <-w.store.ctx.Done():
		}
	}
}

// run follows upstream until the watch ends, and returns why.
func (w *watcher) run(ctx context.Context) error {
	s := w.store
	var err error
	if w.at, err = s.scopeOf(w.prefix); err == nil && w.at.name != "" {
		err = fmt.Errorf("watch of the single key %q", w.prefix)
	}
	if err != nil {
		return err
	}
	if w.position.Load() < 1 {
		return kv.ErrCompacted // 0 means another thing upstream
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	frames, err := w.connect(ctx)
	if err != nil {
		cancel()
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	events, proofs := make(chan result, watchBuffer), make(chan *proof)
	group.Go(func() { frames.copy(ctx, events) })
	group.Go(func() { w.probes(ctx, proofs) })
	began := time.Now()
	err = w.deliver(ctx, events, proofs)
	if s.config.Redefined && errors.Is(err, errWatchEnded) && time.Since(began) < watchTimeout-earlyEnd {
		return fmt.Errorf("%w: %w early", kv.ErrCompacted, err)
	}
	return err
}

// connect opens the watch upstream. It pauses before if the last attempt failed. It reads the revision first:
// a watch of a restored upstream would wait for revisions to come that the old history had.
func (w *watcher) connect(ctx context.Context) (*stream, error) {
	s := w.store
	if delay := time.Duration(s.delay.Load()); delay > 0 {
		if err := sleep(ctx, delay/2+rand.N(delay/2)); err != nil {
			return nil, err
		}
	}
	_, err := s.Revision(ctx)
	var frames *stream
	if err == nil {
		frames, err = s.openStream(ctx, w.at.namespace, w.from(), watchTimeout+rand.N(watchTimeout))
	}
	switch {
	case err == nil:
		s.delay.Store(0)
	case ctx.Err() == nil && !errors.Is(err, kv.ErrCompacted):
		delay := min(max(2*time.Duration(s.delay.Load()), retryFirst), retryMax)
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			delay = max(delay, min(time.Duration(seconds)*time.Second, 6*retryMax))
		}
		s.delay.Store(int64(delay))
	}
	return frames, err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// from returns the revision after which a watch or a probe must begin: the position, or one less if upstream
// may have more events of that revision.
func (w *watcher) from() int64 {
	position := w.position.Load()
	if w.unproven(position) != nil {
		return position - 1
	}
	return position
}

// unproven returns the events delivered last, if they are of a revision and upstream may have more of it.
func (w *watcher) unproven(revision int64) []kv.Event {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if batch := w.store.unproven[w.prefix]; batch.Revision == revision {
		return batch.Events
	}
	return nil
}

// deliver sends what upstream sends until the watch ends, and returns why. What is held then was not
// delivered, and the next watch gets it again.
func (w *watcher) deliver(ctx context.Context, events <-chan result, proofs <-chan *proof) error {
	silence, settle := time.NewTimer(maxSilence), time.NewTimer(maxSilence)
	defer silence.Stop()
	defer settle.Stop()
	for {
		heard := false
		var err error
		select {
		case r := <-events:
			err, heard = w.takeAll(r, events), true
		case w.proof = <-proofs:
		case <-settle.C:
			select {
			case r := <-events: // the time has passed because this goroutine waited
				err, heard = w.takeAll(r, events), true
			default:
				w.settle()
			}
		case <-silence.C:
			err = errSilent
		case <-ctx.Done():
			return ctx.Err()
		}
		if err == nil {
			w.useProof()
		}
		if err := cmp.Or(w.send(ctx), err); err != nil {
			return err
		}
		if heard {
			silence.Reset(maxSilence)
		}
		if heard && len(w.held.Events) > 0 {
			settle.Reset(settleTime)
		}
	}
}

// takeAll takes in an event and all that have already come after it.
func (w *watcher) takeAll(r result, events <-chan result) error {
	for {
		if r.err != nil {
			return r.err
		}
		if err := w.take(r.event); err != nil || len(w.next) >= watchBuffer {
			return err
		}
		select {
		case r = <-events:
		default:
			return nil
		}
	}
}

// take takes in one event. Events come in the order of their revisions. An event of a revision that was
// delivered before is known, or the revision was not delivered whole: then the reader must load again.
func (w *watcher) take(e event) error {
	if e.kind == 0 {
		if e.revision > w.held.Revision {
			w.release()
			w.advance(e.revision)
		}
		return nil
	}
	changed := kv.Event{Key: w.store.config.Prefix + e.key, Value: e.value, Revision: e.revision, Kind: e.kind}
	if e.kind == kv.Delete {
		changed.Value = nil
	}
	switch {
	case e.revision == w.held.Revision:
		w.held.Events = append(w.held.Events, changed)
		return nil
	case e.revision <= max(w.held.Revision, w.position.Load()):
		if hasKey(w.unproven(e.revision), changed.Key) {
			return nil
		}
		return fmt.Errorf("%w: upstream sent %s at revision %d late", kv.ErrCompacted, changed.Key, e.revision)
	}
	w.release()
	w.held = kv.Batch{Revision: e.revision, Events: []kv.Event{changed}}
	if !w.store.shares || e.kind != kv.Delete {
		w.release()
	}
	return nil
}

func hasKey(events []kv.Event, key string) bool {
	return slices.ContainsFunc(events, func(e kv.Event) bool { return e.Key == key })
}

// release delivers the held batch, which is complete.
func (w *watcher) release() {
	if len(w.held.Events) > 0 {
		w.next = append(w.next, w.held)
		w.advance(w.held.Revision)
		w.held = kv.Batch{}
	}
}

// settle delivers the held batch, which is probably complete. The position is raised last: from must not
// see it without the batch.
func (w *watcher) settle() {
	if len(w.held.Events) > 0 {
		w.store.setUnproven(w.prefix, w.held)
		w.release()
	}
}

// setUnproven notes the last batch of the watch of a prefix, if upstream may have more of its revision.
func (s *Store) setUnproven(prefix string, batch kv.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unproven[prefix] = batch
}

// advance raises the position: everything up to it was delivered or is about to be.
func (w *watcher) advance(revision int64) {
	if revision > w.position.Load() {
		w.position.Store(revision)
	}
}

// send delivers what is due.
func (w *watcher) send(ctx context.Context) error {
	position := w.position.Load()
	if position <= w.sent {
		return nil
	}
	w.store.history.raise(w.replacements, position)
	select {
	case w.out <- kv.WatchResponse{Batches: w.next, Progress: position}:
		w.next, w.sent = nil, position
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
