package faults

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-io/larder/httpapi/faults"
)

var (
	failures = regexp.MustCompile(`(?m)^apiserver_request_(total|terminations_total|post_timeout_total)\{(.*)\} (\d+)$`)
	label    = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// failed returns upstream's counters of failed requests for a resource, by name, verb, scope and code.
func (a *requester) failed(group, resource string) map[string]int64 {
	counts := make(map[string]int64)
	for _, m := range failures.FindAllStringSubmatch(a.must("GET", "/metrics", ""), -1) {
		labels := make(map[string]string)
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		if late := m[1] == "post_timeout_total"; late || labels["group"] == group && labels["resource"] == resource && labels["code"] >= "4" {
			counts[strings.TrimSpace(strings.Join([]string{m[1], labels["verb"], labels["scope"], labels["code"]}, " "))] = mustInt(a.t, m[3])
		}
	}
	return counts
}

// TestRejectionsAreCounted checks that upstream's metrics count each injected failure like the one that it resembles.
// The resource's handler counts conflicts and errors of etcd; flow control counts 429. The end of the delegation chain,
// which responds with 503, counts nothing. A timeout counts twice: for the filter, and for the handler with its own
// response.
func TestRejectionsAreCounted(t *testing.T) {
	s := serve(t, "serve", "--faults", "true")
	a := &requester{t: t, s: s, http: s.client(t, 2), accept: "application/json"}
	a.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
	const box = `{"apiVersion": "x.io/v1", "kind": "Box", "metadata": {"name": "a"}}`
	for _, c := range []struct{ group, resource, path, object, selected string }{
		{"", "limitranges", "/api/v1/namespaces/default/limitranges", `{"metadata": {"name": "a"}}`, "LIST namespace"},
		{"x.io", "boxes", boxes, box, "GET resource"}, // the name in kube-apiserver's metrics
	} {
		match := faults.Match{Resource: strings.TrimSuffix(c.resource+"."+c.group, ".")}
		s.Eventually(t, "the resource is served", func() error {
			if code, body := a.request("POST", c.path, c.object); code != http.StatusCreated {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
		before := a.failed(c.group, c.resource)
		for _, rejected := range []struct {
			status        int
			method, below string
		}{
			{409, "PUT", "/a"}, {409, "PATCH", "/a"}, {429, "POST", ""}, {500, "POST", ""}, {500, "GET", "/a"}, {500, "GET", ""},
			{500, "GET", "?fieldSelector=metadata.name%3Da"}, {500, "GET", "?watch=1"}, {503, "GET", ""}, {504, "DELETE", "/a"}, {504, "DELETE", ""},
		} {
			s.set(t, faults.Rule{Name: "r", Match: match, Refuse: rejected.status})
			if code, body := a.request(rejected.method, c.path+rejected.below, c.object); code != rejected.status {
				t.Errorf("%v: %d %s", rejected, code, body)
			}
		}
		s.set(t, faults.Rule{Name: "r", Match: match, Lose: faults.LoseTimeout})
		if code, body := a.request("DELETE", c.path+"/a", ""); code != 504 {
			t.Errorf("a lost response: got status %d %s, want 504", code, body)
		}
		want := map[string]int64{
			"total PUT resource 409": 1, "total PATCH resource 409": 1, "total POST resource 429": 1, "total POST resource 500": 1,
			"total GET resource 500": 1, "total LIST namespace 500": 1, "total WATCH namespace 500": 1,
			"total DELETE resource 504": 1, "total DELETE namespace 504": 1, "post_timeout_total": 1,
			"terminations_total POST resource 429": 1, "terminations_total DELETE resource 504": 2, "terminations_total DELETE namespace 504": 1,
		}
		want["total "+c.selected+" 500"]++
		got := a.failed(c.group, c.resource)
		for name, n := range before {
			if got[name] -= n; got[name] == 0 {
				delete(got, name)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: counts %v, want %v", c.resource, got, want)
		}
	}
}
