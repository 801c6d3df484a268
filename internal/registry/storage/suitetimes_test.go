package storage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/internal/proctest"
)

// timed lists the suites that pass only if something happens within a time. They run in a synctest bubble. Suites with
// subtests cannot: those get a storage, below, that makes them independent of time.
var timed = []string{
	"CreateWithTTL", "DelayedWatchDelivery", "GuaranteedUpdateWithTTL", "OptionalProgressNotify",
	"OptionalWatchBookmarksWithCorrectRV", "WatchInitializationSignal", "WatchListMatchSingle",
	"WatchSemanticInitialEventsExtended", "WatcherTimeout",
}

// waiting lists the suites that mostly wait, for revisions that are never reached. They run concurrently.
var waiting = []string{"Get", "GetListNonRecursive", "List", "WatchDispatchBookmarkEvents"}

// plainSuite is a suite that needs nothing but the storage.
type plainSuite = func(context.Context, *testing.T, storage.Interface)

func inBubble(run func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, run) }
}

// patiently retries read while it fails with TooManyRequests, as clients do: after many writes the cache may need more
// than three seconds on a busy machine.
func (f *fixture) patiently(read func() error) {
	f.t.Helper()
	f.until("read", func() bool { return !apierrors.IsTooManyRequests(read()) })
}

// retryingStorage retries lists, as clients do.
type retryingStorage struct{ *fixture }

// GetList implements storage.Interface.
func (r retryingStorage) GetList(ctx context.Context, key string, options storage.ListOptions, list runtime.Object) (err error) {
	r.patiently(func() error {
		err = r.fixture.GetList(ctx, key, options, list)
		return err
	})
	return err
}

// consistentStorage makes lists at resourceVersion 0 consistent. From a cache those have no pages, whatever the limit,
// which the suite of pages does not expect. kube-apiserver's tests of its cache omit that suite.
type consistentStorage struct{ *fixture }

// GetList implements storage.Interface.
func (c consistentStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.ResourceVersion == "0" {
		opts.ResourceVersion = ""
	}
	return c.fixture.GetList(ctx, key, opts, list)
}

// withLongTTLs runs a suite that reads objects which it has written with a TTL of a second.
func withLongTTLs(suite plainSuite) plainSuite {
	return func(ctx context.Context, t *testing.T, s storage.Interface) { suite(ctx, t, longTTLStorage{s}) }
}

// longTTLStorage makes the TTLs of updates longer.
type longTTLStorage struct{ storage.Interface }

// GuaranteedUpdate implements storage.Interface.
func (l longTTLStorage) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object) error {
	return l.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions,
		func(obj runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
			obj, ttl, err := update(obj, meta)
			if ttl != nil {
				*ttl *= 1000
			}
			return obj, ttl, err
		}, cached)
}

// withSyncedWatches runs a suite that waits 150 milliseconds for the events of objects it has created.
func withSyncedWatches(suite plainSuite) plainSuite {
	return func(ctx context.Context, t *testing.T, s storage.Interface) {
		suite(ctx, t, &syncedStorage{Interface: s})
	}
}

// syncedStorage returns from Create after the watches of the namespace have received the event.
type syncedStorage struct {
	storage.Interface

	mu      sync.Mutex
	watches []*relayedWatch
}

// relayedWatch is a watch that reports in added which objects it has delivered.
type relayedWatch struct {
	apiwatch.Interface
	prefix string
	events chan apiwatch.Event
	added  chan string // resourceVersions
}

// ResultChan implements watch.Interface of apimachinery.
func (r *relayedWatch) ResultChan() <-chan apiwatch.Event { return r.events }

func (r *relayedWatch) run() {
	defer close(r.events)
	for event := range r.Interface.ResultChan() {
		r.events <- event
		if pod, ok := event.Object.(*example.Pod); ok && event.Type == apiwatch.Added {
			r.added <- pod.ResourceVersion
		}
	}
}

// Watch implements storage.Interface.
func (s *syncedStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	const more = 100 // than a suite has events
	r := &relayedWatch{Interface: w, prefix: key + "/", events: make(chan apiwatch.Event, more), added: make(chan string, more)}
	go r.run()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = append(s.watches, r)
	return r, nil
}

// Create implements storage.Interface.
func (s *syncedStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := s.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	s.mu.Lock()
	watches := s.watches[:len(s.watches):len(s.watches)]
	s.mu.Unlock()
	for _, w := range watches {
		if !strings.HasPrefix(key, w.prefix) {
			continue
		}
		for revision := ""; revision != out.(*example.Pod).ResourceVersion; {
			select {
			case revision = <-w.added:
			case <-time.After(proctest.Patience):
				return fmt.Errorf("timed out waiting for a watch to receive %s", key)
			}
		}
	}
	return nil
}

// slowWatchStorage is for a suite whose watches end after three seconds. Its watches with bookmarks wait for their
// first event, however long that takes.
type slowWatchStorage struct{ storage.Interface }

// Watch implements storage.Interface.
func (s slowWatchStorage) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	w, err := s.Interface.Watch(undeadlined{ctx}, key, opts)
	if err == nil && opts.Predicate.AllowWatchBookmarks {
		w = watchWithEvent{w}
	}
	return w, err
}

// undeadlined is a context that reports a deadline but is not canceled then.
type undeadlined struct{ context.Context }

// Done implements context.Context.
func (undeadlined) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (undeadlined) Err() error { return nil }

// watchWithEvent is a watch whose ResultChan waits for the first event.
type watchWithEvent struct{ apiwatch.Interface }

// ResultChan implements watch.Interface of apimachinery.
func (w watchWithEvent) ResultChan() <-chan apiwatch.Event {
	first := make(chan apiwatch.Event, 1)
	select {
	case event, ok := <-w.Interface.ResultChan():
		if ok {
			first <- event
		}
	case <-time.After(proctest.Patience):
	}
	return first
}
