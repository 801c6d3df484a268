package httpapi

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkRead measures GET and LIST over TLS, client included.
func BenchmarkRead(b *testing.B) {
	p := newPair(b)
	p.ours.must(b, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	value := strings.Repeat("0123456789", 450)
	for i := range 1000 {
		p.ours.must(b, post(configmaps, fmt.Sprintf(`{"metadata":{"name":"c%d"},"data":{"k":"%s"}}`, i, value)))
	}
	for _, bench := range []struct{ name, path, accept string }{
		{"get", configmaps + "/c1", "application/vnd.kubernetes.protobuf"},
		{"get-cached", configmaps + "/c1?resourceVersion=0", "application/vnd.kubernetes.protobuf"},
		{"list-protobuf", configmaps + "?resourceVersion=0", "application/vnd.kubernetes.protobuf"},
		{"list-json", configmaps + "?resourceVersion=0", "application/json"},
		{"list-partial", configmaps + "?resourceVersion=0", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.pool}, DisableCompression: true}}
			defer client.CloseIdleConnections()
			b.ReportAllocs()
			for b.Loop() {
				req, _ := http.NewRequest("GET", "https://"+p.addr+bench.path, nil)
				req.Header.Set("Accept", bench.accept)
				resp, err := client.Do(req)
				if err != nil {
					b.Fatal(err)
				}
				n, _ := io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				b.SetBytes(n)
			}
		})
	}
}

// BenchmarkWatchOpen measures a watch from the request to its end.
func BenchmarkWatchOpen(b *testing.B) {
	p := newPair(b)
	p.ours.must(b, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	for b.Loop() {
		resp, in := p.openWatch(b, configmaps+"?watch=1&allowWatchBookmarks=1", "application/json")
		if _, err := in.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
		resp.Body.Close()
	}
}
