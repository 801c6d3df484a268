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

// timed has the suites that pass only if something happens within a time. They run with a clock that
// stands still while anything else can go on. Suites with subtests cannot: those below are given
// a storage that keeps the time from mattering.
var timed = []string{
	"CreateWithTTL", "DelayedWatchDelivery", "GuaranteedUpdateWithTTL", "OptionalProgressNotify",
	"OptionalWatchBookmarksWithCorrectRV", "WatchInitializationSignal", "WatchListMatchSingle",
	"WatchSemanticInitialEventsExtended", "WatcherTimeout",
}

// plainSuite is a suite that needs nothing but the storage.
type plainSuite = func(context.Context, *testing.T, storage.Interface)

func inBubble(run func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, run) }
}

// patiently repeats read while the server answers that the client should try again later, as clients do:
// after many writes the cache of a busy machine needs more than three seconds.
func (f *fixture) patiently(read func() error) {
	f.t.Helper()
	f.until("read", func() bool { return !apierrors.IsTooManyRequests(read()) })
}

// patient is a client that lists patiently.
type patient struct{ *fixture }

// GetList implements storage.Interface.
func (p patient) GetList(ctx context.Context, key string, options storage.ListOptions, list runtime.Object) (err error) {
	p.patiently(func() error {
		err = p.fixture.GetList(ctx, key, options, list)
		return err
	})
	return err
}

// newest asks for the newest state where a suite asks for whatever is at hand. Of
// that a cache gives all, whatever the limit (kube-apiserver's too: its own tests
// leave the suite out), and there is nothing to continue.
type newest struct{ *fixture }

// GetList implements storage.Interface.
func (n newest) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	if opts.ResourceVersion == "0" {
		opts.ResourceVersion = ""
	}
	return n.fixture.GetList(ctx, key, opts, list)
}

// kept runs a suite that reads objects which it has written with a TTL of a second.
func kept(suite plainSuite) plainSuite {
	return func(ctx context.Context, t *testing.T, s storage.Interface) { suite(ctx, t, lasting{s}) }
}

// lasting makes the TTLs of updates longer.
type lasting struct{ storage.Interface }

// GuaranteedUpdate implements storage.Interface.
func (l lasting) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
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

// promptly runs a suite that gives the events of what it has created 150 milliseconds to come.
func promptly(suite plainSuite) plainSuite {
	return func(ctx context.Context, t *testing.T, s storage.Interface) { suite(ctx, t, &prompt{Interface: s}) }
}

// prompt returns from Create when the watches of the namespace have the event.
type prompt struct {
	storage.Interface

	mu      sync.Mutex
	watches []*relayed
}

// relayed is a watch whose events are added before they are received.
type relayed struct {
	apiwatch.Interface
	prefix string
	events chan apiwatch.Event
	added  chan string // resourceVersions
}

// ResultChan implements watch.Interface of apimachinery.
func (r *relayed) ResultChan() <-chan apiwatch.Event { return r.events }

func (r *relayed) run() {
	defer close(r.events)
	for event := range r.Interface.ResultChan() {
		r.events <- event
		if pod, ok := event.Object.(*example.Pod); ok && event.Type == apiwatch.Added {
			r.added <- pod.ResourceVersion
		}
	}
}

// Watch implements storage.Interface.
func (p *prompt) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	w, err := p.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	const more = 100 // than a suite has events
	r := &relayed{Interface: w, prefix: key + "/", events: make(chan apiwatch.Event, more), added: make(chan string, more)}
	go r.run()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches = append(p.watches, r)
	return r, nil
}

// Create implements storage.Interface.
func (p *prompt) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := p.Interface.Create(ctx, key, obj, out, ttl); err != nil {
		return err
	}
	p.mu.Lock()
	watches := p.watches[:len(p.watches):len(p.watches)]
	p.mu.Unlock()
	for _, w := range watches {
		if !strings.HasPrefix(key, w.prefix) {
			continue
		}
		for revision := ""; revision != out.(*example.Pod).ResourceVersion; {
			select {
			case revision = <-w.added:
			case <-time.After(proctest.Patience):
				return fmt.Errorf("no watch hears of %s", key)
			}
		}
	}
	return nil
}

// unhurried gives a suite whose watches end after three seconds the first event of a watch with
// bookmarks when there is one, however long that takes.
type unhurried struct{ storage.Interface }

// Watch implements storage.Interface.
func (u unhurried) Watch(ctx context.Context, key string, opts storage.ListOptions) (apiwatch.Interface, error) {
	w, err := u.Interface.Watch(endless{ctx}, key, opts)
	if err == nil && opts.Predicate.AllowWatchBookmarks {
		w = awaited{w}
	}
	return w, err
}

// endless has a deadline, but is not done then.
type endless struct{ context.Context }

// Done implements context.Context.
func (endless) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (endless) Err() error { return nil }

// awaited is a watch that is asked for its events once it has one.
type awaited struct{ apiwatch.Interface }

// ResultChan implements watch.Interface of apimachinery.
func (a awaited) ResultChan() <-chan apiwatch.Event {
	first := make(chan apiwatch.Event, 1)
	select {
	case event, ok := <-a.Interface.ResultChan():
		if ok {
			first <- event
		}
	case <-time.After(proctest.Patience):
	}
	return first
}
