package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/larder-io/larder/cache"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
	"github.com/larder-io/larder/kv/kvtest"
)

//lint:file-ignore SA1019 upstream's suite of storage sets selfLink.

// fixture is one resource, example pods, over a store in memory.
type fixture struct {
	storage.Interface
	t           *testing.T
	resource    *Resource
	memory      *kvtest.Memory
	transformer *swapTransformer
	codec       runtime.Codec
	recorder    *storagetesting.KubernetesRecorder
	config      fixtureConfig
	stop        func() // ends the resource and its tail
}

// swapTransformer is a transformer that a test exchanges while it is in use.
type swapTransformer struct {
	now atomic.Pointer[value.Transformer]
}

func (s *swapTransformer) set(t value.Transformer) { s.now.Store(&t) }

func (s *swapTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	return (*s.now.Load()).TransformFromStorage(ctx, data, dataCtx)
}

func (s *swapTransformer) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	return (*s.now.Load()).TransformToStorage(ctx, data, dataCtx)
}

// recordingStore reports every range to a recorder, as upstream's suite counts them.
type recordingStore struct {
	*kvtest.Memory
	recorder *storagetesting.KubernetesRecorder
}

func (s recordingStore) Range(ctx context.Context, opts kv.RangeOptions) (kv.Page, error) {
	s.record(ctx, opts)
	return s.Memory.Range(ctx, opts)
}

// record calls the recorder, which then panics, because it has no client to call.
func (s recordingStore) record(ctx context.Context, opts kv.RangeOptions) {
	defer func() { _ = recover() }()
	list := storagetesting.RecordedList{}.ListOptions
	list.Revision, list.Limit, list.Continue = opts.Revision, opts.Limit, opts.Start
	_, _ = s.recorder.List(ctx, opts.Prefix, list)
}

func exampleScheme(t *testing.T) (*runtime.Scheme, serializer.CodecFactory) {
	t.Helper()
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme, serializer.NewCodecFactory(scheme)
}

const testPrefix = "test!"

// newFixture runs a resource until the test ends, and waits for its cache.
func newFixture(t *testing.T, media string, change ...func(*fixtureConfig)) *fixture {
	t.Helper()
	scheme, codecs := exampleScheme(t)
	f := &fixture{t: t, memory: kvtest.NewMemory(), transformer: &swapTransformer{}}
	f.transformer.set(storagetesting.NewPrefixTransformer([]byte(testPrefix), false))
	f.recorder = storagetesting.NewKubernetesRecorder(nil)
	f.codec = codecs.LegacyCodec(examplev1.SchemeGroupVersion)
	if media == runtime.ContentTypeProtobuf {
		f.codec = codecs.CodecForVersions(protobuf.NewSerializer(scheme, scheme), codecs.UniversalDeserializer(), examplev1.SchemeGroupVersion, runtime.InternalGroupVersioner)
	}
	store := recordingStore{f.memory, f.recorder}
	config := fixtureConfig{
		Config: Config{
			Store:          store,
			Tail:           kv.NewTail(kv.TailConfig{Store: store, Prefix: "/"}),
			ResourcePrefix: "/pods/",
		},
		codec: encoding.Config{
			GroupResource: schema.GroupResource{Resource: "pods"},
			Storage:       f.codec,
			Transformer:   f.transformer,
			New:           func() runtime.Object { return &example.Pod{} },
			NewList:       func() runtime.Object { return &example.PodList{} },
			Attrs:         examplePodAttrs,
			Scheme:        scheme,
			Canonical:     examplev1.SchemeGroupVersion.WithKind("Pod"),
		},
	}
	own := config.Tail
	for _, fn := range change {
		fn(&config)
	}
	f.config = config
	f.resource = config.newResource(t)
	f.Interface = f.resource.Storage()
	if config.Tail != own { // the test's own store, which it runs
		run(t, f.resource.Run)
		return f
	}
	run(t, f.memory.Run)
	f.stop = run(t, own.Run, f.resource.Run)
	if err := f.resource.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// fixtureConfig configures a fixture's resource.
type fixtureConfig struct {
	Config
	codec    encoding.Config
	uncached bool
}

func (c fixtureConfig) newResource(t *testing.T) *Resource {
	t.Helper()
	c.codec.Schema = Identified(cache.NewResourceSchema("pods", nil, cache.Index{Field: "spec.nodeName"}), false)
	var err error
	if c.Codec, err = encoding.New(c.codec); err != nil {
		t.Fatal(err)
	}
	if !c.uncached {
		c.Cache = &CacheConfig{}
	}
	r, err := New(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run runs all of fns until the test ends, or stop is called.
func run(t *testing.T, fns ...func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(ctx)
	for _, fn := range fns {
		group.Go(func() error { return fn(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		err := group.Wait()
		// A store that several tails follow may end before the last of them.
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, kv.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func examplePodAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no pod", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// UpdatePrefixTransformer replaces the transformer. It also replaces the cache, which holds results of the old
// transformer. The new cache decodes current and past values with the new one.
func (f *fixture) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	f.stop() // no read may run while the transformer, which counts reads, is copied
	before := *f.transformer.now.Load()
	copied := *before.(*storagetesting.PrefixTransformer)
	f.transformer.set(modify(&copied))
	f.restart()
	return func() {
		f.transformer.set(before)
		f.restart()
	}
}

// restart replaces the resource by one that replays the whole history of the store.
func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	store := recordingStore{f.memory, f.recorder}
	tail := kv.NewTail(kv.TailConfig{Store: store, Prefix: "/", Replay: 1 << 20})
	f.config.Store, f.config.Tail = store, tail
	f.resource = f.config.newResource(f.t)
	f.Interface = f.resource.Storage()
	f.stop = run(f.t, tail.Run, f.resource.Run)
	if err := f.resource.WaitReady(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// CorruptTransformer makes every stored value corrupt.
func (f *fixture) CorruptTransformer() func() {
	return f.UpdatePrefixTransformer(func(p *storagetesting.PrefixTransformer) value.Transformer {
		return corrupt{p}
	})
}

// corrupt is a transformer that fails to read any value.
type corrupt struct{ value.Transformer }

func (corrupt) TransformFromStorage(context.Context, []byte, value.Context) ([]byte, bool, error) {
	return nil, true, errors.New("corrupt")
}

// reload makes the cache reload, and waits for that.
func (f *fixture) reload() {
	f.t.Helper()
	before := f.resource.Reflector.Stats.Loads.Load()
	tries := 0
	f.until("reload", func() bool {
		if tries%400 == 0 { // again if there was no watch to end
			f.memory.EndWatches(kv.ErrReplaced)
		}
		tries++
		return f.resource.Reflector.Stats.Loads.Load() > before
	})
}

func (f *fixture) until(what string, done func() bool) {
	f.t.Helper()
	deadline := time.After(proctest.Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			f.t.Fatalf("%s: timed out", what)
		}
	}
}

// compact discards the store's history, as one of several servers does: compaction is a write itself.
func (f *fixture) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	f.increase(ctx, t)
	if err := f.memory.Compact(revisionOf(t, resourceVersion)); err != nil {
		t.Fatal(err)
	}
}

// discard makes the store and the cache drop everything before a revision.
func (f *fixture) discard(_ context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	if err := f.memory.Compact(revisionOf(t, resourceVersion)); err != nil {
		t.Fatal(err)
	}
	f.reload()
}

func revisionOf(t *testing.T, resourceVersion string) int64 {
	t.Helper()
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func (f *fixture) increase(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	item, _, _, err := f.memory.Get(ctx, "increase")
	if err != nil {
		t.Fatal(err)
	}
	result, err := f.memory.Put(ctx, "increase", []byte("ok"), kv.PutOptions{IfRevision: item.Revision})
	if err != nil {
		t.Fatal(err)
	}
	return result.Revision
}

// validate checks that the stored value contains no resourceVersion or selfLink.
func (f *fixture) validate(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	item, found, _, err := f.memory.Get(ctx, key)
	if err != nil || !found {
		t.Fatalf("get %s: got found %v and error %v", key, found, err)
	}
	obj, err := runtime.Decode(f.codec, item.Value[len(testPrefix):])
	if err != nil {
		t.Fatal(err)
	}
	if pod := obj.(*example.Pod); pod.ResourceVersion != "" || pod.SelfLink != "" {
		t.Errorf("got resourceVersion %q and selfLink %q in the stored value, want none", pod.ResourceVersion, pod.SelfLink)
	}
}

// TestStorage runs upstream's suites for storage.Interface.
func TestStorage(t *testing.T) {
	uncounted := func(*testing.T, uint64, uint64) {}
	suites := map[string]func(ctx context.Context, t *testing.T, f *fixture){
		"Create": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestCreate(ctx, t, f, f.validate)
		},
		"List": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestList(ctx, t, f, f.compact, true, f.recorder)
		},
		"ConsistentList": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestConsistentList(ctx, t, f, f.increase, true, true, true)
		},
		"GetListNonRecursive": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, f.increase, f)
		},
		"ListContinuation": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListContinuation(ctx, t, f, uncounted)
		},
		"ListPaginationRareObject": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, retryingStorage{f}, uncounted)
		},
		"ListContinuationWithFilter": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, f, uncounted)
		},
		"ListResourceVersionMatch": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListResourceVersionMatch(ctx, t, f)
		},
		"GuaranteedUpdate": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdate(ctx, t, f, f.validate)
		},
		"GuaranteedUpdateChecksStoredData": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, f)
		},
		"Stats": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestStats(ctx, t, f, f.codec, f.transformer, true)
		},
		"TransformationFailure": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestTransformationFailure(ctx, t, f)
		},
		"CompactRevision": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestCompactRevision(ctx, t, f, f.increase, f.compact)
		},
		"WatchFromZero": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchFromZero(ctx, t, f, f.discard)
		},
		"WatchError": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchError(ctx, t, f)
		},
		"WatchErrorIsBlockingFurtherEvents": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, f)
		},
		"WatchWithUnsafeDelete": func(ctx context.Context, t *testing.T, f *fixture) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
			storagetesting.RunTestWatchWithUnsafeDelete(ctx, t, consistentStorage{f})
		},
		"OptionalProgressNotify": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunOptionalTestProgressNotify(ctx, t, f, f.increase)
		},
		"ListInconsistentContinuation": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, consistentStorage{f}, f.compact)
		},
		"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, f *fixture) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, slowWatchStorage{f}, true)
		},
	}
	for name, suite := range plainSuites() {
		suites[name] = func(ctx context.Context, t *testing.T, f *fixture) { suite(ctx, t, f) }
	}
	for _, media := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(media, func(t *testing.T) {
			for name, suite := range suites {
				if !storedIn(name, media) {
					continue
				}
				run := func(t *testing.T) {
					if slices.Contains(waiting, name) {
						t.Parallel()
					}
					suite(context.Background(), t, newFixture(t, media))
				}
				if slices.Contains(timed, name) {
					run = inBubble(run)
				}
				t.Run(name, run)
			}
		})
	}
}

// storedIn reports whether a suite runs with a media type of the store: each with protobuf, suites that write with
// JSON as well.
func storedIn(name, media string) bool {
	if name == "GuaranteedUpdateChecksStoredData" {
		return media == runtime.ContentTypeJSON // it stores an object with a space before it
	}
	writes := strings.Contains(name, "Update") || strings.Contains(name, "Delet") || strings.HasPrefix(name, "Create")
	return media == runtime.ContentTypeProtobuf || writes
}

// TestStorageUncached runs the suites that need no watches with a resource without a cache.
func TestStorageUncached(t *testing.T) {
	uncached := func(c *fixtureConfig) { c.uncached = true }
	ctx := context.Background()
	t.Run("ListInconsistentContinuation", func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf, uncached)
		storagetesting.RunTestListInconsistentContinuation(ctx, t, f, f.compact)
	})
	t.Run("List", func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf, uncached)
		storagetesting.RunTestList(ctx, t, f, f.compact, false, f.recorder)
	})
	t.Run("ConsistentList", func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf, uncached)
		storagetesting.RunTestConsistentList(ctx, t, f, f.increase, false, true, false)
	})
	for name, suite := range plainSuites() {
		if strings.Contains(name, "Watch") || strings.Contains(name, "InitialEvents") || strings.HasSuffix(name, "TTL") || name == "KeySchema" {
			continue // watches need a cache
		}
		t.Run(name, func(t *testing.T) {
			suite(ctx, t, newFixture(t, runtime.ContentTypeProtobuf, uncached))
		})
	}
}

// plainSuites are the suites that need only the storage.
func plainSuites() map[string]plainSuite {
	return map[string]plainSuite{
		"CreateWithTTL":                              storagetesting.RunTestCreateWithTTL,
		"CreateWithKeyExist":                         storagetesting.RunTestCreateWithKeyExist,
		"Get":                                        withLongTTLs(storagetesting.RunTestGet),
		"UnconditionalDelete":                        storagetesting.RunTestUnconditionalDelete,
		"ConditionalDelete":                          storagetesting.RunTestConditionalDelete,
		"DeleteWithSuggestion":                       storagetesting.RunTestDeleteWithSuggestion,
		"DeleteWithSuggestionAndConflict":            storagetesting.RunTestDeleteWithSuggestionAndConflict,
		"DeleteWithConflict":                         storagetesting.RunTestDeleteWithConflict,
		"DeleteWithSuggestionOfDeletedObject":        storagetesting.RunTestDeleteWithSuggestionOfDeletedObject,
		"ValidateDeletionWithSuggestion":             storagetesting.RunTestValidateDeletionWithSuggestion,
		"ValidateDeletionWithOnlySuggestionValid":    storagetesting.RunTestValidateDeletionWithOnlySuggestionValid,
		"PreconditionalDeleteWithSuggestion":         storagetesting.RunTestPreconditionalDeleteWithSuggestion,
		"PreconditionalDeleteWithOnlySuggestionPass": storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass,
		"GetListRecursivePrefix":                     storagetesting.RunTestGetListRecursivePrefix,
		"ListPaging":                                 storagetesting.RunTestListPaging,
		"NamespaceScopedList":                        storagetesting.RunTestNamespaceScopedList,
		"GuaranteedUpdateWithTTL":                    storagetesting.RunTestGuaranteedUpdateWithTTL,
		"GuaranteedUpdateWithConflict":               storagetesting.RunTestGuaranteedUpdateWithConflict,
		"GuaranteedUpdateWithSuggestionAndConflict":  storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict,
		"KeySchema":                                  storagetesting.RunTestKeySchema,
		"Watch":                                      storagetesting.RunTestWatch,
		"DeleteTriggerWatch":                         storagetesting.RunTestDeleteTriggerWatch,
		"WatchFromNonZero":                           storagetesting.RunTestWatchFromNonZero,
		"DelayedWatchDelivery":                       storagetesting.RunTestDelayedWatchDelivery,
		"WatchContextCancel":                         storagetesting.RunTestWatchContextCancel,
		"WatcherTimeout":                             storagetesting.RunTestWatcherTimeout,
		"WatchDeleteEventObjectHaveLatestRV":         storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV,
		"WatchInitializationSignal":                  storagetesting.RunTestWatchInitializationSignal,
		"ClusterScopedWatch":                         storagetesting.RunTestClusterScopedWatch,
		"NamespaceScopedWatch":                       storagetesting.RunTestNamespaceScopedWatch,
		"OptionalWatchBookmarksWithCorrectRV":        storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion,
		"SendInitialEventsBackwardCompatibility":     storagetesting.RunSendInitialEventsBackwardCompatibility,
		"WatchSemantics":                             withSyncedWatches(storagetesting.RunWatchSemantics),
		"WatchSemanticInitialEventsExtended":         storagetesting.RunWatchSemanticInitialEventsExtended,
		"WatchListMatchSingle":                       storagetesting.RunWatchListMatchSingle,
	}
}

// TestWritesStartFromTheLastWrite checks that before the event of a write has arrived, the next write of the object
// starts from the result of the first. It needs no read and no second transaction. If another server has changed the
// object since, the write must notice.
func TestWritesStartFromTheLastWrite(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	const key = "/pods/x/a"
	f.create(examplePod("x", "a"))
	other := examplePod("x", "b")
	f.create(other)
	if err := f.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{}); err != nil {
		t.Fatal(err) // consistent: the cache has both
	}
	var ops []string
	f.memory.SetHook(func(op, _ string) error {
		if op == "get" || op == "put" || op == "delete" {
			ops = append(ops, op)
		}
		return nil
	})
	f.memory.Hold()
	defer f.memory.Release()
	label := func(key, text string) (*example.Pod, error) {
		out := &example.Pod{}
		err := f.GuaranteedUpdate(t.Context(), key, out, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			pod := obj.(*example.Pod)
			pod.Labels = map[string]string{"text": pod.Labels["text"] + text}
			return pod, nil
		}), nil)
		return out, err
	}
	for _, text := range []string{"1", "2"} {
		if _, err := label(key, text); err != nil {
			t.Fatal(err)
		}
	}
	deleted := &example.Pod{}
	if err := f.Delete(t.Context(), key, deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if deleted.Labels["text"] != "12" {
		t.Errorf("got deleted labels %v, want the result of both writes", deleted.Labels)
	}
	if want := []string{"put", "put", "delete"}; !slices.Equal(ops, want) {
		t.Errorf("got operations %v of the store, want %v", ops, want)
	}
	if _, err := label(key, "3"); !storage.IsNotFound(err) {
		t.Errorf("update of the deleted object: got error %v, want not found", err)
	}
	// Another server writes between two of ours.
	const shared = "/pods/x/b"
	if _, err := label(shared, "ours"); err != nil {
		t.Fatal(err)
	}
	item, _, _, err := f.memory.Get(t.Context(), shared)
	if err != nil {
		t.Fatal(err)
	}
	f.plant(shared, strings.Replace(string(item.Value), "ours", "them", 1))
	if pod, err := label(shared, "2"); err != nil || pod.Labels["text"] != "them2" {
		t.Errorf("update after another server's: got labels %v and error %v, want both changes", pod.Labels, err)
	}
}
