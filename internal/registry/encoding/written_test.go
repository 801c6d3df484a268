package encoding_test

import (
	"fmt"
	"math/rand"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry"
	"github.com/larder-io/larder/internal/registry/encoding"
	"github.com/larder-io/larder/internal/registry/registrytest"
	"github.com/larder-io/larder/internal/registry/storage"
)

// TestWritesMatchUpstream writes random objects of every served kind. The encodings of storage.Written must equal those
// that upstream's encoders make of the returned object.
func TestWritesMatchUpstream(t *testing.T) {
	server := registrytest.New(t, nil)
	server.Start(t)
	seen := 0
	for _, group := range server.Registry.Groups() {
		for _, version := range group.Versions {
			for _, e := range version.Endpoints {
				if e.View == nil || e.View.Resource.Cache == nil {
					continue
				}
				seen++
				t.Run(e.GVR.GroupVersion().String()+"/"+e.GVR.Resource, func(t *testing.T) { testWrites(t, e) })
			}
		}
	}
	if seen < 50 {
		t.Errorf("tested %d views, want more", seen)
	}
}

// storedAsJSON has the groups whose kinds are stored as JSON.
var storedAsJSON = map[string]bool{"apiextensions.k8s.io": true, "apiregistration.k8s.io": true}

func testWrites(t *testing.T, e *registry.Endpoint) {
	written, known := 0, 0
	for seed := range int64(proctest.Iterations(6)) {
		w := writer{T: t, view: e.View, random: rand.New(rand.NewSource(seed)), seed: seed}
		w.run(e.Namespaced)
		written, known = written+w.written, known+w.known
	}
	if codec := e.View.Resource.Codec(); codec.Tokens(codec.Canonical) != nil {
		if alike, _ := codec.Fingerprints(); alike == 0 {
			t.Error("no write had a known fingerprint")
		}
	}
	// A Decorator changes most random services. Objects that are stored as JSON are known only when they are deleted.
	// Objects that an update reads from the store are not known.
	if known == 0 || known < written*9/10 && e.View.Resource.Codec().Decorate == nil && !storedAsJSON[e.GVR.Group] {
		t.Errorf("%d of %d written objects were known, want 90%%", known, written)
	}
}

// writer writes one object again and again.
type writer struct {
	*testing.T
	view           *registry.View
	random         *rand.Rand
	seed           int64
	written, known int
}

func (w *writer) run(namespaced bool) {
	scope := storage.Scope{Name: fmt.Sprintf("%s-%s-%d", w.view.GVK.Group, w.view.GVK.Version, w.seed)}
	if namespaced {
		scope.Namespace = "ns"
	}
	for range 6 { // objects that differ only in their names
		scope.Name += "a"
		w.create(scope)
	}
	key, s := w.view.Resource.KeyOf(scope), w.view.Resource.Storage()
	for range 10 {
		ctx, made := storage.Track(w.Context())
		out := w.view.Resource.Codec().New()
		err := s.GuaranteedUpdate(ctx, key, out, false, nil, apistorage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			if w.random.Intn(4) > 0 { // else nothing changes
				registrytest.Mutate(obj, w.random)
				w.name(obj, scope)
			}
			return obj, nil
		}), nil)
		if err == nil { // else it cannot be stored
			w.check("update", made, out)
		}
	}
	ctx, made := storage.Track(w.Context())
	out := w.view.Resource.Codec().New()
	if err := s.Delete(ctx, key, out, nil, apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
	w.check("delete", made, out)
}

func (w *writer) create(scope storage.Scope) {
	w.Helper()
	obj, out := w.view.Resource.Codec().New(), w.view.Resource.Codec().New()
	registrytest.Fill(obj, rand.NewSource(w.seed))
	w.name(obj, scope)
	ctx, made := storage.Track(w.Context())
	if err := w.view.Resource.Storage().Create(ctx, w.view.Resource.KeyOf(scope), obj, out, 0); err != nil {
		w.Fatal(err)
	}
	w.check("create", made, out)
}

func (w *writer) name(obj runtime.Object, scope storage.Scope) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		w.Fatal(err)
	}
	accessor.SetName(scope.Name)
	accessor.SetNamespace(scope.Namespace)
	accessor.SetResourceVersion("")
}

// check compares all encodings of out.
func (w *writer) check(what string, made *storage.Written, out runtime.Object) {
	w.Helper()
	w.written++
	if made.For(out.DeepCopyObject()) != nil {
		w.Errorf("%s: Written has the encodings of a copy of the object", what)
	}
	o := made.For(out)
	if o == nil {
		return
	}
	w.known++
	if err := made.ReplaceWithStored(out); err != nil {
		w.Fatal(err)
	}
	for _, media := range []encoding.MediaType{encoding.JSON, encoding.Protobuf} {
		for _, projection := range []encoding.Projection{encoding.Full, encoding.Partial, encoding.PartialV1beta1} {
			f := w.view.Encoder(media, projection)
			item, err := f.Uncached().Item(w.Context(), o)
			if err != nil {
				w.Fatal(err)
			}
			equal(w.T, fmt.Sprintf("%s: media %d, projection %d", what, media, projection),
				f.AppendObject(nil, item), newUpstream(w.view, media, projection).body(w.T, out.DeepCopyObject()), f.ObjectSize(item))
		}
	}
}
