package negotiate

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"pgregory.net/rapid"
)

// acceptHeaders are headers that clients send, and some that they might.
var acceptHeaders = []string{
	"", "*/*", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;pretty=1",
	"application/json;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", "application/json;as=Table;v=v9;g=meta.k8s.io,application/yaml",
	"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io", "application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
	"text/html", "application/*", "application/json;stream=watch", "application/cbor", "application/json;q=0.1,application/yaml;q=0.9", "application/json;sv=v1", "application/json;as=Nothing;v=v1;g=meta.k8s.io", ";;;", "text/html,*/*",
}

func checkNegotiation(t interface {
	Fatalf(string, ...any)
}, accept string) {
	supported := legacyscheme.Codecs.SupportedMediaTypes()
	want, ok := Accepted(accept, supported, negotiation.DefaultEndpointRestrictions)
	got, known := Common([]byte(accept))
	if known && (!ok || got.MediaType != want.MediaType || got.Streams != want.Streams || got.Pretty != want.Pretty || want.Convert != nil) {
		t.Fatalf("%q: %+v, upstream's %+v %v", accept, got, want, ok)
	}
	req := &http.Request{Header: http.Header{"Accept": {accept}}, URL: &url.URL{}}
	_, info, err := negotiation.NegotiateOutputMediaType(req, legacyscheme.Codecs, negotiation.DefaultEndpointRestrictions)
	if (err == nil) != ok || ok && info.MediaType != want.MediaType {
		t.Fatalf("%q: %+v %v, upstream's %v %v", accept, want, ok, info.MediaType, err)
	}
}

func TestUsualFormatsMatchUpstream(t *testing.T) {
	clause := rapid.SampledFrom([]string{"application/json", "*/*", "application/vnd.kubernetes.protobuf", "application/yaml", "text/html", "application/*", "application/json;q=0.5", "application/json;stream=watch"})
	rapid.Check(t, func(t *rapid.T) {
		checkNegotiation(t, strings.Join(rapid.SliceOfN(clause, 0, 3).Draw(t, "clauses"), rapid.SampledFrom([]string{",", ", "}).Draw(t, "comma")))
	})
}

func FuzzNegotiation(f *testing.F) {
	for _, accept := range acceptHeaders {
		f.Add(accept)
	}
	f.Fuzz(func(t *testing.T, accept string) { checkNegotiation(t, accept) })
}
