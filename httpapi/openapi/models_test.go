package openapi

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/version"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

// release is the release that documents are of.
func release() *version.Info {
	return &version.Info{Major: "1", Minor: "36", EmulationMajor: "1", EmulationMinor: "36"}
}

// TestOpenAPIDocumentsShareNoMaps checks that building a document does not write to one that is being encoded.
func TestOpenAPIDocumentsShareNoMaps(t *testing.T) {
	groups := registrytest.New(t, nil).Registry.Groups()
	d := &Describer{Models: NewModels(), Groups: groups, Version: release()}
	d.Models.mu.Lock()
	definitions := d.Models.v3Locked() // kept, so that all documents are built from it
	d.Models.mu.Unlock()
	for _, service := range d.services() {
		document, err := d.v3(service)
		if err != nil {
			t.Fatal(err)
		}
		for _, schema := range document.Components.Schemas {
			if schema.Extensions != nil {
				schema.Extensions["x-written-by"] = service.name
			}
		}
	}
	for name, definition := range definitions.Definitions {
		if by, ok := definition.Schema.Extensions["x-written-by"]; ok {
			t.Errorf("%s is shared by the document of %v", name, by)
		}
	}
}

// TestSchemasShareNoMaps checks the same for the schemas that converters are built from.
func TestSchemasShareNoMaps(t *testing.T) {
	groups := registrytest.New(t, nil).Registry.Groups()
	m := NewModels()
	m.mu.Lock()
	definitions := m.v3Locked() // kept, so that all schemas are built from it
	m.mu.Unlock()
	written := 0
	for _, g := range groups {
		schemas, err := m.Schemas(g)
		if err != nil {
			t.Fatal(err)
		}
		for _, schema := range schemas {
			if schema.Extensions != nil {
				schema.Extensions["x-written-by"] = g.Name
				written++
			}
		}
	}
	if written == 0 {
		t.Error("no schema has extensions, so the test is invalid")
	}
	for name, definition := range definitions.Definitions {
		if by, ok := definition.Schema.Extensions["x-written-by"]; ok {
			t.Errorf("%s is shared by the schemas of group %q", name, by)
		}
	}
}

// BenchmarkConverter measures the additional cost of the first write to a group.
func BenchmarkConverter(b *testing.B) {
	back := registrytest.New(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewModels().Converter(back.Registry.Groups()[0]).(*lazyConverter).build(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpenAPIV3 is the first request for the index, which names each document
// by its hash and so needs them all.
func BenchmarkOpenAPIV3(b *testing.B) {
	back := registrytest.New(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		d := &Describer{Models: NewModels(), Groups: back.Registry.Groups(), Version: release()}
		for _, s := range d.services() {
			if _, err := d.v3(s); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// TestDocumentIsInflatedOncePerRead checks that an OpenAPI document is inflated once for a read, however many
// ranges the read asks for.
func TestDocumentIsInflatedOncePerRead(t *testing.T) {
	const size = 4 << 20
	p, err := pack(func(w io.Writer) error {
		_, err := io.WriteString(w, ranges(size/16, "%015d,"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.send(w, r, "json") })
	for _, test := range []struct {
		name, header string
		n            int
		value        func(n int) string
		code         int
	}{
		{"ascending", "Range", 12, func(n int) string { return "bytes=" + ranges(n, "1%02d000-1%02[1]d001,") }, http.StatusPartialContent},
		{"descending", "Range", 12, func(n int) string { return "bytes=" + downward(n) }, http.StatusPartialContent},
		{"equal", "Range", 12, func(n int) string { return "bytes=" + strings.Repeat("4000000-4000001,", n) }, http.StatusPartialContent},
		{"too many", "Range", 1000, func(n int) string { return "bytes=" + strings.Repeat("4000000-4000001,", n) }, http.StatusOK},
		{"malformed", "Range", 12, func(n int) string { return "bytes=" + strings.Repeat("0-0,", n) + "x" }, http.StatusRequestedRangeNotSatisfiable},
		{"tags", "If-None-Match", 1000, func(n int) string { return strings.Repeat(`"x", `, n) + `"y"` }, http.StatusOK},
	} {
		t.Run(test.name, func(t *testing.T) {
			proctest.OfProcess.CheckGrowth(t, test.n, func(n int) func() {
				header := http.Header{test.header: {test.value(n)}}
				return func() {
					if w := responseTo(handler, http.MethodGet, "/openapi/v2", header); w.Code != test.code {
						t.Fatalf("got %d, want %d", w.Code, test.code)
					}
				}
			})
		})
	}
	one, other := must(p.unpack()), must(p.unpack())
	if one != other || len(*one) != size {
		t.Errorf("two readers do not share the %d bytes of the document", len(*one))
	}
}

// downward is n ranges, each before the last.
func downward(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d-%[1]d,", 4000000-i*1000)
	}
	return b.String()
}

// ranges repeats text, which holds one %d.
func ranges(n int, text string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, text, i)
	}
	return b.String()
}
