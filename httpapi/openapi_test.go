package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/kube-openapi/pkg/handler3"
)

// published is the directory of the documents that Kubernetes publishes with its
// sources. Its server wrote them, with all alpha features on.
func published(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatalf("the go command does not find the sources of Kubernetes: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "api", "openapi-spec")
}

func readJSON(t testing.TB, file string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	decode(t, data, &v)
	return v
}

func TestOpenAPIV3IsWhatKubernetesPublishes(t *testing.T) {
	s, _ := newLarder(t)
	dir := filepath.Join(published(t), "v3")
	var root handler3.OpenAPIV3Discovery
	index := s.must(t, get("/openapi/v3"))
	decode(t, index.body, &root)
	if got := index.header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
		t.Errorf("Content-Type of the index: %q", got)
	}
	for name, entry := range root.Paths {
		t.Run(name, func(t *testing.T) {
			a := s.must(t, get(entry.ServerRelativeURL))
			if got := a.header.Get("Cache-Control"); got != "public, immutable" {
				t.Errorf("Cache-Control of a document named by its hash: %q", got)
			}
			var got map[string]any
			decode(t, a.body, &got)
			want := readJSON(t, filepath.Join(dir, strings.ReplaceAll(name, "/", "__")+"_openapi.json"))
			compareDocuments(t, got, want)
		})
	}
	for _, g := range s.registry.Groups() {
		for _, v := range g.Versions {
			name := path.Join(apiRoot(g.Name == ""), g.Name, v.Version)
			if _, ok := root.Paths[name]; !ok {
				t.Errorf("got no document of %s", name)
			}
		}
	}
}

// TestOpenAPIDocumentsConcurrently checks that building and encoding documents concurrently does not change their contents.
func TestOpenAPIDocumentsConcurrently(t *testing.T) {
	one, _ := newLarder(t)
	want := make(map[string][]byte)
	var index handler3.OpenAPIV3Discovery
	decode(t, one.must(t, get("/openapi/v3")).body, &index)
	for name := range index.Paths {
		want[name] = one.must(t, get("/openapi/v3/"+name)).body
	}
	other, _ := newLarder(t)
	var group sync.WaitGroup
	for name := range want {
		group.Go(func() {
			a := other.call(t, get("/openapi/v3/"+name))
			var got, document map[string]any
			if err := errors.Join(json.Unmarshal(a.body, &got), json.Unmarshal(want[name], &document)); err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			for _, d := range differences(name, got, document) {
				t.Error(d)
			}
		})
	}
	group.Wait()
}

func TestOpenAPIV2IsWhatKubernetesPublishes(t *testing.T) {
	s, _ := newLarder(t)
	var got map[string]any
	a := s.must(t, get("/openapi/v2"))
	decode(t, a.body, &got)
	want := readJSON(t, filepath.Join(published(t), "swagger.json"))
	for _, document := range []map[string]any{got, want} {
		// These two list every group, including the groups of other servers.
		for _, kind := range []string{"DeleteOptions", "WatchEvent"} {
			delete(section(document, "definitions", "io.k8s.apimachinery.pkg.apis.meta.v1."+kind), "x-kubernetes-group-version-kind")
		}
	}
	compareDocuments(t, got, want)

	again := s.call(t, call{method: "GET", path: "/openapi/v2", header: map[string]string{"If-None-Match": a.header.Get("ETag")}})
	if again.code != http.StatusNotModified {
		t.Errorf("with the ETag of the first response: got status %d, want 304", again.code)
	}
	binary := s.must(t, call{method: "GET", path: "/openapi/v2", header: map[string]string{"Accept": "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"}})
	if got := binary.header.Get("Content-Type"); got != "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" || len(binary.body) == 0 {
		t.Errorf("protobuf: %q, %d bytes", got, len(binary.body))
	}
}

// compareDocuments compares every path and every schema of got with want, which may have more of both.
func compareDocuments(t *testing.T, got, want map[string]any) {
	t.Helper()
	withoutCBOR(want)
	withoutEnums(got)
	parts := [][]string{{"paths"}, {"definitions"}, {"components", "schemas"}, {"components", "securitySchemes"}}
	for _, part := range parts {
		ours, theirs := section(got, part...), section(want, part...)
		for _, key := range slices.Sorted(maps.Keys(ours)) {
			for _, d := range differences(key, ours[key], theirs[key]) {
				t.Errorf("%s: %s", strings.Join(part, "."), d)
			}
		}
		if len(ours) > len(theirs) || len(ours) < len(theirs)*2/3 {
			t.Errorf("%s: got %d, Kubernetes publishes %d", strings.Join(part, "."), len(ours), len(theirs))
		}
	}
	for _, key := range []string{"openapi", "swagger", "security", "securityDefinitions"} {
		if !reflect.DeepEqual(got[key], want[key]) {
			t.Errorf("%s: got %v, want %v", key, got[key], want[key])
		}
	}
}

func section(document map[string]any, names ...string) map[string]any {
	for _, name := range names {
		document, _ = document[name].(map[string]any)
	}
	return document
}

// withoutCBOR removes the additions of an alpha feature.
func withoutCBOR(v any) any {
	cbor := func(name string) bool { return strings.Contains(name, "cbor") }
	switch v := v.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(name string, _ any) bool { return cbor(name) })
		for name, e := range v {
			v[name] = withoutCBOR(e)
		}
	case []any:
		v = slices.DeleteFunc(v, func(e any) bool { s, ok := e.(string); return ok && cbor(s) })
		for i, e := range v {
			v[i] = withoutCBOR(e)
		}
		return v
	}
	return v
}

// withoutEnums removes the additions of a feature that was off when the published documents were written.
func withoutEnums(v any) {
	switch v := v.(type) {
	case map[string]any:
		if text, ok := v["description"].(string); ok && v["enum"] != nil {
			text, _, _ = strings.Cut(text, "\n\nPossible enum values:")
			v["description"] = strings.TrimRight(text, "\n")
		}
		if _, values := v["enum"].([]any); values { // else a property that is called so
			delete(v, "enum")
		}
		for _, e := range v {
			withoutEnums(e)
		}
	case []any:
		for _, e := range v {
			withoutEnums(e)
		}
	}
}

// differences names the places at which two documents differ.
func differences(at string, got, want any) []string {
	g, ok1 := got.(map[string]any)
	w, ok2 := want.(map[string]any)
	if !ok1 || !ok2 {
		if reflect.DeepEqual(got, want) {
			return nil
		}
		return []string{fmt.Sprintf("%s: got %.300v, want %.300v", at, got, want)}
	}
	var list []string
	names := maps.Clone(g)
	maps.Copy(names, w)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		list = append(list, differences(at+" "+name, g[name], w[name])...)
	}
	return list
}
