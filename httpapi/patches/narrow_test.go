package patches

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kjson "sigs.k8s.io/json"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// patchUpstream applies a strategic merge patch to a stored object as upstream's handler does.
func patchUpstream(scope *handlers.RequestScope, body string, stored runtime.Object) (runtime.Object, error) {
	sample, err := legacyscheme.Scheme.New(scope.Kind)
	if err != nil {
		return nil, err
	}
	reference, err := scope.UnsafeConvertor.ConvertToVersion(sample, scope.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	current, err := scope.UnsafeConvertor.ConvertToVersion(stored, scope.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	result, err := legacyscheme.Scheme.New(scope.Kind)
	if err != nil {
		return nil, err
	}
	original, err := runtime.DefaultUnstructuredConverter.ToUnstructured(current)
	if err != nil {
		return nil, err
	}
	var patch map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(body), &patch); err != nil {
		return nil, err
	}
	patched, err := strategicpatch.StrategicMergeMapPatch(original, patch, reference)
	if err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(patched, result, true); err != nil && !runtime.IsStrictDecodingError(err) {
		return nil, err
	}
	scope.Defaulter.Default(result)
	return scope.UnsafeConvertor.ConvertToVersion(result, scope.HubGroupVersion)
}

func scopeOf(kind schema.GroupVersionKind) *handlers.RequestScope {
	return &handlers.RequestScope{
		Kind: kind, HubGroupVersion: schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal},
		UnsafeConvertor: runtime.UnsafeObjectConvertor(legacyscheme.Scheme), Defaulter: legacyscheme.Scheme,
		Serializer: legacyscheme.Codecs, Creater: legacyscheme.Scheme,
	}
}

// patchOf returns a patch of objects of kind.
func patchOf(t testing.TB, kind schema.GroupVersionKind, of types.PatchType, body, directive string) *Patch {
	t.Helper()
	target := NewTarget(scopeOf(kind), func() runtime.Object {
		obj, err := legacyscheme.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
		if err != nil {
			t.Fatal(err)
		}
		return obj
	})
	return &Patch{Target: &target, Kind: of, Data: []byte(body), Directive: directive}
}

// strategic returns a strategic merge patch.
func strategic(t testing.TB, kind schema.GroupVersionKind, body string) *Patch {
	t.Helper()
	return patchOf(t, kind, types.StrategicMergePatchType, body, metav1.FieldValidationWarn)
}

// sameError reports whether both errors are nil, or the text of got contains the text of want.
func sameError(got, want error) bool {
	return (got == nil) == (want == nil) && (got == nil || strings.Contains(got.Error(), want.Error()))
}

// object returns a random object of a kind, decoded from its stored form.
func object(t testing.TB, kind schema.GroupVersionKind, seed int64) runtime.Object {
	t.Helper()
	obj, err := legacyscheme.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		t.Fatal(err)
	}
	registrytest.Fill(obj, rand.NewSource(seed))
	codec := legacyscheme.Codecs.LegacyCodec(kind.GroupVersion())
	stored, err := runtime.Encode(codec, obj)
	if err != nil {
		t.Fatal(err)
	}
	if obj, err = runtime.Decode(codec, stored); err != nil {
		t.Fatal(err)
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetUID("6a1f0b1e")
	return obj
}

// kinds returns the kinds that are stored, in all served versions.
func kinds(t testing.TB) []schema.GroupVersionKind {
	var list []schema.GroupVersionKind
	for kind := range legacyscheme.Scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || !legacyscheme.Scheme.Recognizes(kind.GroupKind().WithVersion(runtime.APIVersionInternal)) {
			continue
		}
		obj, err := legacyscheme.Scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := meta.Accessor(obj); err == nil {
			list = append(list, kind)
		}
	}
	if len(list) < 60 {
		t.Fatalf("found %d kinds only", len(list))
	}
	return list
}

// patchFrom returns a patch with some of the differences between two objects.
func patchFrom(t testing.TB, kind schema.GroupVersionKind, from, to runtime.Object, random *rand.Rand) string {
	encode := func(obj runtime.Object) []byte {
		data, err := runtime.Encode(legacyscheme.Codecs.LegacyCodec(kind.GroupVersion()), obj)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	sample, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	data, err := strategicpatch.CreateTwoWayMergePatch(encode(from), encode(to), sample)
	if err != nil {
		return "" // upstream cannot compare some types
	}
	var patch map[string]any
	if err := json.Unmarshal(data, &patch); err != nil {
		t.Fatal(err)
	}
	thin(patch, random)
	if data, err = json.Marshal(patch); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// thin removes some keys of a patch, sets some to null, and adds directives and unknown keys.
func thin(patch map[string]any, random *rand.Rand) {
	for key, to := range patch {
		if below, ok := to.(map[string]any); ok && random.Intn(4) > 0 {
			thin(below, random)
			continue
		}
		switch random.Intn(4) {
		case 0:
			delete(patch, key)
		case 1:
			if random.Intn(4) == 0 {
				patch[key] = nil
			}
		}
	}
	switch random.Intn(20) {
	case 0:
		patch["$patch"] = "replace"
	case 1:
		patch["$patch"] = "delete"
	case 2:
		patch["$retainKeys"] = []any{"name", "labels", "replicas"}
	case 3:
		patch["unheardOf"] = map[string]any{"a": 1}
	case 4:
		patch["Status"] = map[string]any{"phase": "x"}
	}
}

// TestStrategicPatchesMatchUpstream applies random patches to random objects of all kinds and versions,
// compares the results with upstream's, and checks that the stored objects do not change.
func TestStrategicPatchesMatchUpstream(t *testing.T) {
	t.Parallel()
	compared, failed, seeds := 0, 0, proctest.Iterations(6)
	for _, kind := range kinds(t) {
		for seed := range int64(seeds) {
			if !narrows(t, kind) {
				break
			}
			stored, random := object(t, kind, seed), rand.New(rand.NewSource(seed))
			body := patchFrom(t, kind, stored, object(t, kind, seed+100), random)
			if body == "" {
				continue
			}
			before := stored.DeepCopyObject()
			got, gotErr := strategic(t, kind, body).Apply(t.Context(), stored)
			var want runtime.Object
			var wantErr error
			// Upstream iterates over the patch's Go map in random order. The order decides which of several errors it
			// returns, and whether a field or a directive for the field has priority.
			for range 200 {
				want, wantErr = patchUpstream(scopeOf(kind), body, before.DeepCopyObject())
				same := sameError(gotErr, wantErr)
				if same && wantErr == nil {
					same, _ = equal(want, got)
				}
				if same {
					break
				}
			}
			if !sameError(gotErr, wantErr) {
				t.Fatalf("%s, seed %d, %s: error %v, want %v", kind, seed, body, gotErr, wantErr)
			}
			if !reflect.DeepEqual(stored, before) {
				t.Fatalf("%s, seed %d, %s: the stored object changed", kind, seed, body)
			}
			if wantErr != nil {
				failed++
				continue
			}
			compared++
			if same, diff := equal(want, got); !same {
				t.Fatalf("%s, seed %d, %s: %s", kind, seed, body, diff)
			}
			if overwrite(reflect.ValueOf(got)); !reflect.DeepEqual(stored, before) {
				t.Fatalf("%s, seed %d, %s: the result shares memory with the stored object", kind, seed, body)
			}
		}
	}
	if compared < 50*seeds || failed == 0 {
		t.Errorf("compared %d results and %d errors, want more", compared, failed)
	}
}

// equal compares the JSON of two objects, so that an empty list equals nil. It also returns both as text.
func equal(want, got runtime.Object) (bool, string) {
	w, err := json.Marshal(want)
	if err != nil {
		return false, err.Error()
	}
	g, err := json.Marshal(got)
	if err != nil {
		return false, err.Error()
	}
	return string(w) == string(g), fmt.Sprintf("got\n%s\nwant\n%s", g, w)
}

// overwrite changes everything that v refers to.
func overwrite(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			overwrite(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				overwrite(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			overwrite(v.Index(i))
		}
		if v.Len() > 0 && v.Index(0).CanSet() {
			v.Index(0).SetZero()
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.Value{})
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString("overwritten")
		}
	}
}

// narrows reports whether patches of a kind may be narrowed.
func narrows(t testing.TB, kind schema.GroupVersionKind) bool {
	t.Helper()
	sample, err := legacyscheme.Scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	return !holdsDocument(reflect.TypeOf(sample), make(map[reflect.Type]bool))
}

// TestDocumentsBecomeMaps checks that a strategic merge patch re-encodes raw documents that it does not change, as upstream
// does. Patches of kinds with such documents are therefore not narrowed.
func TestDocumentsBecomeMaps(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ControllerRevision"}
	revision := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"z":1.0,"b":12345678901234567890, "a":"x","d":1,"d":2}`)}}
	revision.Name, revision.Namespace, revision.UID = "a", "b", "6a1f0b1e"
	stored, err := legacyscheme.Scheme.ConvertToVersion(revision, schema.GroupVersion{Group: "apps", Version: runtime.APIVersionInternal})
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"metadata":{"labels":{"k":"v"}}}`
	want, err := patchUpstream(scopeOf(kind), body, stored.DeepCopyObject())
	if err != nil {
		t.Fatal(err)
	}
	got, err := strategic(t, kind, body).Apply(t.Context(), stored)
	if err != nil {
		t.Fatal(err)
	}
	if same, diff := equal(want, got); !same {
		t.Error(diff)
	}
	left := 0
	for _, kind := range kinds(t) {
		if !narrows(t, kind) {
			left++
		}
	}
	if pod := (schema.GroupVersionKind{Version: "v1", Kind: "Pod"}); !narrows(t, pod) || left == 0 || left > 20 {
		t.Errorf("patches of %d kinds are not narrowed, want 1 to 20; those of pods are: %t, want true", left, narrows(t, pod))
	}
}

// TestLargePatchesMatchUpstream checks that a patch that is too large to be narrowed has the same result as upstream's.
func TestLargePatchesMatchUpstream(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	stored := object(t, kind, 1)
	for _, size := range []int{maxNarrowed / 2, 3 * maxNarrowed} {
		body := `{"data":{"k":"` + strings.Repeat("v", size) + `"}}`
		want, err := patchUpstream(scopeOf(kind), body, stored.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		patch := strategic(t, kind, body)
		got, err := patch.Apply(t.Context(), stored.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		if same, diff := equal(want, got); !same {
			t.Errorf("a patch of %d bytes: %s", size, diff)
		}
		if narrowed := patch.mayNarrow(); narrowed != (size < maxNarrowed) {
			t.Errorf("a patch of %d bytes was narrowed: %t, want %t", size, narrowed, !narrowed)
		}
	}
}

func BenchmarkStatusPatch(b *testing.B) {
	kind := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	pod := registrytest.Pod(1)
	pod.UID = "6a1f0b1e"
	const body = `{"metadata":{"uid":"6a1f0b1e"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`
	stored, err := legacyscheme.Scheme.ConvertToVersion(pod, schema.GroupVersion{Version: runtime.APIVersionInternal})
	if err != nil {
		b.Fatal(err)
	}
	for name, apply := range map[string]func(*Patch) (runtime.Object, error){
		"whole":    func(*Patch) (runtime.Object, error) { return patchUpstream(scopeOf(kind), body, stored) },
		"narrowed": func(p *Patch) (runtime.Object, error) { return p.Apply(b.Context(), stored) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			target := strategic(b, kind, body).Target
			for b.Loop() {
				p := Patch{Target: target, Kind: types.StrategicMergePatchType, Data: []byte(body), Directive: metav1.FieldValidationWarn}
				if _, err := apply(&p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
