package e2e_test

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"

	"github.com/larder-io/larder/internal/proctest"
)

// TestServerWorksWithAllFeatureGates checks that with all feature gates on, the server serves CBOR, which its own
// clients then use.
func TestServerWorksWithAllFeatureGates(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--feature-gates=AllAlpha=true,AllBeta=true", "--runtime-config=api/all=true")
	codec := cbor.NewSerializer(unstructuredscheme.NewUnstructuredCreator(), unstructuredscheme.NewUnstructuredObjectTyper())
	send := func(method, path, contentType string, object map[string]any, want string) *unstructured.Unstructured {
		t.Helper()
		var body bytes.Buffer
		if object != nil {
			if err := codec.Encode(&unstructured.Unstructured{Object: object}, &body); err != nil {
				t.Fatal(err)
			}
		}
		resp, text := p.fetch(method, path, &body, http.Header{"Accept": {"application/cbor"}, "Content-Type": {contentType}})
		if resp.StatusCode >= 300 || resp.Header.Get("Content-Type") != want {
			t.Fatalf("%s %s: %d %v %q", method, path, resp.StatusCode, resp.Header, text)
		}
		decoded := &unstructured.Unstructured{}
		if want == runtime.ContentTypeCBOR {
			if _, _, err := codec.Decode([]byte(text), nil, decoded); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
		}
		return decoded
	}
	definition := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "things", "kind": "Thing"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "x-kubernetes-preserve-unknown-fields": true,
			}}}},
		},
	}
	const binary = runtime.ContentTypeCBOR
	send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", binary, definition, binary)
	proctest.Eventually(t, "things are served", func() error {
		_, err := p.client().Discovery().ServerResourcesForGroupVersion("example.com/v1")
		return err
	})
	for _, kind := range []struct{ version, kind, path string }{
		{"v1", "ConfigMap", "/api/v1/namespaces/default/configmaps"},
		{"example.com/v1", "Thing", "/apis/example.com/v1/namespaces/default/things"},
	} {
		object := func(value string) map[string]any {
			return map[string]any{
				"apiVersion": kind.version, "kind": kind.kind, "metadata": map[string]any{"name": "mine"}, "data": map[string]any{"k": value},
			}
		}
		send("POST", kind.path, binary, object("v"), binary)
		for path, want := range map[string]string{
			kind.path + "/mine": kind.kind, kind.path: kind.kind + "List", kind.path + "?resourceVersion=0&labelSelector=a!=b": kind.kind + "List",
		} {
			if got := send("GET", path, "", nil, binary); got.GetKind() != want {
				t.Errorf("%s: %v", path, got)
			}
		}
		send("GET", kind.path+"?watch=1&timeoutSeconds=1", "", nil, runtime.ContentTypeCBORSequence)
		applied := send("PATCH", kind.path+"/mine?fieldManager=me&force=true", "application/apply-patch+cbor", object("w"), binary)
		if value, _, _ := unstructured.NestedString(applied.Object, "data", "k"); value != "w" {
			t.Errorf("applied object: %v", applied)
		}
		send("DELETE", kind.path+"/mine", "", nil, binary)
	}
	send("GET", "/apis/apps/v1", "", nil, binary)
	for path, spoken := range map[string]bool{"apis/apps": false, "apis/apps/v1": true} {
		if described := strings.Contains(p.want(200, "/openapi/v3/"+path), runtime.ContentTypeCBOR); described != spoken {
			t.Errorf("OpenAPI names CBOR for %s: %v, want %v", path, described, spoken)
		}
	}
	if resp, text := p.ask("GET", "/api", "", "Accept: application/cbor, application/json"); resp.StatusCode != 200 || !strings.HasPrefix(text, `{"kind":"APIVersions"`) {
		t.Errorf("/api: %d %s", resp.StatusCode, text)
	}
	for line := range strings.Lines(p.Output()) {
		if regexp.MustCompile(`\b415\b`).MatchString(line) || strings.Contains(line, "unsupported media type") || strings.Contains(line, "panic") {
			t.Errorf("unexpected log line: %s", line)
		}
	}
}
