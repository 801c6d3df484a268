package storage

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"github.com/larder-io/larder/kv"
)

// key is an encryption key under which values are found by their prefix.
func key(t *testing.T, name string) value.PrefixTransformer {
	t.Helper()
	block, err := aes.NewCipher(bytes.Repeat([]byte(name[:1]), 32))
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := aestransformer.NewGCMTransformer(block)
	if err != nil {
		t.Fatal(err)
	}
	return value.PrefixTransformer{Prefix: []byte("enc:" + name + ":"), Transformer: gcm}
}

func keys(keys ...value.PrefixTransformer) value.Transformer {
	return value.NewPrefixTransformers(errors.New("no key"), keys...)
}

func (f *fixture) stored(key string) kv.Item {
	f.t.Helper()
	item, found, _, err := f.memory.Get(context.Background(), key)
	if err != nil || !found {
		f.t.Fatalf("%s: got found %v and error %v", key, found, err)
	}
	return item
}

// touch updates an object without a change.
func (f *fixture) touch(key string) *example.Pod {
	f.t.Helper()
	out := &example.Pod{}
	same := storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) { return obj, nil })
	if err := f.GuaranteedUpdate(context.Background(), key, out, false, nil, same, nil); err != nil {
		f.t.Fatal(err)
	}
	return out
}

// TestKeyRotation checks that values encrypted with an older key can be read. A write without changes encrypts them
// with the new key, although the object is equal.
func TestKeyRotation(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf)
	before, after := key(t, "before"), key(t, "after")
	f.transformer.set(keys(before))
	created := f.create(examplePod("a", "one"))
	if out := f.touch("/pods/a/one"); out.ResourceVersion != created.ResourceVersion {
		t.Errorf("got revision %s of an update without a change, want %s", out.ResourceVersion, created.ResourceVersion)
	}
	f.transformer.set(keys(after, before))
	out := f.touch("/pods/a/one")
	if out.ResourceVersion == created.ResourceVersion || !bytes.HasPrefix(f.stored("/pods/a/one").Value, after.Prefix) {
		t.Errorf("got stored value %q, want one encrypted with the new key", f.stored("/pods/a/one").Value)
	}
	if again := f.touch("/pods/a/one"); again.ResourceVersion != out.ResourceVersion {
		t.Errorf("got revision %s of the next update without a change, want %s", again.ResourceVersion, out.ResourceVersion)
	}
	// A value is bound to its key: it cannot be decrypted under another.
	f.plant("/pods/a/two", string(f.stored("/pods/a/one").Value))
	if _, err := f.resource.Get(t.Context(), Scope{Namespace: "a", Name: "two"}, ""); !storage.IsInternalError(err) {
		t.Errorf("a value under the key of another: got error %v, want InternalError", err)
	}
}

// TestSelectorsUseAttrs checks that selectors of lists and watches match the labels and fields that the configured
// function returns, before and after a change.
func TestSelectorsUseAttrs(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeProtobuf, func(c *fixtureConfig) {
		c.codec.Attrs = func(obj runtime.Object) (labels.Set, fields.Set, error) {
			side, _, _ := strings.Cut(obj.(*example.Pod).Annotations["side"], ".")
			return labels.Set{"side": side}, fields.Set{"spec.nodeName": "node-" + side}, nil
		}
	})
	pod := examplePod("a", "one")
	pod.Labels = map[string]string{"side": "wrong"}
	pod.Annotations = map[string]string{"side": "left.x"}
	f.create(pod)
	left := labels.SelectorFromSet(labels.Set{"side": "left"})
	for label, want := range map[string]int{"left": 1, "right": 0, "wrong": 0} {
		for _, q := range []ListRequest{{Label: labels.SelectorFromSet(labels.Set{"side": label})}, {Field: fields.OneTermEqualSelector("spec.nodeName", "node-"+label)}} {
			if listing, err := f.list(q); err != nil || len(listing.Objects) != want {
				t.Errorf("%s: got %d objects and error %v, want %d", label, len(listing.Objects), err, want)
			}
		}
	}
	predicate := storage.Everything
	predicate.Label = left
	w, err := f.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: predicate, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, side := range []string{"right.y", "left.z"} {
		err := f.GuaranteedUpdate(t.Context(), "/pods/a/one", &example.Pod{}, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			obj.(*example.Pod).Annotations["side"] = side
			return obj, nil
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct {
		event apiwatch.EventType
		side  string
	}{{apiwatch.Added, "left.x"}, {apiwatch.Deleted, "left.x"}, {apiwatch.Added, "left.z"}} {
		event := <-w.ResultChan()
		if pod, ok := event.Object.(*example.Pod); !ok || event.Type != want.event || pod.Annotations["side"] != want.side {
			t.Errorf("got %s %v, want %s of %s", event.Type, event.Object, want.event, want.side)
		}
	}
}

// slowTransformer needs two milliseconds for some values.
type slowTransformer struct {
	value.Transformer
	calls atomic.Int64
	most  atomic.Int64 // at once
	now   atomic.Int64
}

func (s *slowTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	now := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	if s.calls.Add(1)%64 < 2 {
		time.Sleep(2 * time.Millisecond)
	}
	return s.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// TestIngestKeepsTheOrderOfTheStore checks that although values are decoded concurrently, results appear in the order
// of the store, and no revision is complete before an earlier one.
func TestIngestKeepsTheOrderOfTheStore(t *testing.T) {
	synctest.Test(t, ingestKeepsOrder)
}

func ingestKeepsOrder(t *testing.T) {
	const revisions, pods = 600, 7
	f := newFixture(t, runtime.ContentTypeProtobuf)
	slow := &slowTransformer{Transformer: *f.transformer.now.Load()}
	f.transformer.set(slow)
	first := f.create(examplePod("a", "first"))
	w, err := f.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: first.ResourceVersion, Predicate: storage.Everything, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	f.memory.Hold()
	var want []string
	for i := range revisions {
		key := fmt.Sprintf("/pods/a/%d", i%pods)
		values := make(map[string][]byte)
		for _, half := range []string{"l", "r"} { // two keys of one revision
			values[key+half] = fmt.Appendf(nil, `%s{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"%d%s","namespace":"a","labels":{"i":"%d"}}}`, testPrefix, i%pods, half, i)
		}
		revision := f.memory.PutAll(values)
		want = append(want, fmt.Sprint(revision), fmt.Sprint(revision))
	}
	stop := make(chan struct{})
	torn := make(chan string, 1)
	go func() {
		defer close(torn)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if text := tornPair(f, pods); text != "" {
				torn <- text
				return
			}
			if i%100 == 0 { // lets the bubble's clock advance
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	f.memory.Release()
	for i, revision := range want {
		event := <-w.ResultChan()
		pod, ok := event.Object.(*example.Pod)
		if !ok || pod.ResourceVersion != revision {
			t.Fatalf("event %d: got %s %v, want revision %s", i, event.Type, event.Object, revision)
		}
	}
	close(stop)
	for text := range torn {
		t.Error(text)
	}
	if slow.most.Load() < 2 && goruntime.GOMAXPROCS(0) > 1 {
		t.Error("values were decoded one after the other, want concurrently")
	}
}

// tornPair describes two keys that are always written together, if a snapshot has only one of them, or both at different
// revisions. It returns "" if there is no such pair.
func tornPair(f *fixture, pods int) string {
	snapshot := f.resource.Cache.Snapshot()
	for i := range pods {
		l, r := snapshot.Get(fmt.Sprintf("a/%dl", i)), snapshot.Get(fmt.Sprintf("a/%dr", i))
		if (l == nil) != (r == nil) || l != nil && l.Revision() != r.Revision() {
			return fmt.Sprintf("at revision %d, the objects of pair %d differ", snapshot.Revision(), i)
		}
	}
	return ""
}

// TestObjectsAreReadableOnceTheKMSPluginWorks checks that objects stored while a KMS plugin fails are corrupt only
// until it works again: none is skipped, and none must be written again.
func TestObjectsAreReadableOnceTheKMSPluginWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, runtime.ContentTypeProtobuf)
		f.create(examplePod("a", "before"))
		sound := *f.transformer.now.Load()
		item := f.stored("/pods/a/before")
		f.transformer.set(corrupt{sound})
		f.plant("/pods/b/during", string(bytes.ReplaceAll(item.Value, []byte("before"), []byte("during"))))
		if _, err := f.list(ListRequest{}); !storage.IsInternalError(err) {
			t.Errorf("list while the plugin fails: got error %v, want InternalError", err)
		}
		if listing, err := f.list(ListRequest{Scope: Scope{Namespace: "a"}}); err != nil || len(listing.Objects) != 1 {
			t.Errorf("list of objects that were decrypted before: got %+v and error %v, want one object", listing, err)
		}
		time.Sleep(time.Minute)
		if _, err := f.list(ListRequest{}); !storage.IsInternalError(err) {
			t.Errorf("list after a minute: got error %v, want InternalError", err)
		}
		f.transformer.set(sound)
		if _, err := f.resource.Get(t.Context(), Scope{Namespace: "b", Name: "during"}, ""); err != nil {
			t.Errorf("get once the plugin works: got error %v", err)
		}
		time.Sleep(time.Minute)
		listing, err := f.list(ListRequest{})
		if err != nil || len(listing.Objects) != 2 || listing.Objects[1].Name() != "during" {
			t.Errorf("list once the plugin works: got %+v and error %v, want both objects", listing, err)
		}
		if out := f.touch("/pods/b/during"); out.ResourceVersion != fmt.Sprint(listing.Objects[1].Revision()) {
			t.Errorf("got revision %s of an update without a change, want %d", out.ResourceVersion, listing.Objects[1].Revision())
		}
	})
}
