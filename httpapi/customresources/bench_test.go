package customresources_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// benchCRD returns a CRD with a status and 20 fields, like those of larder-bench crds.
func benchCRD(plural string) string {
	var fields strings.Builder
	for i := range 20 {
		fmt.Fprintf(&fields, `,"field%d":{"type":"string","maxLength":100}`, i)
	}
	return fmt.Sprintf(`{"metadata":{"name":"%[1]s.bench.example.com"},"spec":{"group":"bench.example.com","scope":"Namespaced","names":{"plural":%[1]q,"singular":"one%[1]s","kind":"One%[1]s","listKind":"One%[1]sList"},`+
		`"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"replicas":{"type":"integer","default":1}%[2]s}},"status":{"type":"object","properties":{"ready":{"type":"boolean"}}}}}}}]}}`, plural, fields.String())
}

// item returns an object of a benchCRD as JSON. Objects with different n differ.
func item(plural, name, revision string, n int) string {
	var fields strings.Builder
	for i := range 10 {
		fmt.Fprintf(&fields, `,"field%d":"value %d of the object"`, i, i)
	}
	metadata := fmt.Sprintf(`"name":%q,"labels":{"app":"bench"}`, name)
	if revision != "" {
		metadata += fmt.Sprintf(`,"resourceVersion":%q`, revision)
	}
	return fmt.Sprintf(`{"apiVersion":"bench.example.com/v1","kind":"One%s","metadata":{%s},"spec":{"replicas":%d%s}}`, plural, metadata, n, fields.String())
}

// revision returns the resourceVersion of an object.
func revision(get func(path string) response, path string) string {
	var object struct {
		Metadata struct{ ResourceVersion string } `json:"metadata"`
	}
	_ = json.Unmarshal([]byte(get(path).body), &object) // "" if there is none
	return object.Metadata.ResourceVersion
}

// BenchmarkWrites measures writes of custom resources without a network connection.
func BenchmarkWrites(b *testing.B) {
	const path = "/apis/bench.example.com/v1/namespaces/ns/things"
	for _, kind := range []string{"create", "update", "merge", "status", "apply", "delete"} {
		b.Run(kind, func(b *testing.B) {
			s := newServer(b)
			s.define(b, benchCRD("things"))
			last := s.do(b, http.MethodPost, path, "application/json", item("things", "one", "", 1))
			if kind == "delete" {
				for i := range b.N {
					s.do(b, http.MethodPost, path, "application/json", item("things", fmt.Sprintf("a%d", i), "", i))
				}
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				switch kind {
				case "create":
					s.do(b, http.MethodPost, path, "application/json", item("things", fmt.Sprintf("a%d", i), "", i))
				case "update":
					last = s.do(b, http.MethodPut, path+"/one", "application/json", item("things", "one", revision(func(string) response { return last }, ""), i))
				case "merge":
					s.do(b, http.MethodPatch, path+"/one", "application/merge-patch+json", fmt.Sprintf(`{"spec":{"replicas":%d}}`, i+2))
				case "status":
					s.do(b, http.MethodPatch, path+"/one/status", "application/merge-patch+json", fmt.Sprintf(`{"status":{"ready":%v}}`, i%2 == 0))
				case "apply":
					s.do(b, http.MethodPatch, path+"/one?fieldManager=bench&force=true", "application/apply-patch+yaml", item("things", "one", "", i+2))
				case "delete":
					s.do(b, http.MethodDelete, path+fmt.Sprintf("/a%d", i), "", "")
				}
			}
		})
	}
}

// BenchmarkFirstWrite measures the first write to a new CRD.
func BenchmarkFirstWrite(b *testing.B) {
	s := newServer(b)
	for i := range b.N {
		s.define(b, benchCRD(fmt.Sprintf("things%d", i)))
		s.eventually(b, call{method: http.MethodGet, path: fmt.Sprintf("/apis/bench.example.com/v1/things%d", i)}, func(a response) bool { return a.code == http.StatusOK })
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		plural := fmt.Sprintf("things%d", i)
		s.do(b, http.MethodPost, "/apis/bench.example.com/v1/namespaces/ns/"+plural, "application/json", item(plural, "one", "", 1))
	}
}
