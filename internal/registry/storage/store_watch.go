package storage

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/watch"
)

const (
	// BookmarkInterval is the approximate time between two bookmarks of a watch. LastBookmark is the time from its last
	// bookmark to its end. Both are those of upstream's watch cache (apiserver pkg/storage/cacher/cacher.go).
	BookmarkInterval, LastBookmark = time.Minute, 2 * time.Second

	// progressEvery is how often etcd notifies kube-apiserver of progress.
	progressEvery = 5 * time.Second

	storeWatchBuffer = 100
)

// storeWatch is upstream's watch.Interface over a watch.Watcher. Receivers own the decoded objects. It ends when its
// context ends, when it is stopped or when the Watcher ends, and then closes the channel. A panic ends only this watch,
// with an ERROR event.
type storeWatch struct {
	codec          *encoding.Codec
	watcher        *watch.Watcher
	selects        *storage.SelectionPredicate // applied to converted objects; nil if the watcher selects
	every          time.Duration               // between bookmarks; 0 is none
	omitInitialEnd bool                        // do not send the bookmark that ends the initial events
	result         chan apiwatch.Event
	cancel         context.CancelFunc
}

// newStoreWatch returns a watch of the deliveries of w. converted says that w selects everything, and that the watch
// applies the predicate of opts to converted objects.
func newStoreWatch(ctx context.Context, c *encoding.Codec, w *watch.Watcher, opts storage.ListOptions, converted bool) *storeWatch {
	ctx, cancel := context.WithCancel(ctx)
	s := &storeWatch{
		codec:          c,
		watcher:        w,
		omitInitialEnd: opts.SendInitialEvents == nil,
		result:         make(chan apiwatch.Event, storeWatchBuffer),
		cancel:         cancel,
	}
	if converted {
		s.selects = &opts.Predicate
	}
	switch {
	case opts.ProgressNotify:
		s.every = progressEvery
	case opts.Predicate.AllowWatchBookmarks:
		s.every = BookmarkInterval
	}
	go s.run(ctx)
	return s
}

func (s *storeWatch) ResultChan() <-chan apiwatch.Event { return s.result }

func (s *storeWatch) Stop() { s.cancel() }

func (s *storeWatch) run(ctx context.Context) {
	defer close(s.result)
	defer s.watcher.Close()
	defer s.reportPanic(ctx)
	defer utilflowcontrol.WatchInitialized(ctx)
	if err := s.follow(ctx); err != nil && !errors.Is(err, io.EOF) {
		s.send(ctx, apiwatch.Event{Type: apiwatch.Error, Object: WatchStatus(err)})
	}
}

// reportPanic recovers a panic, logs it and sends an ERROR event.
func (s *storeWatch) reportPanic(ctx context.Context) {
	p := recover()
	if p == nil {
		return
	}
	klog.ErrorS(nil, "Watch panicked", "panic", p, "stack", string(debug.Stack()))
	s.send(ctx, apiwatch.Event{Type: apiwatch.Error, Object: WatchStatus(errors.New("registry: the watch panicked"))})
}

// follow sends events until ctx ends, and then returns nil, or the Watcher ends. It notifies flow control when the
// initial events have been sent.
func (s *storeWatch) follow(ctx context.Context) error {
	periodic, last := s.bookmarkTimes(ctx)
	deliveries := make([]watch.Delivery, 0, storeWatchBuffer)
	initial, owed := true, false // owed says that a bookmark is due
	for {
		var err error
		if deliveries, err = s.watcher.Poll(deliveries[:0]); err != nil {
			return err
		}
		for _, d := range deliveries {
			if ok, err := s.deliver(ctx, d); err != nil || !ok {
				return err
			}
		}
		if len(deliveries) > 0 {
			continue
		}
		if initial {
			initial = false
			utilflowcontrol.WatchInitialized(ctx)
		}
		var retry <-chan time.Time
		if owed {
			d, there := s.watcher.Bookmark()
			if owed = !there; owed { // the watcher has more events
				retry = time.After(100 * time.Millisecond)
			} else if ok, err := s.deliver(ctx, d); err != nil || !ok {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.watcher.Ready():
		case <-periodic:
			owed = true
		case <-last:
			owed = true
		case <-retry:
		}
	}
}

// bookmarkTimes returns when bookmarks are due: periodically, and shortly before the watch's deadline.
func (s *storeWatch) bookmarkTimes(ctx context.Context) (periodic, last <-chan time.Time) {
	if s.every == 0 {
		return nil, nil
	}
	if deadline, ok := ctx.Deadline(); ok {
		last = time.After(max(0, time.Until(deadline)-LastBookmark))
	}
	return time.Tick(s.every), last
}

// deliver sends d and reports whether to continue.
func (s *storeWatch) deliver(ctx context.Context, d watch.Delivery) (bool, error) {
	if d.Type == watch.InitialEnd && s.omitInitialEnd {
		return true, nil
	}
	event, err := s.event(ctx, d)
	switch {
	case err != nil && ctx.Err() != nil: // the watch ended while a webhook converted
		return false, nil
	case err != nil:
		return false, err
	}
	return event.Object == nil || s.send(ctx, event), nil
}

// event returns the event for d, without an object if there is nothing to send.
func (s *storeWatch) event(ctx context.Context, d watch.Delivery) (apiwatch.Event, error) {
	var (
		obj runtime.Object
		err error
	)
	switch {
	case d.Type == watch.Bookmark, d.Type == watch.InitialEnd:
		obj, err = s.codec.Bookmark(d.Revision, d.Type == watch.InitialEnd)
		return apiwatch.Event{Type: apiwatch.Bookmark, Object: obj}, err
	case s.selects != nil:
		return s.transition(ctx, d)
	case d.Type == watch.Deleted:
		obj, err = s.codec.Internal(ctx, d.Object, d.Revision)
	default:
		obj, err = s.codec.Internal(ctx, d.Object, 0)
	}
	return apiwatch.Event{Type: apiwatch.EventType(d.Type.String()), Object: obj}, err
}

// transition applies the predicate to the objects before and after d, by the rule of package
// watch.
func (s *storeWatch) transition(ctx context.Context, d watch.Delivery) (apiwatch.Event, error) {
	before, err := s.selected(ctx, d.Prev(), d.Revision)
	if err != nil {
		return apiwatch.Event{}, err
	}
	var now runtime.Object
	if d.Type != watch.Deleted {
		if now, err = s.selected(ctx, d.Object, 0); err != nil {
			return apiwatch.Event{}, err
		}
	}
	switch {
	case now == nil:
		return apiwatch.Event{Type: apiwatch.Deleted, Object: before}, nil
	case before == nil:
		return apiwatch.Event{Type: apiwatch.Added, Object: now}, nil
	default:
		return apiwatch.Event{Type: apiwatch.Modified, Object: now}, nil
	}
}

// selected decodes o, with another resourceVersion if that is not 0. It returns nil if the
// predicate does not select o.
func (s *storeWatch) selected(ctx context.Context, o *cache.Object, revision int64) (runtime.Object, error) {
	if o == nil {
		return nil, nil
	}
	obj, err := s.codec.Internal(ctx, o, revision)
	if err != nil {
		return nil, err
	}
	matches, err := s.selects.Matches(obj)
	if err != nil || !matches {
		return nil, err
	}
	return obj, nil
}

func (s *storeWatch) send(ctx context.Context, event apiwatch.Event) bool {
	select {
	case s.result <- event:
		return true
	case <-ctx.Done():
		return false
	}
}

// failedWatch returns a watch that could not start: its only event is err.
func failedWatch(err error) apiwatch.Interface {
	events := make(chan apiwatch.Event, 1)
	events <- apiwatch.Event{Type: apiwatch.Error, Object: WatchStatus(err)}
	close(events)
	return apiwatch.NewProxyWatcher(events)
}
