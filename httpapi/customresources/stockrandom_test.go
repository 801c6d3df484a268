package customresources_test

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/larder-io/larder/internal/proctest"
)

var seeds = flag.Int("seeds", 8, "number of random CRDs to compare with upstream's handler")

// dice generates a random CRD and random requests for its objects.
type dice struct {
	*rand.Rand
	versions []string
	known    map[string][]string // the fields in each version's schema
}

func (d *dice) of(list ...string) string { return list[d.IntN(len(list))] }

// chance returns true once in n calls, on average.
func (d *dice) chance(n int) bool { return d.IntN(n) == 0 }

// randomFields are the fields of random schemas. The last two values of each field are invalid.
var randomFields = map[string]struct {
	schema string
	values []string
}{
	"text":    {`{"type":"string","maxLength":5,"default":"oak"}`, []string{`"elm"`, `"ash"`, `null`, `"mahogany"`, `7`}},
	"count":   {`{"type":"integer","minimum":1}`, []string{`3`, `4`, `null`, `0`, `"x"`}},
	"free":    {`{"type":"object","x-kubernetes-preserve-unknown-fields":true}`, []string{`{"a":[1,{"b":null}]}`, `{}`, `{"managedFields":1}`, `[]`, `1`}},
	"empty":   {`{"type":"string","nullable":true}`, []string{`null`, `"a"`, `""`, `1`, `{}`}},
	"share":   {`{"type":"number"}`, []string{`1.5`, `2`, `1e3`, `"1"`, `true`}},
	"port":    {`{"x-kubernetes-int-or-string":true}`, []string{`80`, `"http"`, `"80"`, `1.5`, `{}`}},
	"words":   {`{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}`, []string{`["a","b"]`, `["b"]`, `[]`, `["a","a"]`, `[1]`}},
	"parts":   {`{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"n":{"type":"integer","default":5},"o":{"type":"string"}}}}`, []string{`[{"k":"a"},{"k":"b","n":1}]`, `[{"k":"b","o":"x","p":1}]`, `[{"k":"a","n":null}]`, `[{"k":"a"},{"k":"a"}]`, `[{}]`}},
	"labels":  {`{"type":"object","additionalProperties":{"type":"string"}}`, []string{`{"a":"b"}`, `{"c":"d","a":"x"}`, `{}`, `{"a":1}`, `[]`}},
	"inner":   {`{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}`, []string{`{"apiVersion":"v1","kind":"X","metadata":{"name":"i"},"data":1}`, `{"apiVersion":"v1","kind":"X","metadata":{"name":"i","labels":{"l":"m"},"odd":1}}`, `{"apiVersion":"v1","kind":"X","metadata":{"creationTimestamp":null}}`, `{"kind":"X"}`, `{"apiVersion":"v1","kind":"X","metadata":{"labels":{"l":5}}}`}},
	"grows":   {`{"type":"integer","x-kubernetes-validations":[{"rule":"self >= oldSelf","message":"must grow"}]}`, []string{`1`, `2`, `9`, `0`, `"x"`}},
	"default": {`{"type":"object","default":{},"properties":{"a":{"type":"string","default":"b"},"c":{"type":"boolean"}}}`, []string{`{}`, `{"a":"x"}`, `{"c":true,"d":1}`, `{"a":1}`, `[]`}},
}

// fields returns the names of random fields, always in the same order.
func (d *dice) fields() []string {
	var list []string
	for _, name := range []string{"text", "count", "free", "empty", "share", "port", "words", "parts", "labels", "inner", "grows", "default"} {
		if !d.chance(3) {
			list = append(list, name)
		}
	}
	return list
}

// crd returns a random CRD. Its first version is stored.
func (d *dice) crd() string {
	d.versions, d.known = []string{"v1", "v2", "v1beta1"}[:1+d.IntN(3)], make(map[string][]string)
	var list []string
	for i, name := range d.versions {
		d.known[name] = d.fields()
		var properties []string
		for _, field := range append(d.known[name], "replicas") {
			s := randomFields[field].schema
			if field == "replicas" {
				s = `{"type":"integer"}`
			}
			properties = append(properties, fmt.Sprintf("%q:%s", field, s))
		}
		subresources := d.of(`{}`, `{"status":{}}`, `{"status":{}}`, `{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}}`)
		root := fmt.Sprintf(`{"type":"object",%s"properties":{"spec":{"type":"object",%s"properties":{%s}},"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},"text":{"type":"string","maxLength":3}}}}}`,
			d.of("", "", `"required":["spec"],`), d.of("", `"default":{},`), strings.Join(properties, ","))
		list = append(list, fmt.Sprintf(`{"name":%q,"served":true,"storage":%v,"deprecated":%v,"schema":{"openAPIV3Schema":%s},"subresources":%s}`, name, i == 0, i > 0 && d.chance(2), root, subresources))
	}
	scope := d.of("Namespaced", "Namespaced", "Cluster")
	return fmt.Sprintf(`{"metadata":{"name":"shelves.example.com"},"spec":{"group":"example.com","scope":%q,"names":{"plural":"shelves","singular":"shelf","kind":"Shelf","listKind":"ShelfList"},"versions":[%s]}}`,
		scope, strings.Join(list, ","))
}

// members returns random members of a spec.
func (d *dice) members(version string) string {
	var list []string
	fields := d.known[version]
	if d.chance(10) {
		fields = d.fields()
	}
	for _, field := range fields {
		values := randomFields[field].values
		n := len(values)
		if !d.chance(8) {
			n -= 2 // only valid ones
		}
		if d.chance(2) {
			list = append(list, fmt.Sprintf("%q:%s", field, values[d.IntN(n)]))
		}
	}
	if d.chance(2) {
		list = append(list, `"replicas":`+d.of("1", "2", "3"))
	}
	if d.chance(10) {
		list = append(list, `"unknown":{"x":1}`)
	}
	if d.chance(20) {
		list = append(list, `"text":"a","text":"b"`)
	}
	return strings.Join(list, ",")
}

// object returns a random object of a version, with the placeholder $RV for its resourceVersion.
func (d *dice) object(version, name, more string) string {
	metadata := fmt.Sprintf(`"name":%q%s%s`, name, d.of("", "", "", "", "", "", "", `,"labels":{"a":"b"}`, `,"annotations":{"c":"d"},"finalizers":[]`, `,"labels":{"a":null}`, `,"generation":7,"creationTimestamp":null`, `,"odd":1`, `,"labels":{"a":5}`), more)
	return fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Shelf","metadata":{%s},"spec":{%s}%s}`, version, metadata, d.members(version),
		d.of("", "", "", fmt.Sprintf(`,"status":{"replicas":%d,"text":%q}`, d.IntN(3), d.of("a", "long text")), `,"extra":1`))
}

// sent is a random request.
type sent struct{ method, path, kind, accept, body string }

// request returns a random request for a collection or its objects.
func (d *dice) request(collection func(version string) string) sent {
	version, name := d.of(d.versions...), d.of("a", "b", "c")
	query := d.of("", "", "?fieldValidation=Strict", "?fieldValidation=Warn", "?fieldValidation=Ignore", "?fieldManager=me", "?dryRun=All")
	s := sent{path: collection(version), kind: "application/json", accept: "application/json"}
	if d.chance(12) {
		s.accept = d.of("application/yaml", "application/json;as=Table;g=meta.k8s.io;v=v1,application/json", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json", "text/plain")
	}
	item := s.path + "/" + name + d.of("", "", "", "", "/status", "/status", "/scale", "/none")
	switch d.IntN(8) {
	case 0, 1:
		s.method, s.path, s.body = http.MethodPost, s.path+query, d.object(version, name, "")
		if d.chance(8) {
			s.kind = "application/yaml"
			if text, err := yaml.JSONToYAML([]byte(s.body)); err == nil {
				s.body = string(text)
			}
		}
	case 2, 3:
		s.method, s.path, s.body = http.MethodPut, item+query, d.object(version, name, d.of(`,"resourceVersion":"$RV"`, `,"resourceVersion":"$RV"`, `,"resourceVersion":"$RV"`, "", `,"resourceVersion":"1"`))
		if strings.HasSuffix(item, "/scale") {
			s.body = fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":%q},"spec":{"replicas":%d}}`, name, d.IntN(5)-1)
		}
	case 4:
		s.method, s.path, s.kind = http.MethodPatch, item+query, "application/merge-patch+json"
		s.body = d.of(fmt.Sprintf(`{"spec":{%s}}`, d.members(version)), fmt.Sprintf(`{"status":{"replicas":%d},"spec":null}`, d.IntN(4)), `{"metadata":{"labels":{"x":"y"}}}`, `{"metadata":{"managedFields":[]}}`, `{"spec":{"replicas":4}}`)
	case 5:
		s.method, s.path, s.kind = http.MethodPatch, item+query, "application/json-patch+json"
		s.body = d.of(`[{"op":"replace","path":"/spec/replicas","value":5}]`, `[{"op":"add","path":"/spec/text","value":"fir"}]`, `[{"op":"remove","path":"/status"}]`, `[{"op":"test","path":"/spec/text","value":"fir"},{"op":"add","path":"/metadata/labels","value":{"j":"k"}}]`, `{}`)
	case 6:
		s.method, s.path, s.kind = http.MethodPatch, item+"?fieldManager="+d.of("one", "two")+d.of("", "&force=true", "&force=true&fieldValidation=Strict"), "application/apply-patch+yaml"
		s.body = d.object(version, name, "")
		if strings.HasSuffix(item, "/scale") {
			s.body = fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":%q},"spec":{"replicas":%d}}`, name, d.IntN(5))
		}
	default:
		s.method = d.of(http.MethodGet, http.MethodGet, http.MethodGet, http.MethodDelete)
		s.path = d.of(item, item, strings.TrimSuffix(collection(version), "/"))
		if s.method == http.MethodDelete {
			s.body = d.of("", `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan"}`, `{"kind":"DeleteOptions","apiVersion":"example.com/`+version+`","dryRun":["All"]}`, `{"preconditions":{"uid":"x"}}`)
		}
	}
	return s
}

func (s sent) call(revision string) call {
	return call{method: s.method, path: s.path, accept: s.accept, kind: s.kind, body: strings.ReplaceAll(s.body, "$RV", revision)}
}

// particulars matches values that each server generates, such as UIDs.
var particulars = regexp.MustCompile(`("?(?:uid|resourceVersion|creationTimestamp|time|deletionTimestamp)"?: ?)"[^"]*"|UID in object meta: [-0-9a-f]+|"\d+s"|[0-9a-f]{8}-[0-9a-f-]{27}`)

// untyped matches errors about values of the wrong type. If there are several, upstream names only some.
var untyped = regexp.MustCompile(`(?s)['" ]*(failed to create typed patch object|failed to convert \w+ object).*`)

// gist returns the part of a response that is compared. Upstream reports errors in random order, and sorts
// managedFields by times in seconds.
func gist(a response) string {
	body := strings.ReplaceAll(strings.ReplaceAll(a.body, "|-\n ", "'"), `\`, "")
	body = untyped.ReplaceAllString(particulars.ReplaceAllString(body, "$1"), "$1")
	if a.code == http.StatusUnprocessableEntity || a.code == http.StatusConflict || strings.Contains(body, "managedFields") {
		parts := strings.FieldsFunc(body, func(c rune) bool { return strings.ContainsRune(",[]{} \n", c) })
		slices.Sort(parts)
		body = strings.Join(parts, " ")
	}
	return fmt.Sprintf("%d %s %q %s", a.code, a.header.Get("Content-Type"), a.header.Values("Warning"), body)
}

// TestRandomRequestsMatchUpstream sends the same random requests for objects of random CRDs to the server and to
// upstream's handler, and compares the responses.
func TestRandomRequestsMatchUpstream(t *testing.T) {
	t.Parallel()
	codes, requests := make(map[int]int), 200
	if testing.Short() {
		requests = 100
	}
	for seed := range uint64(proctest.Iterations(*seeds)) {
		d := &dice{Rand: rand.New(rand.NewPCG(seed, 1))}
		text := d.crd()
		s := newServer(t)
		crd := s.define(t, text)
		upstream := newUpstreamHandler(t, s, crd)
		collection := func(version string) string {
			if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
				return "/apis/example.com/" + version + "/namespaces/ns/shelves"
			}
			return "/apis/example.com/" + version + "/shelves"
		}
		send := func(c call, to func(*http.Request) response) response {
			req := c.request(t.Context())
			req.Header.Set("User-Agent", "tester/1.0")
			return to(req)
		}
		own := func(req *http.Request) response {
			resp, err := s.http.RoundTripper().RoundTrip(req)
			must(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			must(t, err)
			return response{resp.StatusCode, resp.Header, string(body)}
		}
		theirs := func(req *http.Request) response { return upstream.send(t, req) }
		for range requests {
			r := d.request(collection)
			item, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(r.path, "/status"), "/scale"), "?")
			get := func(to func(*http.Request) response) string {
				return revision(func(path string) response { return send(call{method: http.MethodGet, path: path}, to) }, item)
			}
			got, want := send(r.call(get(own)), own), send(r.call(get(theirs)), theirs)
			codes[want.code]++
			if gist(got) != gist(want) {
				t.Errorf("seed %d, %s %s %s %s:\ngot  %s\nwant %s\nof %s", seed, r.method, r.path, r.kind, r.body, gist(got), gist(want), text)
				break
			}
		}
	}
	for _, code := range []int{200, 201, 400, 404, 405, 409, 422} {
		if codes[code] < requests/40 {
			t.Errorf("%d responses with status %d, want %d or more; all: %v", codes[code], code, requests/40, codes)
		}
	}
}
