package storage

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/cache"
)

// TestWritten checks that Written has the object that the last write under its context has returned, at its revision,
// and that the cache adopts this object. It has no object of a failed write, of an untracked write, or if the cache may
// have to decode the value.
func TestWritten(t *testing.T) {
	for _, c := range []struct {
		name    string
		media   string
		change  func(*fixtureConfig)
		updated bool // has created, changed and unchanged objects
		deleted bool // has deleted objects
	}{
		{"protobuf", runtime.ContentTypeProtobuf, func(*fixtureConfig) {}, true, true},
		{"protobuf in plain text", runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.codec.Transformer = nil }, true, true},
		{"JSON", runtime.ContentTypeJSON, func(*fixtureConfig) {}, false, true}, // in JSON the cache cannot distinguish empty lists from missing ones
		{"no cache", runtime.ContentTypeProtobuf, func(c *fixtureConfig) { c.uncached = true }, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, c.media, c.change)
			pod := examplePod("a", "one")
			pod.Spec.NodeName = "n"
			out := &example.Pod{}
			ctx, w := Track(t.Context())
			if err := f.Create(ctx, "/pods/a/one", pod, out, 0); err != nil {
				t.Fatal(err)
			}
			created := f.checkWritten(w, out, out.ResourceVersion, c.updated)
			if err := f.Create(ctx, "/pods/a/one", pod, &example.Pod{}, 0); err == nil {
				t.Fatal("a second creation succeeded, want an error")
			}
			if w.For(out) != created {
				t.Error("a failed write changed the object of the last one")
			}
			f.expect("a/one", created)

			ctx, w = Track(t.Context())
			out = f.relabel(ctx, "two")
			f.expect("a/one", f.checkWritten(w, out, out.ResourceVersion, c.updated))
			ctx, w = Track(t.Context())
			same := f.relabel(ctx, "two")
			f.checkWritten(w, same, out.ResourceVersion, c.updated)
			f.relabel(t.Context(), "three") // untracked
			f.checkWritten(w, same, out.ResourceVersion, c.updated)

			ctx, w = Track(t.Context())
			deleted := &example.Pod{}
			if err := f.Delete(ctx, "/pods/a/one", deleted, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			f.checkWritten(w, deleted, deleted.ResourceVersion, c.deleted)
		})
	}
}

func (f *fixture) relabel(ctx context.Context, text string) *example.Pod {
	f.t.Helper()
	out := &example.Pod{}
	err := f.GuaranteedUpdate(ctx, "/pods/a/one", out, false, nil, storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*example.Pod).Labels = map[string]string{"text": text}
		return obj, nil
	}), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// checkWritten checks that w has the encoding of obj at a revision if want, and returns it.
func (f *fixture) checkWritten(w *Written, obj runtime.Object, revision string, want bool) *cache.Object {
	f.t.Helper()
	o := w.For(obj)
	if w.For(obj.DeepCopyObject()) != nil || w.For(nil) != nil {
		f.t.Error("Written has an object that was not written")
	}
	if (o != nil) != want {
		f.t.Fatalf("Written has the object: %t, want %t", o != nil, want)
	}
	if o == nil {
		return nil
	}
	if o.Revision() != revisionOf(f.t, revision) {
		f.t.Errorf("got revision %d, want %s", o.Revision(), revision)
	}
	if err := errors.Join(w.ReplaceWithStored(obj), f.resource.codec.Encodes(o, obj)); err != nil {
		f.t.Error(err)
	}
	return o
}

// expect waits for the cache to have a key, with o unless that is nil.
func (f *fixture) expect(rest string, o *cache.Object) {
	f.t.Helper()
	got, err := f.resource.Get(f.t.Context(), Scope{Namespace: "a", Name: "one"}, "")
	if err != nil || got.Key() != rest || o != nil && got != o {
		f.t.Fatalf("got %v and error %v from the cache, want the written object", got, err)
	}
}
