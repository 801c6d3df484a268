package storage

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestUpdatesCompareEncodedSizes checks that an update that changes the stored size decodes the current object once.
// An update without changes is not written. One that changes bytes without changing their number is written, as is
// one that stores the same object in other bytes.
func TestUpdatesCompareEncodedSizes(t *testing.T) {
	f := newFixture(t, runtime.ContentTypeJSON, func(c *fixtureConfig) { c.codec.Transformer = nil })
	const key = "/pods/x/a"
	f.create(examplePod("x", "a"))
	before := revisionOf(t, f.create(examplePod("x", "b")).ResourceVersion)
	plant := func() {
		item, _, _, err := f.memory.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		before = f.plant(key, strings.Replace(string(item.Value), ":", ": ", 1))
	}
	for _, c := range []struct {
		name, text string
		plant      func()
		decodes    uint64
		written    bool
	}{
		{"another size", "one", func() {}, 1, true},
		{"the same size", "two", func() {}, 2, true},
		{"nothing", "two", func() {}, 2, false},
		{"the same object in other bytes", "two", plant, 1, true},
	} {
		c.plant()
		if err := f.GetList(t.Context(), "/pods/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, &example.PodList{}); err != nil {
			t.Fatal(err) // consistent: the cache has the object
		}
		decodes, out := f.resource.Codec().Decodes(), &example.Pod{}
		err := f.GuaranteedUpdate(t.Context(), key, out, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			pod := obj.(*example.Pod)
			pod.Labels = map[string]string{"text": c.text}
			return pod, nil
		}), nil)
		if err != nil || out.Labels["text"] != c.text {
			t.Fatalf("%s: got labels %v and error %v, want text %q", c.name, out.Labels, err, c.text)
		}
		if n := f.resource.Codec().Decodes() - decodes; n != c.decodes {
			t.Errorf("%s: %d decodings, want %d", c.name, n, c.decodes)
		}
		now := revisionOf(t, out.ResourceVersion)
		if (now > before) != c.written {
			t.Errorf("%s: revision %d after %d, want written: %t", c.name, now, before, c.written)
		}
		before = now
	}
}
