package patches

import (
	"cmp"
	"errors"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	kjson "sigs.k8s.io/json"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// mergeUpstream applies a merge patch to a stored object as upstream's handler does. The text of the handler's error
// contains that of mergeUpstream's error.
func mergeUpstream(scope *handlers.RequestScope, body string, stored runtime.Object, strict bool) (runtime.Object, error) {
	if strict {
		var patch map[string]any
		found, err := kjson.UnmarshalStrict([]byte(body), &patch)
		if err != nil || len(found) > 0 {
			return nil, cmp.Or(err, errors.Join(found...))
		}
	}
	info, _ := runtime.SerializerInfoForMediaType(scope.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
	decoder := runtime.Decoder(info.Serializer)
	if strict {
		decoder = info.StrictSerializer
	}
	codec := runtime.NewCodec(scope.Serializer.EncoderForVersion(info.Serializer, scope.Kind.GroupVersion()), scope.Serializer.DecoderToVersion(decoder, scope.HubGroupVersion))
	before, err := runtime.Encode(codec, stored)
	if err != nil {
		return nil, err
	}
	after, err := jsonpatch.MergePatch(before, []byte(body))
	if err != nil {
		return nil, err
	}
	result, err := legacyscheme.Scheme.New(scope.Kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		return nil, err
	}
	if err := runtime.DecodeInto(codec, after, result); err != nil {
		return result, err
	}
	return result, nil
}

// enlarge gives an object a large annotation, so that patches of it are narrowed.
func enlarge(t *testing.T, obj runtime.Object) {
	t.Helper()
	accessor, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetAnnotations(map[string]string{"large": strings.Repeat("v", minMerged)})
}

// mergePatch returns a JSON merge patch.
func mergePatch(t testing.TB, kind schema.GroupVersionKind, body string, strict bool) *Patch {
	t.Helper()
	directive := metav1.FieldValidationIgnore
	if strict {
		directive = metav1.FieldValidationStrict
	}
	return patchOf(t, kind, types.MergePatchType, body, directive)
}

// oddMerges are patches at the limits of what can be narrowed.
var oddMerges = []string{
	`{}`, `null`, `[]`, `1`, `{"a":`, `{"metadata":null}`, `{"metadata":{}}`, `{"metadata":1}`, `{"metadata":[{"a":null}]}`, `{"spec":null,"status":{}}`,
	`{"kind":"Other"}`, `{"kind":null}`, `{"apiVersion":"other/v1"}`, `{"apiVersion":7}`, `{"apiVersion":""}`, `{"Metadata":{"name":"x"}}`, `{"metadata":{"Name":"x"}}`,
	`{"metadata":{"labels":{"a":"1"}},"metadata":{"annotations":{"b":"2"}}}`, `{"metadata":{"labels":{"a b":"1","c":null}}}`, `{"metadata":{"labels":{"a":1}}}`,
	`{"metadata":{"uid":"other","resourceVersion":"7"}}`, `{"metadata":{"uid":null}}`, `{"metadata":{"managedFields":null}}`, `{"metadata":{"creationTimestamp":"today"}}`,
	`{"spec":{"$patch":"replace"}}`, `{"$patch":"delete","metadata":{"labels":null}}`, `{"unheardOf":{"a":1}}`, `{"spec":{"unheardOf":1}}`, `{"data":{"k":null,"l":"m"}}`, `{"data":{"k":7}}`,
}

// TestMergePatchesMatchUpstream applies random and odd merge patches to random objects of all kinds and versions. Results
// and errors must equal upstream's, and stored objects must not change.
func TestMergePatchesMatchUpstream(t *testing.T) {
	t.Parallel()
	var compared, failed, narrowed int
	for _, kind := range kinds(t) {
		if !narrows(t, kind) {
			continue
		}
		for seed := range int64(4 + len(oddMerges)) {
			stored, random := object(t, kind, seed%6), rand.New(rand.NewSource(seed))
			if random.Intn(5) > 0 { // others may be too small
				enlarge(t, stored)
			}
			var body string
			if seed < 4 {
				if body = patchFrom(t, kind, stored, object(t, kind, seed+100), random); body == "" {
					continue
				}
			} else {
				body = oddMerges[seed-4]
			}
			before, strict := stored.DeepCopyObject(), random.Intn(2) == 0
			want, wantErr := mergeUpstream(scopeOf(kind), body, stored.DeepCopyObject(), strict)
			got, gotErr := mergePatch(t, kind, body, strict).Apply(t.Context(), stored)
			if !sameError(gotErr, wantErr) {
				t.Fatalf("%s, seed %d, strict %t, %s: error %v, want %v", kind, seed, strict, body, gotErr, wantErr)
			}
			if !reflect.DeepEqual(stored, before) {
				t.Fatalf("%s, seed %d, %s: the stored object changed", kind, seed, body)
			}
			if wantErr != nil {
				failed++
				continue
			}
			compared++
			if mergePatch(t, kind, body, strict).mergePart(stored) != nil {
				narrowed++
			}
			if same, diff := equal(want, got); !same {
				t.Fatalf("%s, seed %d, strict %t, %s: %s", kind, seed, strict, body, diff)
			}
			if overwrite(reflect.ValueOf(got)); !reflect.DeepEqual(stored, before) {
				t.Fatalf("%s, seed %d, %s: the result shares memory with the stored object", kind, seed, body)
			}
		}
	}
	if compared < 600 || failed < 600 || narrowed < 400 || compared-narrowed < 100 {
		t.Errorf("compared %d results (%d of narrowed patches) and %d errors, want more of each", compared, narrowed, failed)
	}
}

// TestNarrowedMergePatches checks which patches are merged into a part of the object: all but large patches, patches of
// small objects, and patches that may be invalid.
func TestNarrowedMergePatches(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	stored, small := object(t, kind, 1), &core.ConfigMap{}
	small.UID = "6a1f0b1e"
	stored.(*core.ConfigMap).Data = map[string]string{"large": strings.Repeat("v", minMerged)}
	for name, c := range map[string]struct {
		body   string
		obj    runtime.Object
		narrow bool
	}{
		"one key":      {`{"data":{"k":"v"}}`, stored, true},
		"of metadata":  {`{"metadata":{"labels":{"k":"v"}}}`, stored, true},
		"large":        {`{"data":{"k":"` + strings.Repeat("v", maxNarrowed) + `"}}`, stored, false},
		"not known":    {`{"dada":{"k":"v"}}`, stored, false},
		"small":        {`{"data":{"k":"v"}}`, small, false},
		"another kind": {`{"kind":"Secret"}`, stored, false},
		"a key twice":  {`{"data":{"k":"v","k":"w"}}`, stored, false},
	} {
		patch := mergePatch(t, kind, c.body, true)
		for range 2 { // the retry after a conflict
			if part := patch.mergePart(c.obj); (part != nil) != c.narrow {
				t.Errorf("%s: part %v, want a part: %t", name, part, c.narrow)
			}
		}
	}
}

func BenchmarkMergePatch(b *testing.B) {
	for _, kind := range []string{"ConfigMap", "Pod"} {
		kind := schema.GroupVersionKind{Version: "v1", Kind: kind}
		body, stored := `{"data":{"k":"v"}}`, object(b, kind, 1)
		if kind.Kind == "Pod" {
			pod := registrytest.Pod(1)
			pod.UID = "6a1f0b1e"
			var err error
			if stored, err = legacyscheme.Scheme.ConvertToVersion(pod, schema.GroupVersion{Version: runtime.APIVersionInternal}); err != nil {
				b.Fatal(err)
			}
			body = `{"metadata":{"labels":{"k":"v"}}}`
		}
		for name, apply := range map[string]func(*Patch) (runtime.Object, error){
			"whole":    func(*Patch) (runtime.Object, error) { return mergeUpstream(scopeOf(kind), body, stored, true) },
			"narrowed": func(p *Patch) (runtime.Object, error) { return p.Apply(b.Context(), stored) },
		} {
			b.Run(kind.Kind+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				target := mergePatch(b, kind, body, true).Target
				for b.Loop() {
					p := Patch{Target: target, Kind: types.MergePatchType, Data: []byte(body), Directive: metav1.FieldValidationStrict}
					if _, err := apply(&p); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
