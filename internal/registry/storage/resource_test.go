package storage

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/kv"
)

func examplePod(namespace, name string) *example.Pod {
	return &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func (f *fixture) create(pod *example.Pod) *example.Pod {
	f.t.Helper()
	out := &example.Pod{}
	if err := f.Create(context.Background(), fmt.Sprintf("/pods/%s/%s", pod.Namespace, pod.Name), pod, out, 0); err != nil {
		f.t.Fatal(err)
	}
	return out
}

// plant stores a value under a key, whatever its current value is.
func (f *fixture) plant(key, value string) int64 {
	f.t.Helper()
	item, _, _, err := f.memory.Get(context.Background(), key)
	if err != nil {
		f.t.Fatal(err)
	}
	result, err := f.memory.Put(context.Background(), key, []byte(value), kv.PutOptions{IfRevision: item.Revision})
	if err != nil || !result.Committed {
		f.t.Fatalf("put: got committed %v and error %v", result.Committed, err)
	}
	return result.Revision
}

func (f *fixture) view() *encoding.Version {
	f.t.Helper()
	v, err := f.resource.codec.NewVersion(examplev1.SchemeGroupVersion.WithKind("Pod"), "PodList")
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

// list is Resource.List without a deadline.
func (f *fixture) list(q ListRequest) (Listing, error) {
	return f.resource.List(context.Background(), q, nil)
}

// TestRepeatedReadsDoNotDecode counts the decodings when the same objects are encoded
// repeatedly in each media type.
func TestRepeatedReadsDoNotDecode(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	f.create(examplePod("a", "one"))
	f.create(examplePod("a", "two"))
	v := f.view()
	read := func(media encoding.MediaType, projection encoding.Projection) uint64 {
		before := f.resource.Codec().Decodes()
		listing, err := f.list(ListRequest{})
		if err != nil || len(listing.Objects) != 2 {
			t.Fatalf("got %d objects and error %v, want 2", len(listing.Objects), err)
		}
		for _, o := range listing.Objects {
			if _, err := v.Encoder(media, projection).Item(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if _, err := v.Encoder(media, projection).AppendEventAt(nil, "DELETED", o, 12345); err != nil {
				t.Fatal(err)
			}
		}
		return f.resource.Codec().Decodes() - before
	}
	for _, c := range []struct {
		media         encoding.MediaType
		projection    encoding.Projection
		first, second uint64
	}{
		{encoding.Protobuf, encoding.Full, 0, 0}, {encoding.Protobuf, encoding.Partial, 0, 0},
		{encoding.JSON, encoding.Full, 2, 0}, {encoding.JSON, encoding.Partial, 2, 0}, {encoding.JSON, encoding.PartialV1beta1, 2, 0},
	} {
		if n := read(c.media, c.projection); n != c.first {
			t.Errorf("media %d, projection %d: got %d decodings at first, want %d", c.media, c.projection, n, c.first)
		}
		if n := read(c.media, c.projection); n != c.second {
			t.Errorf("media %d, projection %d: got %d decodings when repeated, want %d", c.media, c.projection, n, c.second)
		}
	}
}

// TestOfferedObjectsEqualDecodedOnes checks that offered objects equal those decoded from the stored value.
func TestOfferedObjectsEqualDecodedOnes(t *testing.T) {
	for _, media := range []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON} {
		t.Run(media, func(t *testing.T) {
			f := newFixture(t, media)
			pod := examplePod("a", "one")
			pod.Labels = map[string]string{"k": "v"}
			pod.Spec.NodeName = "n1"
			f.create(pod)
			err := f.GuaranteedUpdate(context.Background(), "/pods/a/one", &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
				obj.(*example.Pod).Status.Phase = "Running"
				return obj, nil
			}), nil)
			if err != nil {
				t.Fatal(err)
			}
			o, err := f.resource.Get(context.Background(), Scope{Namespace: "a", Name: "one"}, "")
			if err != nil {
				t.Fatal(err)
			}
			item, _, _, err := f.memory.Get(context.Background(), "/pods/a/one")
			if err != nil {
				t.Fatal(err)
			}
			fresh := f.resource.Object("a/one", item.Value, item.Revision)
			if !bytes.Equal(o.Body(), fresh.Body()) || o.Revision() != fresh.Revision() {
				t.Errorf("got cached %q at %d, want the stored %q at %d", o.Body(), o.Revision(), fresh.Body(), fresh.Revision())
			}
			for _, name := range []string{"spec.nodeName", "status.phase", "metadata.name", "metadata.namespace"} {
				if got, want := o.Fields().Get(name), fresh.Fields().Get(name); got != want || got == "" {
					t.Errorf("got %s %q, want %q", name, got, want)
				}
			}
			if s := &f.resource.Reflector.Stats; s.Offered.Load() != 2 || s.Decoded.Load() != 0 {
				t.Errorf("got %d offered and %d decoded objects, want 2 and 0", s.Offered.Load(), s.Decoded.Load())
			}
		})
	}
}

// TestCorruptObjectsFailOnlyReadsThatCoverThem checks that a value that cannot be decoded fails the reads that cover
// it, and no others.
func TestCorruptObjectsFailOnlyReadsThatCoverThem(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name, value string
		internal    bool // the error is storage's InternalError
		list        string
	}{
		{"not decrypted", "garbage", true, `unable to transform key "/pods/b/bad": value does not have expected prefix`},
		{"not decoded", testPrefix + "k8s\x00garbage", false, ""},
		{"of another kind", testPrefix + `{"kind":"Secret","apiVersion":"v9"}`, false, `no kind "Secret" is registered`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, runtime.ContentTypeProtobuf)
			f.create(examplePod("a", "good"))
			revision := f.plant("/pods/b/bad", c.value)
			_, err := f.list(ListRequest{})
			if err == nil || storage.IsInternalError(err) != c.internal || !strings.Contains(err.Error(), c.list) {
				t.Errorf("list: got error %v, want %q, internal %v", err, c.list, c.internal)
			}
			_, err = f.resource.Get(ctx, Scope{Namespace: "b", Name: "bad"}, "")
			if err == nil || storage.IsNotFound(err) || storage.IsInternalError(err) != c.internal || strings.Contains(err.Error(), "unable to transform") {
				t.Errorf("get: got error %v, want one of decoding, internal %v", err, c.internal)
			}
			if listing, err := f.list(ListRequest{Scope: Scope{Namespace: "a"}}); err != nil || len(listing.Objects) != 1 || listing.Meta.Revision < revision {
				t.Errorf("list of another namespace: got %+v and error %v, want one object", listing, err)
			}
			f.create(examplePod("a", "later"))
			if _, err := f.resource.Get(ctx, Scope{Namespace: "a", Name: "later"}, ""); err != nil {
				t.Errorf("get of a later object: %v", err)
			}
			if _, err := f.memory.Delete(ctx, "/pods/b/bad", revision); err != nil {
				t.Fatal(err)
			}
			if listing, err := f.list(ListRequest{}); err != nil || len(listing.Objects) != 2 {
				t.Errorf("list after its deletion: got %+v and error %v, want two objects", listing, err)
			}
		})
	}
}

// TestNoOpUpdatesAreRecognizedByStoredBytes checks that an update that changes nothing is not written, and that it
// is compared with the bytes in the store.
func TestNoOpUpdatesAreRecognizedByStoredBytes(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	created := f.create(examplePod("a", "one"))
	same := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	update := func() *example.Pod {
		t.Helper()
		out := &example.Pod{}
		if err := f.GuaranteedUpdate(context.Background(), "/pods/a/one", out, false, nil, same, nil); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := update(); out.ResourceVersion != created.ResourceVersion {
		t.Errorf("got revision %s of an update without a change, want %s", out.ResourceVersion, created.ResourceVersion)
	}
	// The same object in other bytes, as an older version would have stored it.
	f.plant("/pods/a/one", testPrefix+`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"one","namespace":"a"}}`)
	planted, err := f.resource.Get(context.Background(), Scope{Namespace: "a", Name: "one"}, "")
	if err != nil {
		t.Fatal(err)
	}
	out := update()
	if out.ResourceVersion == fmt.Sprint(planted.Revision()) {
		t.Error("an update of the older encoding was not written")
	}
	if again := update(); again.ResourceVersion != out.ResourceVersion {
		t.Errorf("got revision %s of the next update without a change, want %s", again.ResourceVersion, out.ResourceVersion)
	}
}

// slowGets is a store that delays reads of one key.
type slowGets struct {
	recordingStore
	delay time.Duration
}

func (s slowGets) Get(ctx context.Context, key string) (kv.Item, bool, int64, error) {
	select {
	case <-time.After(s.delay):
		return s.recordingStore.Get(ctx, key)
	case <-ctx.Done():
		return kv.Item{}, false, 0, ctx.Err()
	}
}

// TestGetFromASlowStore checks that a consistent get waits for a slow response of the store as long as the cache lags.
func TestGetFromASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 2 * time.Second
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) {
			c.Store = slowGets{c.Store.(recordingStore), slow}
		})
		f.memory.Hold()
		f.memory.IgnoreProgressRequests(true)
		f.create(examplePod("a", "one"))
		began := time.Now()
		if o, err := f.resource.Get(t.Context(), Scope{Namespace: "a", Name: "one"}, ""); err != nil || o.Err() != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != freshness+slow {
			t.Errorf("the get took %v, want %v", waited, freshness+slow)
		}
	})
}

// TestGetWhileAMemberHangs checks that a consistent get whose read of the store hangs returns once the cache has caught
// up.
func TestGetWhileAMemberHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) {
			c.Store = slowGets{c.Store.(recordingStore), time.Hour}
		})
		f.memory.Hold()
		f.memory.IgnoreProgressRequests(true)
		f.create(examplePod("a", "one"))
		const caughtUp = freshness + 2*time.Second
		time.AfterFunc(caughtUp, func() {
			f.memory.IgnoreProgressRequests(false)
			f.memory.Release()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if o, err := f.resource.Get(ctx, Scope{Namespace: "a", Name: "one"}, ""); err != nil || o.Err() != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited != caughtUp {
			t.Errorf("the get took %v, want %v", waited, caughtUp)
		}
	})
}

// TestReadsOfALaggingCache checks which reads fail with a Retry-After, and which do not, while the cache lags.
func TestReadsOfALaggingCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		f := newFixture(t, runtime.ContentTypeProtobuf)
		f.create(examplePod("a", "one"))
		if _, err := f.list(ListRequest{}); err != nil {
			t.Fatal(err)
		}
		f.memory.Hold()
		f.memory.IgnoreProgressRequests(true)
		created := f.create(examplePod("a", "two"))
		began := time.Now()
		if _, err := f.list(ListRequest{}); !apierrors.IsTooManyRequests(err) {
			t.Errorf("consistent list: got error %v, want TooManyRequests", err)
		} else if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != 1 {
			t.Errorf("got Retry-After %d, %v, want 1", seconds, ok)
		}
		if waited := time.Since(began); waited != freshness {
			t.Errorf("the list took %v, want %v", waited, freshness)
		}
		if o, err := f.resource.Get(ctx, Scope{Namespace: "a", Name: "two"}, ""); err != nil || o.Err() != nil {
			t.Errorf("consistent get, which reads the store: %v", err)
		}
		for _, match := range []metav1.ResourceVersionMatch{"", metav1.ResourceVersionMatchNotOlderThan, metav1.ResourceVersionMatchExact} {
			_, err := f.list(ListRequest{ResourceVersion: created.ResourceVersion, Match: match})
			if !storage.IsTooLargeResourceVersion(err) {
				t.Errorf("list at a revision, match %q: got error %v, want that of a too large resource version", match, err)
			} else if seconds, _ := apierrors.SuggestsClientDelay(err); seconds != 1 {
				t.Errorf("got Retry-After %d, want 1", seconds)
			}
		}
		if listing, err := f.list(ListRequest{ResourceVersion: "0"}); err != nil || len(listing.Objects) != 1 {
			t.Errorf("list at any revision: got %+v and error %v, want the older object", listing, err)
		}
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if _, err := f.resource.List(short, ListRequest{}, nil); !storage.IsRequestTimeout(err) {
			t.Errorf("list with an earlier deadline: got error %v, want a timeout", err)
		}
		f.memory.Release()
		if listing, err := f.list(ListRequest{}); err != nil || len(listing.Objects) != 2 {
			t.Errorf("list once the cache has caught up: got %+v and error %v, want two objects", listing, err)
		}
	})
}

// TestRelativeNamespacesAreRefused checks that reads refuse the namespaces "." and "..".
func TestRelativeNamespacesAreRefused(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	created := f.create(examplePod("a", "one"))
	revision, err := strconv.ParseInt(created.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{".", ".."} {
		scope := Scope{Namespace: namespace, Name: "one"}
		_, get := f.resource.Get(t.Context(), scope, "")
		_, past := f.resource.GetPast(scope, revision)
		_, list := f.list(ListRequest{Scope: scope})
		_, watch := f.resource.Watch(t.Context(), WatchRequest{Scope: scope})
		for name, err := range map[string]error{"Get": get, "GetPast": past, "List": list, "Watch": watch} {
			if err == nil || !strings.HasPrefix(err.Error(), "invalid key: ") {
				t.Errorf("%s in namespace %q: got error %v, want an invalid key", name, namespace, err)
			}
		}
	}
}

// TestReadsBeforeTheCacheHasLoaded checks which reads succeed from the store, and that others fail with
// TooManyRequests.
func TestReadsBeforeTheCacheHasLoaded(t *testing.T) {
	ctx := context.Background()
	loaded := newFixture(t, runtime.ContentTypeProtobuf)
	loaded.create(examplePod("a", "one"))
	loaded.create(examplePod("a", "two"))
	// A second server over the same store, whose reflector is not running.
	config := loaded.config
	config.Store, config.Tail = loaded.memory, kv.NewTail(kv.TailConfig{Store: loaded.memory, Prefix: "/"})
	cold := config.newResource(t)
	if o, err := cold.Get(ctx, Scope{Namespace: "a", Name: "one"}, ""); err != nil || o.Name() != "one" {
		t.Errorf("get: got %v and error %v, want the object", o, err)
	}
	if _, err := cold.Get(ctx, Scope{Namespace: "a", Name: "none"}, "0"); !storage.IsNotFound(err) {
		t.Errorf("get of a missing object: got error %v, want not found", err)
	}
	listing, err := cold.List(ctx, ListRequest{Limit: 1}, nil)
	if err != nil || len(listing.Objects) != 1 || listing.Meta.Continue == "" || *listing.Meta.Remaining != 1 {
		t.Errorf("list with a limit: got %+v and error %v, want the first of two pages", listing, err)
	}
	if _, err := cold.List(ctx, ListRequest{}, nil); !apierrors.IsTooManyRequests(err) {
		t.Errorf("list: got error %v, want TooManyRequests", err)
	}
	if _, err := cold.Watch(ctx, WatchRequest{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("watch: got error %v, want TooManyRequests", err)
	}
	if err := cold.Storage().ReadinessCheck(); err == nil {
		t.Error("ReadinessCheck succeeded, want an error")
	}
}

// TestContinueTokensOfSiblings checks both forms of tokens: those of kube-apiserver's cacher begin with a slash,
// those of its etcd3 do not.
func TestContinueTokensOfSiblings(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	for _, name := range []string{"one", "three", "two"} {
		f.create(examplePod("a", name))
	}
	first, err := f.list(ListRequest{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	token, err := base64.RawURLEncoding.DecodeString(first.Meta.Continue)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"/a/one\u0000"}`, first.Meta.Revision)
	if string(token) != want {
		t.Errorf("got token %s, want %s", token, want)
	}
	for _, start := range []string{"a/one", "/a/one"} {
		token := fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"%s\u0000"}`, first.Meta.Revision, start)
		listing, err := f.list(ListRequest{Continue: base64.RawURLEncoding.EncodeToString([]byte(token))})
		if err != nil || len(listing.Objects) != 2 || listing.Objects[0].Name() != "three" {
			t.Errorf("token that starts at %s: got %+v and error %v, want the last two objects", start, listing, err)
		}
	}
	for _, token := range []string{"!", "e30", base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":1,"start":"../x"}`))} {
		if _, err := f.list(ListRequest{Continue: token}); !apierrors.IsBadRequest(err) {
			t.Errorf("token %q: got error %v, want BadRequest", token, err)
		}
	}
}

// TestLimitsAtAnyRevision checks that limits at revision 0 are ignored, as by kube-apiserver's cache, except for
// events, which it does not cache.
func TestLimitsAtAnyRevision(t *testing.T) {
	for prefix, want := range map[string]int{"/pods": 3, "/events": 1} {
		f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.ResourcePrefix = prefix })
		for _, name := range []string{"one", "three", "two"} {
			made := &example.Pod{}
			if err := f.Create(t.Context(), prefix+"/a/"+name, examplePod("a", name), made, 0); err != nil {
				t.Fatal(err)
			}
			revision, err := storage.APIObjectVersioner{}.ObjectResourceVersion(made)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.resource.Cache.Wait(t.Context(), int64(revision)); err != nil {
				t.Fatal(err)
			}
		}
		listing, err := f.list(ListRequest{Limit: 1, ResourceVersion: "0"})
		if err != nil || len(listing.Objects) != want || (listing.Meta.Continue != "") != (want < 3) {
			t.Errorf("%s: got %d objects, continue %q and error %v, want %d objects", prefix, len(listing.Objects), listing.Meta.Continue, err, want)
		}
	}
}

// TestLegacyWatchHasNoEndOfInitialEvents checks that the legacy way to request initial events does not mark their
// end.
func TestLegacyWatchHasNoEndOfInitialEvents(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	f.create(examplePod("a", "one"))
	if _, err := f.list(ListRequest{}); err != nil {
		t.Fatal(err)
	}
	predicate := storage.Everything
	predicate.AllowWatchBookmarks = true
	w, err := f.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: predicate, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	f.create(examplePod("a", "two"))
	for _, want := range []string{"one", "two"} {
		event := <-w.ResultChan()
		if pod, ok := event.Object.(*example.Pod); !ok || event.Type != apiwatch.Added || pod.Name != want {
			t.Errorf("got %s %v, want ADDED %s", event.Type, event.Object, want)
		}
	}
	w.Stop()
	for event := range w.ResultChan() {
		t.Errorf("got %s after the watch was stopped", event.Type)
	}
}
