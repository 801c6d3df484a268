package managedfields

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiserverinternal "k8s.io/api/apiserverinternal/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// kinds returns the stored kinds with their served versions.
func kinds(t testing.TB, converter managedfields.TypeConverter) map[schema.GroupKind][]schema.GroupVersion {
	found := make(map[schema.GroupKind][]schema.GroupVersion)
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		hub := kind.GroupKind().WithVersion(runtime.APIVersionInternal)
		if kind.Version == runtime.APIVersionInternal || !legacyscheme.Scheme.Recognizes(hub) {
			continue
		}
		obj, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := meta.Accessor(obj); err != nil {
			continue
		}
		obj.GetObjectKind().SetGroupVersionKind(kind)
		if _, err := converter.ObjectToTyped(obj, 0); err != nil {
			continue // a kind without a schema is not served
		}
		found[kind.GroupKind()] = append(found[kind.GroupKind()], kind.GroupVersion())
	}
	if len(found) < 60 {
		t.Fatalf("found %d kinds only", len(found))
	}
	return found
}

// newManager returns the field manager of a new Cache.
func newManager(types managedfields.TypeConverter, convertor runtime.ObjectConvertor, defaulter runtime.ObjectDefaulter, creater runtime.ObjectCreater, kind schema.GroupVersionKind, hub schema.GroupVersion, subresource string, reset map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error) {
	c, err := New(types, convertor, defaulter, creater, kind, hub, subresource, reset)
	if err != nil {
		return nil, err
	}
	return c.Manager, nil
}

// build is newManager or the upstream constructor that it replaces.
type build func(managedfields.TypeConverter, runtime.ObjectConvertor, runtime.ObjectDefaulter, runtime.ObjectCreater, schema.GroupVersionKind, schema.GroupVersion, string, map[fieldpath.APIVersion]fieldpath.Filter) (*managedfields.FieldManager, error)

// managers caches the field managers of one build by kind, as a server does.
type managers struct {
	t     testing.TB
	types managedfields.TypeConverter
	build build
	made  map[schema.GroupVersionKind]*managedfields.FieldManager
}

func newManagers(t testing.TB, build build) *managers {
	return &managers{t: t, types: applyconfigurations.NewTypeConverter(legacyscheme.Scheme), build: build, made: make(map[schema.GroupVersionKind]*managedfields.FieldManager)}
}

func (m *managers) of(kind schema.GroupVersionKind) *managedfields.FieldManager {
	m.t.Helper()
	if made := m.made[kind]; made != nil {
		return made
	}
	scheme := legacyscheme.Scheme
	hub := schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal}
	made, err := m.build(m.types, runtime.UnsafeObjectConvertor(scheme), scheme, scheme, kind, hub, "", nil)
	if err != nil {
		m.t.Fatal(err)
	}
	m.made[kind] = made
	return made
}

// TestManagedFieldsOfManyWritesMatchUpstream writes random objects of every kind many times, and compares the
// managedFields with upstream's. Several managers update and apply the objects, in all versions.
func TestManagedFieldsOfManyWritesMatchUpstream(t *testing.T) {
	t.Parallel()
	upstream, own := newManagers(t, managedfields.NewDefaultFieldManager), newManagers(t, newManager)
	entries := 0
	for kind, versions := range kinds(t, upstream.types) {
		for seed := range int64(proctest.Iterations(3)) {
			h := &history{t: t, kind: kind, versions: versions, random: rand.New(rand.NewSource(seed)), upstream: upstream, own: own}
			h.write()
			entries += h.entries
		}
	}
	if entries < 1000 {
		t.Fatalf("compared only %d entries of managedFields, want 1000", entries)
	}
}

// history writes one object many times.
type history struct {
	t             *testing.T
	kind          schema.GroupKind
	versions      []schema.GroupVersion
	random        *rand.Rand
	upstream, own *managers
	entries       int // compared entries of managedFields
}

// object returns a random object without managedFields.
func (h *history) object() runtime.Object {
	obj, err := legacyscheme.Scheme.New(h.kind.WithVersion(runtime.APIVersionInternal))
	if err != nil {
		h.t.Fatal(err)
	}
	registrytest.Fill(obj, rand.NewSource(h.random.Int63()))
	accessor(h.t, obj).SetManagedFields(nil)
	return obj
}

func (h *history) write() {
	live := h.object()
	for step := range 8 {
		version := h.versions[h.random.Intn(len(h.versions))]
		manager := fmt.Sprintf("manager-%d", h.random.Intn(3))
		next := live.DeepCopyObject()
		h.change(reflect.ValueOf(next).Elem(), reflect.ValueOf(h.object()).Elem())
		at := fmt.Sprintf("%s, step %d, by %s in %s", h.kind, step, manager, version)
		if step%3 == 2 {
			live = h.apply(at, live, next, version, manager)
		} else {
			live = h.update(at, live, next, version, manager)
		}
	}
}

func (h *history) update(at string, live, next runtime.Object, version schema.GroupVersion, manager string) runtime.Object {
	written := func(by *managers) (runtime.Object, error) {
		return by.of(version.WithKind(h.kind.Kind)).Update(live.DeepCopyObject(), next.DeepCopyObject(), manager)
	}
	want, wantErr := written(h.upstream)
	got, gotErr := written(h.own)
	return h.compare(at+", update", want, got, wantErr, gotErr, live)
}

func (h *history) apply(at string, live, next runtime.Object, version schema.GroupVersion, manager string) runtime.Object {
	versioned, err := legacyscheme.Scheme.ConvertToVersion(next, version)
	if err != nil {
		h.t.Fatal(err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(versioned)
	if err != nil {
		h.t.Fatal(err)
	}
	patch := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(content, "metadata", "managedFields")
	if h.random.Intn(2) == 0 {
		unstructured.RemoveNestedField(content, "spec")
	}
	force := h.random.Intn(3) > 0
	written := func(by *managers) (runtime.Object, error) {
		return by.of(version.WithKind(h.kind.Kind)).Apply(live.DeepCopyObject(), patch.DeepCopy(), manager, force)
	}
	want, wantErr := written(h.upstream)
	got, gotErr := written(h.own)
	return h.compare(at+", apply", want, got, wantErr, gotErr, live)
}

// compare fails the test if the results or errors of a write differ. It returns the new live object.
func (h *history) compare(at string, want, got runtime.Object, wantErr, gotErr error, live runtime.Object) runtime.Object {
	h.t.Helper()
	if fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
		h.t.Fatalf("%s: error %v, want %v", at, gotErr, wantErr)
	}
	if wantErr != nil || want == nil {
		return live
	}
	h.entries += len(accessor(h.t, want).GetManagedFields())
	blankTimes(h.t, want)
	blankTimes(h.t, got)
	compare(h.t, at, want, got)
	return want
}

// compare fails t if an object differs from upstream's.
func compare(t *testing.T, what any, want, got runtime.Object) {
	t.Helper()
	if !apiequality.Semantic.DeepEqual(want, got) {
		t.Fatalf("%s: got managedFields\n%s\nwant\n%s", what, text(accessor(t, got)), text(accessor(t, want)))
	}
}

// blankTimes removes the times from managedFields.
func blankTimes(t testing.TB, obj runtime.Object) {
	object := accessor(t, obj)
	entries := object.GetManagedFields()
	for i := range entries {
		entries[i].Time = nil
	}
	// Entries with the same time are in random order.
	slices.SortFunc(entries, func(a, b metav1.ManagedFieldsEntry) int {
		return strings.Compare(fmt.Sprint(a.Manager, a.Operation, a.APIVersion), fmt.Sprint(b.Manager, b.Operation, b.APIVersion))
	})
	object.SetManagedFields(entries)
}

func accessor(t testing.TB, obj runtime.Object) metav1.Object {
	t.Helper()
	object, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

func text(object metav1.Object) string {
	var b strings.Builder
	for _, e := range object.GetManagedFields() {
		fmt.Fprintf(&b, "%s %s %s %s\n", e.Manager, e.Operation, e.APIVersion, e.FieldsV1)
	}
	return b.String()
}

// change copies some fields of v from from, clears others, and repeats items of lists.
func (h *history) change(v, from reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if !v.Field(i).CanSet() || name == "ManagedFields" || name == "TypeMeta" {
				continue
			}
			if h.random.Intn(3) == 0 || name == "ObjectMeta" || name == "Spec" {
				h.change(v.Field(i), from.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() && !from.IsNil() && h.random.Intn(2) == 0 {
			h.change(v.Elem(), from.Elem())
			return
		}
		v.Set(from)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // a raw document
			v.Set(from)
			return
		}
		switch n := h.random.Intn(6); {
		case n == 0:
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		case n == 1:
			v.SetZero()
		case n == 2 && v.Len() > 0:
			v.Set(reflect.Append(v, v.Index(0)))
		case n < 5 && v.Len() > 0 && from.Len() > 0:
			h.change(v.Index(h.random.Intn(v.Len())), from.Index(0))
		default:
			v.Set(from)
		}
	default:
		v.Set(from)
	}
}

// TestChangesOfOneFieldAreFound changes one field of a pod at a time.
func TestChangesOfOneFieldAreFound(t *testing.T) {
	t.Parallel()
	converter := &converter{inner: applyconfigurations.NewTypeConverter(legacyscheme.Scheme)}
	pod := registrytest.Pod(1)
	for name, change := range map[string]struct {
		do   func(*corev1.Pod)
		want string
	}{
		"nothing":                 {func(*corev1.Pod) {}, ""},
		"a label":                 {func(p *corev1.Pod) { p.Labels["app"] = "other" }, ".metadata.labels.app"},
		"a container":             {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }, `.spec.containers[name="` + pod.Spec.Containers[0].Name + `"].image`},
		"a status":                {func(p *corev1.Pod) { p.Status.Message = "other" }, ".status.message"},
		"an empty slice for none": {func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the converter treats the first object of a kind differently
				other := pod.DeepCopy()
				change.do(other)
				before, err := converter.ObjectToTyped(pod, 0)
				if err != nil {
					t.Fatal(err)
				}
				after, err := converter.ObjectToTyped(other, 0)
				if err != nil {
					t.Fatal(err)
				}
				compared, err := before.Compare(after)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.TrimSpace(compared.Added.Union(compared.Modified).Union(compared.Removed).String()); got != change.want {
					t.Errorf("changed %q, want %q", got, change.want)
				}
			}
		})
	}
}

// widget is a kind whose schema lacks some of its fields.
type widget struct {
	metav1.TypeMeta `json:",inline"`
	Known           string `json:"known"`
	Hidden          string `json:"hidden,omitempty"`
}

func (w *widget) DeepCopyObject() runtime.Object { c := *w; return &c }

func TestObjectsThatTheSchemaForbidsAreRefused(t *testing.T) {
	t.Parallel()
	text := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}}}
	model := &spec.Schema{
		SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{"apiVersion": text, "kind": text, "known": text}},
		VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-group-version-kind": []any{
			map[string]any{"group": "example.com", "version": "v1", "kind": "Widget"},
		}}},
	}
	upstream, err := managedfields.NewTypeConverter(map[string]*spec.Schema{"widget": model}, false)
	if err != nil {
		t.Fatal(err)
	}
	own := &converter{inner: upstream}
	kind := metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Widget"}
	for _, w := range []*widget{{kind, "a", ""}, {kind, "b", ""}, {kind, "c", "hidden"}, {kind, "d", ""}} {
		_, want := upstream.ObjectToTyped(w, 0)
		if _, got := own.ObjectToTyped(w, 0); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v: %v, want %v", w, got, want)
		} else if (want != nil) != (w.Hidden != "") {
			t.Errorf("%+v: upstream returns %v, want an error only for a hidden field", w, want)
		}
	}
}

func TestItemsWithoutTheirKeyAreRefused(t *testing.T) {
	t.Parallel()
	upstream := applyconfigurations.NewTypeConverter(legacyscheme.Scheme)
	own := &converter{inner: upstream}
	for _, id := range []string{"a", "b", "", "c"} {
		obj := &apiserverinternal.StorageVersion{
			TypeMeta: metav1.TypeMeta{APIVersion: "internal.apiserver.k8s.io/v1alpha1", Kind: "StorageVersion"},
			Status:   apiserverinternal.StorageVersionStatus{StorageVersions: []apiserverinternal.ServerStorageVersion{{APIServerID: id}}},
		}
		_, want := upstream.ObjectToTyped(obj, 0)
		if _, got := own.ObjectToTyped(obj, 0); fmt.Sprint(got) != fmt.Sprint(want) || (want != nil) != (id == "") {
			t.Errorf("server %q: %v, want %v", id, got, want)
		}
	}
}

// TestDocumentsAreComparedByTheirFields checks that a RawExtension is compared by the map in it, although it is a Go
// struct.
func TestDocumentsAreComparedByTheirFields(t *testing.T) {
	t.Parallel()
	upstream := applyconfigurations.NewTypeConverter(legacyscheme.Scheme)
	own := &converter{inner: upstream}
	revision := func(data string) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ControllerRevision"}, Data: runtime.RawExtension{Raw: []byte(data)},
		}
	}
	changes := func(converter managedfields.TypeConverter) string {
		before, err := converter.ObjectToTyped(revision(`{"spec":{"a":1,"b":2}}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		after, err := converter.ObjectToTyped(revision(`{"spec":{"a":1,"b":3},"more":true}`), 0)
		if err != nil {
			t.Fatal(err)
		}
		compared, err := before.Compare(after)
		if err != nil {
			t.Fatal(err)
		}
		return compared.String()
	}
	changes(own) // the converter treats the first object of a kind differently
	if got, want := changes(own), changes(upstream); got != want {
		t.Errorf("changed %s, want %s", got, want)
	}
}

func BenchmarkUpdate(b *testing.B) {
	pod := registrytest.Pod(1)
	pod.ManagedFields = nil
	kind := pod.GroupVersionKind()
	upstream, own := newManagers(b, managedfields.NewDefaultFieldManager), newManagers(b, newManager)
	updates := newCache(own, kind)
	for name, update := range map[string]func(live, next runtime.Object){
		"upstream": func(live, next runtime.Object) { upstream.of(kind).UpdateNoErrors(live, next, "kubelet") },
		"own":      func(live, next runtime.Object) { own.of(kind).UpdateNoErrors(live, next, "kubelet") },
		"updates":  func(live, next runtime.Object) { updates.Update(live, next, "kubelet") },
	} {
		b.Run(name, func(b *testing.B) {
			live, err := own.of(kind).Update(&corev1.Pod{TypeMeta: pod.TypeMeta}, pod.DeepCopy(), "creator")
			if err != nil {
				b.Fatal(err)
			}
			live.(*corev1.Pod).UID = "uid"
			next := live.DeepCopyObject().(*corev1.Pod)
			next.Status.Message = "changed"
			entries := next.ManagedFields
			b.ReportAllocs()
			for b.Loop() {
				next.ManagedFields = entries
				update(live, next)
			}
		})
	}
}
