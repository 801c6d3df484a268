package patches

import (
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/larder-io/larder/internal/registry/registrytest"
)

// merged is what upstream's handler does to apply a merge patch to a stored object. The error
// has the text that is part of upstream's.
func merged(scope *handlers.RequestScope, body io.Reader, stored runtime.Object, strict bool) (runtime.Object, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
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
	after, err := jsonpatch.MergePatch(before, data)
	if err != nil {
		return nil, err
	}
	result, err := legacyscheme.Scheme.New(scope.Kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		return nil, err
	}
	if err := runtime.DecodeInto(codec, after, result); err != nil {
		return result, fmt.Errorf("%s: %w", after, err)
	}
	return result, nil
}

// enlarge gives an object an annotation by which it is large enough to be narrowed.
func enlarge(t *testing.T, obj runtime.Object) {
	t.Helper()
	accessor, err := meta.Accessor(obj)
	if err != nil {
		t.Fatal(err)
	}
	accessor.SetAnnotations(map[string]string{"large": strings.Repeat("v", minMerged)})
}

func mergePatch(body string) *http.Request {
	req := httptest.NewRequest(http.MethodPatch, "/", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/merge-patch+json")
	return req
}

// mergeScopeOf is scopeOf with the serializer of the API.
func mergeScopeOf(kind schema.GroupVersionKind) *handlers.RequestScope {
	scope := scopeOf(kind)
	scope.Serializer = legacyscheme.Codecs
	return scope
}

// oddMerges are patches that are, or may have to be, left to upstream.
var oddMerges = []string{
	`{}`, `null`, `[]`, `1`, `{"a":`, `{"metadata":null}`, `{"metadata":{}}`, `{"metadata":1}`, `{"metadata":[{"a":null}]}`, `{"spec":null,"status":{}}`,
	`{"kind":"Other"}`, `{"kind":null}`, `{"apiVersion":"other/v1"}`, `{"apiVersion":7}`, `{"apiVersion":""}`, `{"Metadata":{"name":"x"}}`, `{"metadata":{"Name":"x"}}`,
	`{"metadata":{"labels":{"a":"1"}},"metadata":{"annotations":{"b":"2"}}}`, `{"metadata":{"labels":{"a b":"1","c":null}}}`, `{"metadata":{"labels":{"a":1}}}`,
	`{"metadata":{"uid":"other","resourceVersion":"7"}}`, `{"metadata":{"uid":null}}`, `{"metadata":{"managedFields":null}}`, `{"metadata":{"creationTimestamp":"today"}}`,
	`{"spec":{"$patch":"replace"}}`, `{"$patch":"delete","metadata":{"labels":null}}`, `{"unheardOf":{"a":1}}`, `{"spec":{"unheardOf":1}}`, `{"data":{"k":null,"l":"m"}}`, `{"data":{"k":7}}`,
}

// TestMergePatchesGiveWhatUpstreamGives applies random merge patches, and odd ones, to random
// objects of all kinds and versions, and compares results, errors, and the objects that were
// patched.
func TestMergePatchesGiveWhatUpstreamGives(t *testing.T) {
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
			want, wantErr := merged(mergeScopeOf(kind), strings.NewReader(body), stored.DeepCopyObject(), strict)
			scope, req := Narrow(mergeScopeOf(kind), mergePatch(body))
			got, gotErr := merged(scope, req.Body, stored, strict)
			if fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
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
			if m := scope.Serializer.(*merging); m.patch != nil && *m.patch != nil {
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
	t.Logf("compared %d results, of which %d were narrowed, and %d errors", compared, narrowed, failed)
	if compared < 600 || failed < 600 || narrowed < 400 || compared-narrowed < 100 {
		t.Errorf("compared %d results, of which %d were narrowed, and %d errors", compared, narrowed, failed)
	}
}

// TestMergePatchesAreReallyNarrowed: upstream encodes an empty object, each time it tries again,
// unless the patch is too large or not of a stored object.
func TestMergePatchesAreReallyNarrowed(t *testing.T) {
	t.Parallel()
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	stored, small := object(t, kind, 1), &core.ConfigMap{}
	small.UID = "6a1f0b1e"
	stored.(*core.ConfigMap).Data = map[string]string{"large": strings.Repeat("v", minMerged)}
	sample, err := legacyscheme.Scheme.New(kind.GroupKind().WithVersion(runtime.APIVersionInternal))
	if err != nil {
		t.Fatal(err)
	}
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
		"not stored":   {`{"data":{"k":"v"}}`, sample, false},
		"another kind": {`{"kind":"Secret"}`, stored, false},
		"a key twice":  {`{"data":{"k":"v","k":"w"}}`, stored, false},
	} {
		scope, req := Narrow(mergeScopeOf(kind), mergePatch(c.body))
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			t.Fatal(err)
		}
		info, _ := runtime.SerializerInfoForMediaType(scope.Serializer.SupportedMediaTypes(), runtime.ContentTypeJSON)
		encoder := scope.Serializer.EncoderForVersion(info.Serializer, kind.GroupVersion())
		if data, err := runtime.Encode(encoder, stored); err != nil || string(data) == "{}" {
			t.Errorf("%s: as an answer: %s, %v", name, data, err)
		}
		scope.Serializer.DecoderToVersion(info.StrictSerializer, scope.HubGroupVersion)
		for range 2 {
			if data, err := runtime.Encode(encoder, c.obj); err != nil || (string(data) == "{}") != c.narrow {
				t.Errorf("%s: %s, %v", name, data, err)
			}
		}
		answer := scope.Serializer.EncoderForVersion(info.Serializer, kind.GroupVersion())
		if data, err := runtime.Encode(answer, stored); err != nil || string(data) == "{}" {
			t.Errorf("%s: as a later answer: %s, %v", name, data, err)
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
		for name, narrowed := range map[string]bool{"whole": false, "narrowed": true} {
			b.Run(kind.Kind+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					scope, req := mergeScopeOf(kind), mergePatch(body)
					if narrowed {
						scope, req = Narrow(scope, req)
					}
					if _, err := merged(scope, req.Body, stored, true); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
