package consistency

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/watch/watchtest"
)

// informed is one of client-go's informers. It records what the server sent in each watch, and what the informer passed
// to its handler.
type informed struct {
	load     *load
	of       *resource
	name     string
	informer cache.SharedIndexInformer
	running  sync.WaitGroup

	mu     sync.Mutex
	parts  []*watchtest.Checker
	lists  []*read
	broken []error
	last   map[string]int64 // the revision that was last passed to the handler, by name
	notes  int
	begun  int // number of lists and of watches with initial events
}

// informAll runs informers of all resources but the first, in JSON and protobuf, with initial lists and with initial
// events. Some use one replica, others all replicas in turn.
func (l *load) informAll(t *testing.T, ctx context.Context) (all []*informed) {
	t.Helper()
	form := 0
	for _, of := range resources[1:] {
		for to := range len(l.cluster.replicas) + 1 {
			media, paged := runtime.ContentTypeJSON, form&1 != 0
			if form&2 != 0 && of.group.Group != "larder.example.com" {
				media = runtime.ContentTypeProtobuf
			}
			form++
			all = append(all, l.inform(t, ctx, of, to, media, paged))
		}
		form++ // so that every replica serves every combination
	}
	return all
}

// failover sends requests to one replica until it fails, then to another.
type failover struct {
	*http.Transport
	replicas []*replica
	now      atomic.Int64
}

func (f *failover) RoundTrip(req *http.Request) (*http.Response, error) {
	at := f.now.Load()
	req = req.Clone(req.Context())
	req.URL.Host = strings.TrimPrefix(f.replicas[at].url, "https://")
	req.Header.Set("Authorization", "Bearer tester")
	resp, err := f.Transport.RoundTrip(req)
	if err != nil || resp.StatusCode >= 500 || rand.IntN(4) == 0 {
		f.now.CompareAndSwap(at, (at+1)%int64(len(f.replicas)))
	}
	return resp, err
}

// inform runs an informer that uses replica number to, or all replicas if there is no such number.
func (l *load) inform(t *testing.T, ctx context.Context, of *resource, to int, media string, paged bool) *informed {
	t.Helper()
	i := &informed{load: l, of: of, last: make(map[string]int64)}
	replicas := l.cluster.replicas
	i.name = fmt.Sprintf("informer of %v at all, in %s, paged %v", of, media, paged)
	if to < len(replicas) {
		replicas = replicas[to : to+1]
		i.name = fmt.Sprintf("informer of %v at %s, in %s, paged %v", of, replicas[0].name, media, paged)
	}
	transport := &failover{replicas: replicas, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, // the test's own server
	}}
	config := &rest.Config{Host: replicas[0].url, Transport: transport, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: media}}
	i.informer = cache.NewSharedIndexInformer(lister{paged: paged, ListWatch: i.listWatch(t, config)}, nil, 0, cache.Indexers{})
	if _, err := i.informer.AddEventHandler(i.handler()); err != nil {
		t.Fatal(err)
	}
	i.running.Go(func() { i.informer.RunWithContext(ctx) })
	t.Cleanup(func() {
		i.running.Wait()
		transport.CloseIdleConnections()
	})
	return i
}

// listWatch lists and watches as generated clients or the dynamic client do, and records what they return.
func (i *informed) listWatch(t *testing.T, config *rest.Config) *cache.ListWatch {
	t.Helper()
	var list func(context.Context, metav1.ListOptions) (runtime.Object, error)
	var follow func(context.Context, metav1.ListOptions) (watch.Interface, error)
	if i.of.group.Group == "larder.example.com" {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		widgets := client.Resource(i.of.group).Namespace(metav1.NamespaceDefault)
		list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return widgets.List(ctx, options)
		}
		follow = widgets.Watch
	} else {
		version := i.of.group.GroupVersion()
		config.GroupVersion, config.NegotiatedSerializer = &version, scheme.Codecs.WithoutConversion()
		client, err := rest.RESTClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		get := func(options *metav1.ListOptions) *rest.Request {
			return client.Get().AbsPath(i.of.collection).VersionedParams(options, scheme.ParameterCodec)
		}
		list = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return get(&options).Do(ctx).Get()
		}
		follow = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return get(&options).Watch(ctx)
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			obj, err := list(ctx, options)
			if err == nil {
				i.keepList(options, obj)
			}
			return obj, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			w, err := follow(ctx, options)
			if err != nil {
				return nil, err
			}
			return i.keepWatch(options, w), nil
		},
	}
}

func (i *informed) fail(format string, args ...any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.broken = append(i.broken, fmt.Errorf("%s: %w", i.name, fmt.Errorf(format, args...)))
}

// foundIn returns the part of an object that the checks use.
func foundIn(obj runtime.Object) (f found, err error) {
	accessor, err := apimeta.Accessor(obj)
	if err != nil {
		return f, err
	}
	f.name, f.revision = accessor.GetName(), meta{ResourceVersion: accessor.GetResourceVersion()}.revision()
	p, ok := readPayload(accessor.GetAnnotations()["p"])
	if !ok {
		return f, fmt.Errorf("%s has no payload", f.name)
	}
	f.payload = p
	return f, nil
}

// keepList records a list. Only lists in one page are recorded.
func (i *informed) keepList(options metav1.ListOptions, obj runtime.Object) {
	accessor, err := apimeta.ListAccessor(obj)
	if err != nil {
		i.fail("%v", err)
		return
	}
	i.mu.Lock()
	i.begun++
	i.mu.Unlock()
	if accessor.GetContinue() != "" || options.Continue != "" {
		return
	}
	r := &read{of: i.of, client: -1, what: i.name, revision: meta{ResourceVersion: accessor.GetResourceVersion()}.revision()}
	r.least = meta{ResourceVersion: options.ResourceVersion}.revision()
	err = apimeta.EachListItem(obj, func(item runtime.Object) error {
		f, err := foundIn(item)
		r.objects = append(r.objects, f)
		return err
	})
	if err != nil {
		i.fail("R: %v", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lists = append(i.lists, r)
}

// keepWatch records the events of a watch.
func (i *informed) keepWatch(options metav1.ListOptions, w watch.Interface) watch.Interface {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	requested := watchtest.Request{Selects: func(*watchtest.State) bool { return true }, Initial: initial}
	if !initial {
		requested.After, requested.Resumed = meta{ResourceVersion: options.ResourceVersion}.revision(), true
	}
	part := watchtest.NewChecker(requested)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.parts = append(i.parts, part)
	if initial {
		i.begun++
	}
	kept := &keptWatch{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	i.running.Go(func() { kept.run(func(event watch.Event) { i.observe(part, event) }) })
	return kept
}

// keptWatch records a watch's events and passes them on.
type keptWatch struct {
	watch.Interface
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

func (k *keptWatch) ResultChan() <-chan watch.Event { return k.events }

func (k *keptWatch) Stop() {
	k.once.Do(func() { close(k.stopped) })
	k.Interface.Stop()
}

func (k *keptWatch) run(look func(watch.Event)) {
	defer close(k.events)
	for event := range k.Interface.ResultChan() {
		look(event)
		select {
		case k.events <- event:
		case <-k.stopped:
			return
		}
	}
}

func (i *informed) observe(part *watchtest.Checker, event watch.Event) {
	report, ok := i.report(event)
	if !ok {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := part.Observe(report); err != nil && len(i.broken) < 10 {
		i.broken = append(i.broken, fmt.Errorf("%s: %w", i.name, err))
	}
}

// report converts an event. ok is false for errors.
func (i *informed) report(event watch.Event) (r watchtest.Report, ok bool) {
	if event.Type == watch.Error {
		return r, false
	}
	if event.Type != watch.Bookmark {
		f, err := foundIn(event.Object)
		if err != nil {
			i.fail("%v", err)
		}
		return watchtest.Report{Type: watchtest.Type(event.Type), Key: f.name, Revision: f.revision, Digest: f.payload.String()}, true
	}
	accessor, err := apimeta.Accessor(event.Object)
	if err != nil {
		i.fail("%v", err)
		return r, false
	}
	r = watchtest.Report{Type: watchtest.Bookmark, Revision: meta{ResourceVersion: accessor.GetResourceVersion()}.revision()}
	if accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		r.Type = watchtest.InitialEnd
	}
	return r, true
}

// handler records the informer's notifications. Without a relist, no object may go back to an older version, and no
// version may be notified twice.
func (i *informed) handler() cache.ResourceEventHandler {
	note := func(obj any) {
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		f, err := foundIn(obj.(runtime.Object))
		i.mu.Lock()
		defer i.mu.Unlock()
		i.notes++
		if err != nil {
			i.broken = append(i.broken, fmt.Errorf("%s: %w", i.name, err))
		}
		if last := i.last[f.name]; f.revision < last || f.revision == last && i.begun < 2 {
			i.broken = append(i.broken, fmt.Errorf("I: %s: the handler was notified of %s at %d after %d", i.name, f.name, f.revision, last))
		}
		i.last[f.name] = f.revision
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: note, DeleteFunc: note,
		UpdateFunc: func(_, obj any) { note(obj) },
	}
}

// finish waits until the informer has all stored objects.
func (i *informed) finish(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, i.name+" has the stored objects", func() error {
		return differs(i.informer, i.load.truth.revisions(i.of))
	})
}

// verify compares the recorded events with the history.
func (i *informed) verify(p *past) []error {
	i.mu.Lock()
	defer i.mu.Unlock()
	broken := append(i.broken, checkLists(p, i.lists)...)
	broken = append(broken, checkFresh(p, i.lists)...)
	for _, part := range i.parts {
		if err := part.Verify(&p.history, 0); err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", i.name, err))
		}
	}
	if i.notes == 0 {
		broken = append(broken, errors.New(i.name+" received no events"))
	}
	return broken
}
