package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/larder-io/larder/kv"
)

const (
	// watchBuffer is how many responses, and events read from the upstream, wait for their reader.
	watchBuffer = 16
	// A watch ends after watchTimeout or up to twice as long, as informers' do.
	watchTimeout = 5 * time.Minute
	// earlyEnd is how much earlier than its timeout a watch may end without counting as cut short.
	earlyEnd = 10 * time.Second
	// maxSilence limits Silence. API servers send bookmarks each minute, but none while their revision stays the same.
	maxSilence = 90 * time.Second

	// Pauses before a watch is opened, after one failed to open or had to reload at once.
	retryFirst = 100 * time.Millisecond
	retryMax   = 5 * time.Second
)

var (
	errWatchEnded = errors.New("upstream ended the watch")
	errSilent     = fmt.Errorf("upstream sent nothing in %v", maxSilence)
	errNotOpened  = fmt.Errorf("upstream has not responded in %v", openTimeout)
)

// Watch opens a watch of all objects, whatever the prefix. It ends after some minutes; the reader resumes it at the last
// delivered revision.
func (s *Store) Watch(ctx context.Context, _ string, after int64) <-chan kv.WatchResponse {
	out := make(chan kv.WatchResponse, watchBuffer)
	inner, cancel := context.WithCancelCause(ctx)
	w := &watcher{store: s, out: out, cancel: cancel, probeRequested: make(chan struct{}, 1), sent: after, replacements: s.Replacements()}
	w.position.Store(after)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		cancel(nil)
		out <- kv.WatchResponse{Err: s.fail("watch", kv.ErrClosed)}
		close(out)
		return out
	}
	s.watches[w] = struct{}{}
	s.goroutines.Go(func() {
		defer s.remove(w)
		defer close(out)
		err := cause(inner, w.run(inner))
		cancel(nil)
		if ctx.Err() == nil {
			w.sendLast(ctx, kv.WatchResponse{Err: s.fail("watch", err)})
		}
	})
	return out
}

func (s *Store) remove(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// endWatches ends all open watches.
func (s *Store) endWatches(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.cancel(reason)
	}
}

// RequestProgress asks each open watch to prove progress.
func (s *Store) RequestProgress(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		select {
		case w.probeRequested <- struct{}{}:
		default: // a probe that has not begun serves this caller, too
		}
	}
	return nil
}

// watcher is one watch.
type watcher struct {
	store          *Store
	out            chan<- kv.WatchResponse
	cancel         context.CancelCauseFunc
	probeRequested chan struct{} // has an element when a probe must begin
	replacements   uint64

	// position is the revision up to which everything was delivered. The watch's goroutine writes it.
	position atomic.Int64
	sent     int64        // the position last reported to the reader
	next     []kv.Batch   // to deliver
	probed   *probeResult // the last one, if useProbeResult has not used it yet
}

// sendLast sends the last response, unless the reader has left.
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

// run follows the upstream until the watch ends, and returns why.
func (w *watcher) run(ctx context.Context) error {
	s := w.store
	if w.position.Load() < 1 {
		return kv.ErrCompacted // kube-apiserver starts a watch from 0 at any revision
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	timeout := watchTimeout + rand.N(watchTimeout)
	frames, err := w.connect(ctx, timeout)
	if err != nil {
		return err
	}
	events, probed := make(chan result, watchBuffer), make(chan *probeResult)
	group.Go(func() { frames.copy(ctx, events) })
	group.Go(func() { w.probes(ctx, probed) })
	began := time.Now()
	err = w.deliver(ctx, events, probed)
	if s.config.Redefined && errors.Is(err, errWatchEnded) && time.Since(began) < timeout-earlyEnd {
		err = fmt.Errorf("%w: %w early", kv.ErrCompacted, err)
	}
	if errors.Is(err, kv.ErrCompacted) && time.Since(began) < earlyEnd {
		s.slowDown(err) // each makes the reader load again
	} else {
		s.delay.Store(0)
	}
	s.openingIgnored.Store(s.openingIgnored.Load() || errors.Is(err, errSilent))
	return err
}

// connect opens the watch of the upstream, after a pause if the last attempt failed. It first reads the revision:
// a watch of a restored upstream would wait for revisions that the old history already had.
func (w *watcher) connect(ctx context.Context, timeout time.Duration) (*stream, error) {
	s := w.store
	if delay := time.Duration(s.delay.Load()); delay > 0 {
		if err := sleep(ctx, delay/2+rand.N(delay/2)); err != nil {
			return nil, err
		}
	}
	_, err := s.Revision(ctx)
	var frames *stream
	if err == nil {
		frames, err = s.openStream(ctx, w.position.Load(), timeout)
		var refusal *error
		if IsRefusal(err) {
			refusal = &err
		}
		s.watchRefusal.Store(refusal)
	}
	if err == nil && !s.openingIgnored.Load() {
		s.resetSilence()
		s.openingIgnored.Store(true) // until it sends something
	} else if err != nil && ctx.Err() == nil {
		s.slowDown(err)
	}
	return frames, err
}

// slowDown raises the pause before the next watch.
func (s *Store) slowDown(err error) {
	delay := min(max(2*time.Duration(s.delay.Load()), retryFirst), retryMax)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		delay = max(delay, min(time.Duration(seconds)*time.Second, 6*retryMax))
	}
	s.delay.Store(int64(delay))
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver passes on the upstream's events until the watch ends, and returns the reason.
func (w *watcher) deliver(ctx context.Context, events <-chan result, probed <-chan *probeResult) error {
	silence := time.NewTimer(maxSilence)
	defer silence.Stop()
	for {
		var err error
		select {
		case r := <-events:
			err = w.addEvents(r, events)
		case w.probed = <-probed:
		case <-silence.C:
			rest := maxSilence - w.store.Silence()
			if silence.Reset(rest); rest <= 0 {
				err = errSilent
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		if err == nil {
			w.useProbeResult()
		}
		if err := cmp.Or(w.send(ctx), err); err != nil {
			return err
		}
	}
}

// addEvents adds an event, and all later ones that have already arrived.
func (w *watcher) addEvents(r result, events <-chan result) error {
	for {
		if r.err != nil {
			return r.err
		}
		if err := w.addEvent(r.event); err != nil || len(w.next) >= watchBuffer {
			return err
		}
		select {
		case r = <-events:
		default:
			return nil
		}
	}
}

// addEvent queues one event for the reader. Events arrive in the order of their revisions, and each has
// its own revision. If one is late, the reader must reload.
func (w *watcher) addEvent(e event) error {
	if e.kind == 0 {
		w.advance(e.revision)
		return nil
	}
	changed := kv.Event{Key: w.store.config.Prefix + e.key, Value: e.value, Revision: e.revision, Kind: e.kind}
	if e.kind == kv.Delete {
		changed.Value = nil
	}
	if e.revision <= w.position.Load() {
		return fmt.Errorf("%w: upstream sent %s at revision %d late", kv.ErrCompacted, changed.Key, e.revision)
	}
	w.next = append(w.next, kv.Batch{Revision: e.revision, Events: []kv.Event{changed}})
	w.advance(e.revision)
	return nil
}

// advance raises the position: everything up to it was delivered or is about to be.
func (w *watcher) advance(revision int64) {
	w.store.resetSilence()
	if revision > w.position.Load() {
		w.position.Store(revision)
	}
}

// send delivers due responses.
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
