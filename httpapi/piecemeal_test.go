package httpapi

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/larder-io/larder/internal/registry"
)

// TestPiecemealLists reads large lists that fit into the budget of the cache, or of the resource, not at all, in part,
// or completely. The responses must equal upstream's, and be chunked if items are encoded for the response.
func TestPiecemealLists(t *testing.T) {
	const (
		enough = 1 << 30
		some   = 1 << 20
		none   = 1
	)
	whole := func(room int64) func(*registry.Config) {
		return func(c *registry.Config) { c.CacheBytes = room }
	}
	share := func(room int64) func(*registry.Config) {
		return func(c *registry.Config) {
			c.CacheShares = map[schema.GroupResource]int64{{Resource: "configmaps"}: room}
		}
	}
	for name, test := range map[string]struct {
		room   int64
		config func(*registry.Config)
	}{
		"enough": {enough, whole(enough)}, "some": {some, whole(some)}, "none": {none, whole(none)},
		"a share of some": {some, share(some)}, "a share of none": {none, share(none)},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "some" && name != "a share of none" {
				t.Skip("takes a second of CPU; with -short one budget with room and one without are enough")
			}
			p, room := newPair(t, test.config), test.room
			p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
			for n := range 60 {
				half := strings.Repeat(fmt.Sprintf(`<%d>\n\"\\`, n), 700)
				p.ours.must(t, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"c%d","annotations":{"a":"%s"}},"data":{"k":"%s"}}`, n, half, half)))
			}
			for range 2 {
				for _, query := range []string{"", "?pretty=1", "?labelSelector=!x"} {
					for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
						for _, encoding := range []string{"identity", "gzip"} {
							if accept == "application/yaml" && query != "?labelSelector=!x" {
								continue // YAML takes long
							}
							a := p.same(t, call{method: "GET", path: configmaps + query, header: map[string]string{"Accept": accept, "Accept-Encoding": encoding}})
							json := accept == "application/json" && encoding == "identity" && query == ""
							if json && room == none && a.header.Get("Content-Length") != "" {
								t.Errorf("%s %s: got a Content-Length, want a list that is encoded while it is sent", query, accept)
							}
							converted := encoding == "gzip" || accept == "application/yaml"
							if converted && query == "?labelSelector=!x" && !strings.Contains(accept, "as=") && a.header.Get("Content-Length") != "" {
								t.Errorf("%s %s: the list is converted before it is sent", query, accept)
							}
						}
					}
				}
			}
			a := p.ours.must(t, call{method: "GET", path: configmaps, header: map[string]string{"Accept": "application/json"}})
			if room == enough && a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) {
				t.Errorf("got Content-Length %q of a cached list, want %d", a.header.Get("Content-Length"), len(a.body))
			}
			refused := 0
			for _, r := range p.ours.registry.Resources() {
				if n := int(r.Cache.Schema().Pressure().Refused); r.GroupResource.String() == "configmaps" {
					refused = n
				} else if room == enough && n > 0 {
					t.Errorf("got %d refused encodings of %s, want 0", n, r.GroupResource)
				}
			}
			if (refused > 0) != (room != enough) {
				t.Errorf("got %d refused encodings, want some unless all fit", refused)
			}
		})
	}
}

// TestPiecemealListsThatAreNotYAML reads lists with a string that cannot be YAML, and the object with it. Clients get
// upstream's error, in YAML, and no part of the list.
func TestPiecemealListsThatAreNotYAML(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	for n := range 30 {
		p.ours.must(t, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":"%s"}}`, n, strings.Repeat("0123456789", 3000))))
	}
	p.ours.must(t, post(configmaps, `{"metadata":{"name":"d","annotations":{"a":"\u007f"}}}`))
	const list = "PartialObjectMetadataList"
	for path, kind := range map[string]string{"": list, "?fieldSelector=metadata.name=d": list, "/d": "PartialObjectMetadata"} {
		for _, as := range []string{"", ";as=" + kind + ";v=v1;g=meta.k8s.io", ";as=Table;v=v1;g=meta.k8s.io"} {
			for _, encoding := range []string{"identity", "gzip"} {
				header := map[string]string{"Accept": "application/yaml" + as, "Accept-Encoding": encoding}
				a := p.same(t, call{method: "GET", path: configmaps + path, header: header})
				if a.code != 500 || !strings.Contains(string(a.body), "yaml: control characters are not allowed") {
					t.Errorf("%s%s: got code %d, want 500: %s", path, as, a.code, a.body)
				}
			}
		}
	}
}

// TestPiecemealListsOfOldClients checks that a client without chunked encoding gets the length.
func TestPiecemealListsOfOldClients(t *testing.T) {
	p := newPair(t, func(c *registry.Config) { c.CacheBytes = 1 })
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	for n := range 30 {
		p.ours.must(t, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":"%s"}}`, n, strings.Repeat("0123456789", 3000))))
	}
	for query, accept := range map[string]string{"": "application/json", "?pretty=1": "application/json", "?labelSelector=!x": "application/yaml"} {
		want := p.ours.must(t, call{method: "GET", path: configmaps + query, header: map[string]string{"Accept": accept}}).body
		c := p.dial(t)
		if _, err := io.WriteString(c, "GET "+configmaps+query+" HTTP/1.0\r\nAccept: "+accept+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ := strings.Cut(string(all), "\r\n\r\n")
		if !strings.Contains(head, fmt.Sprintf("Content-Length: %d\r\n", len(want))) || body != string(want) {
			t.Errorf("%d bytes, want %d, with %q", len(body), len(want), head)
		}
	}
}

// TestCompressedList compares compressed lists with plain ones over the network.
func TestCompressedList(t *testing.T) {
	p := newPair(t)
	p.ours.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	create := func(n int) {
		p.ours.must(t, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":"%s"}}`, n, strings.Repeat("0123456789", 2000))))
	}
	for n := range 40 {
		create(n)
	}
	for n := range 3 {
		for _, path := range []string{configmaps, "/api/v1/configmaps", configmaps + "?labelSelector=!x", configmaps + "?limit=10"} {
			for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
				a := p.same(t, call{method: "GET", path: path, header: map[string]string{"Accept": accept, "Accept-Encoding": "gzip"}})
				length, chunked := a.header.Get("Content-Length"), strings.Contains(path, "Selector") // made as it is sent
				if a.header.Get("Content-Encoding") != "gzip" || a.header.Get("Vary") != "Accept-Encoding" ||
					length != fmt.Sprint(len(a.body)) && !(chunked && length == "") {
					t.Errorf("%s %s: %d bytes with %v", path, accept, len(a.body), a.header)
				}
			}
		}
		create(100 + n)
		p.ours.must(t, call{method: "DELETE", path: fmt.Sprintf("%s/c%d", configmaps, n)})
	}
	metrics := string(p.ours.call(t, call{method: "GET", path: "/metrics"}).body)
	for _, name := range []string{"larder_compressed_list_bytes ", "larder_compressed_list_pieces_total "} {
		if _, after, ok := strings.Cut(metrics, "\n"+name); !ok || strings.HasPrefix(after, "0\n") {
			t.Errorf("got no or a zero sample of %s", name)
		}
	}
}
