package difftest

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

const (
	widgets     = "/apis/diff.example.com/v1/namespaces/diff/widgets"
	oldWidgets  = "/apis/diff.example.com/v1beta1/namespaces/diff/widgets"
	gadgets     = "/apis/diff.example.com/v1/gadgets"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// defined are two CRDs: one that uses all features, and a minimal one.
var defined = []string{
	`{"metadata":{"name":"widgets.diff.example.com"},"spec":{"group":"diff.example.com","scope":"Namespaced",
	"names":{"plural":"widgets","singular":"widget","kind":"Widget","shortNames":["wd"],"categories":["all"]},
	"versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","required":["spec"],"properties":{
			"spec":{"type":"object","required":["size"],"properties":{
				"size":{"type":"integer","minimum":1,"maximum":99},"color":{"type":"string","enum":["red","blue"],"default":"red"},
				"replicas":{"type":"integer","default":1},"when":{"type":"string","format":"date-time"},
				"name":{"type":"string","pattern":"^[a-z]*$","maxLength":5},
				"parts":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["id"],"maxItems":9,"items":{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"n":{"type":"integer","default":7}}}},
				"free":{"type":"object","x-kubernetes-preserve-unknown-fields":true},
				"port":{"x-kubernetes-int-or-string":true},
				"none":{"type":"string","nullable":true}},
				"x-kubernetes-validations":[{"rule":"!has(self.replicas) || self.replicas <= self.size","message":"more replicas than size"},{"rule":"self.size >= oldSelf.size","message":"never smaller"}]},
			"status":{"type":"object","properties":{"replicas":{"type":"integer"},"selector":{"type":"string"},"phase":{"type":"string"}}}}}},
		"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas","labelSelectorPath":".status.selector"}},
		"selectableFields":[{"jsonPath":".spec.color"},{"jsonPath":".spec.size"}],
		"additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"},{"name":"Color","type":"string","jsonPath":".spec.color","priority":1,"description":"what it looks like"},
			{"name":"Parts","type":"string","jsonPath":".spec.parts[*].id"},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}]},
	{"name":"v1beta1","served":true,"storage":false,"deprecated":true,
		"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer"},"shape":{"type":"string","default":"round"}}}}}}},
	{"name":"v0","served":false,"storage":false,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`,
	`{"metadata":{"name":"gadgets.diff.example.com"},"spec":{"group":"diff.example.com","scope":"Cluster","names":{"plural":"gadgets","kind":"Gadget"},
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
}

// customs are the custom resources that createCRDs creates: the collection and the body of each POST.
var customs = [][2]string{
	{widgets, `{"metadata":{"name":"a","labels":{"x":"1"}},"spec":{"size":3,"unknown":1,"when":"2026-01-01T00:00:00Z","parts":[{"id":"<p>&"},{"id":"q","n":2}],"free":{"b":[1,2.5,1e30,null,true],"a":{"Z":"\u2028"}},"port":80,"none":null}}`},
	{widgets, `{"metadata":{"name":"b","labels":{"x":"2"},"annotations":{"k":"v"}},"spec":{"size":5,"color":"blue","port":"http"}}`},
	{oldWidgets, `{"metadata":{"name":"c","labels":{"x":"1"}},"spec":{"size":7,"shape":"square"}}`},
	{gadgets, `{"metadata":{"name":"g1"},"Above":{"x":1},"zulu":[],"spec":{"deep":{"er":null}}}`},
	{gadgets, `{"metadata":{"name":"g2","labels":{"x":"1"}}}`},
}

// createCRDs creates the CRDs, waits until the server has established each, and then creates their objects.
func (f *fixture) createCRDs(t *testing.T) {
	t.Helper()
	for _, d := range defined {
		f.must(t, f.larder, do(http.MethodPost, definitions, js, withKind(definitions, d)))
	}
	for _, o := range customs {
		proctest.Eventually(t, o[0]+" is served", func() error {
			if a := f.larder.send(get(o[0], js)); a.code != http.StatusOK {
				return fmt.Errorf("%d %s", a.code, a.body)
			}
			return nil
		})
		f.must(t, f.larder, do(http.MethodPost, o[0], js, withKind(o[0], o[1])))
	}
}

// awaitCustoms waits until p watches every version of the custom resources. kube-apiserver creates a resource's cache
// at the first request, and responds with 410 to a watch from an earlier revision. Once the caches exist, both servers'
// have all later events.
func (p *process) awaitCustoms(t *testing.T) {
	t.Helper()
	for _, collection := range []string{widgets, oldWidgets, gadgets} {
		path := collection + query("watch", "1", "timeoutSeconds", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true")
		p.Eventually(t, "watches "+collection, func() error {
			if a := p.send(get(path, js)); a.err != nil || !bytes.Contains(a.body, []byte(endOfInitial)) {
				return fmt.Errorf("%d %v %s", a.code, a.err, a.body)
			}
			return nil
		})
	}
}

// customReads are reads of custom resources, and of paths that do not exist.
func customReads() []request {
	var all []request
	paths := []string{widgets, widgets + "/a", oldWidgets, oldWidgets + "/a", oldWidgets + "/c", gadgets, gadgets + "/g1", "/apis/diff.example.com/v1/widgets", widgets + "/a/status", widgets + "/a/scale", widgets + "/nosuch", definitions + "/widgets.diff.example.com", definitions}
	for _, path := range paths {
		for _, accept := range accepts {
			all = append(all, get(path, accept))
		}
		for _, parameter := range append(parameters, "fieldSelector=spec.color%3Dblue", "fieldSelector=spec.size%3D3", "fieldSelector=spec.color!%3Dblue", "fieldSelector=spec.shape%3Dround") {
			all = append(all, get(with(path, parameter), js))
		}
		for _, include := range []string{"None", "Metadata", "Object", "Bad", ""} {
			all = append(all, get(with(path, "includeObject="+include), table))
		}
		for _, user := range []string{"-", "alice", "unknown"} {
			all = append(all, request{Method: http.MethodGet, Path: path, User: user})
		}
		all = append(all, request{Method: http.MethodGet, Path: path, Agent: "curl/8.0"}, request{Method: http.MethodGet, Path: path, Encoding: "gzip"})
	}
	for _, path := range []string{
		"/apis/diff.example.com", "/apis/diff.example.com/", "/apis/diff.example.com/v1", "/apis/diff.example.com/v1/", "/apis/diff.example.com/v1beta1", "/apis/diff.example.com/v0", "/apis/diff.example.com/v9", "/apis/diff.example.com/v1/x/y/z",
		"/apis/nosuch.example.com/v1/widgets", "/apis/nosuch.example.com/v1", "/apis/diff.example.com/v9/widgets", "/apis/diff.example.com/v0/widgets", "/apis/diff.example.com/v1/nosuch", "/apis/diff.example.com/v1/widgets/a",
		"/apis/diff.example.com/v1/namespaces/diff/gadgets", "/apis/diff.example.com/v1/namespaces/diff/gadgets/g1", widgets + "/a/nosuch", gadgets + "/g1/status", gadgets + "/g1/scale", oldWidgets + "/a/status", widgets + "/a/status/x", widgets + "/",
		widgets + "/a/", widgets + "/%61", widgets + "/a%2Fb", widgets + "/..", "/apis/diff.example.com/v1/namespaces/../widgets", "/apis/diff.example.com/v1/watch/widgets?timeoutSeconds=1", "/apis/diff.example.com/v1/namespaces/nosuch/widgets",
		widgets + "/B%40d", "/apis/apps/v9/widgets", "//apis/diff.example.com/v1/widgets", "//apis/diff.example.com", "///apis/diff.example.com/v1", "/apis/diff.example.com//", "/apis/diff.example.com/v1//", "/apis/apiextensions.k8s.io/v1", "/apis/apiextensions.k8s.io", "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions", definitions + "/gadgets.diff.example.com/status",
	} {
		for _, accept := range []string{"", js, pb, yaml, "text/html", table} {
			all = append(all, get(path, accept))
		}
		all = append(all, request{Method: http.MethodGet, Path: path, User: "-"}, request{Method: http.MethodGet, Path: path, User: "alice"})
	}
	return append(all, customDocuments()...)
}

// customDocuments are reads of OpenAPI documents that describe custom resources. The response to a request with a wrong
// hash contains the right one.
func customDocuments() []request {
	var all []request
	for _, version := range []string{"diff.example.com/v1", "diff.example.com/v1beta1", "diff.example.com/v0", "diff.example.com", "diff.example.com/v1/", "nosuch.example.com/v1"} {
		path := "/openapi/v3/apis/" + version
		for _, accept := range []string{"", js, pb, yaml, "*/*", "application/*", "text/html", "application/com.github.proto-openapi.spec.v3.v1.0+protobuf", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf", "application/vnd.nosuch, application/json;q=0.5", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"} {
			all = append(all, get(path, accept), get(path+"?hash=nosuch", accept))
		}
		all = append(all, request{Method: http.MethodGet, Path: path, Encoding: "gzip"}, request{Method: http.MethodGet, Path: path, User: "-"}, request{Method: http.MethodGet, Path: path, User: "alice"},
			request{Method: http.MethodHead, Path: path}, request{Method: http.MethodPost, Path: path, Body: "{}", Type: js})
	}
	for _, path := range []string{"/openapi/v3/.well-known/openid-configuration", "/openapi/v3/openid/v1/jwks", "/openapi/v3/version", "/openapi/v3/api", "/openapi/v3/apis", "/openapi/v3/apis/apps"} {
		all = append(all, get(path, js), get(path+"?hash=nosuch", js))
	}
	return all
}

// customWatches are watches of custom resources.
func customWatches() []request {
	var all []request
	for _, scope := range []string{widgets, oldWidgets, gadgets} {
		for _, version := range []string{"", "0", "1", "{now}", "99999999", "x"} {
			for _, initial := range []string{"", "true", "false"} {
				for _, selector := range []string{"", "labelSelector=x%3D1", "fieldSelector=metadata.name%3Db", "fieldSelector=spec.color%3Dblue"} {
					match := ""
					if initial == "true" {
						match = "NotOlderThan"
					}
					all = append(all, get(scope+query("watch", "1", "timeoutSeconds", "{life}", "resourceVersion", version, "sendInitialEvents", initial, "resourceVersionMatch", match, "allowWatchBookmarks", initial)+and(selector), js))
				}
			}
		}
		for _, accept := range accepts {
			all = append(all, get(scope+"?timeoutSeconds={life}&watch=1&allowWatchBookmarks=true", accept), get(scope+"?timeoutSeconds={life}&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", accept))
		}
		for _, include := range []string{"None", "Object", "Bad"} {
			all = append(all, get(scope+"?timeoutSeconds={life}&watch=1&includeObject="+include, table))
		}
		all = append(all, get(strings.Replace(scope, "/v1/", "/v1/watch/", 1)+"?timeoutSeconds={life}", js), get(scope+"/a?timeoutSeconds={life}&watch=1", js))
	}
	return all
}

// customWrites are writes of custom resources that are rejected or dry runs.
func customWrites() []request {
	var all []request
	named := func(spec string) string {
		return `{"apiVersion":"diff.example.com/v1","kind":"Widget","metadata":{"name":"dry"},"spec":` + spec + `}`
	}
	for _, body := range []string{
		"", "{", "[]", "null", "{}", `{"kind":"Widget"}`, `{"apiVersion":"diff.example.com/v1","kind":"Gadget"}`, `{"apiVersion":"diff.example.com/v1beta1","kind":"Widget","metadata":{"name":"dry"}}`, `{"apiVersion":"diff.example.com/v1","kind":"Widget"}`,
		`{"apiVersion":"diff.example.com/v1","kind":"Widget","metadata":{"name":"B_ad"},"spec":{"size":1}}`, `{"apiVersion":"diff.example.com/v1","kind":"Widget","metadata":{"name":5},"spec":{"size":1}}`, `{"apiVersion":"diff.example.com/v1","kind":"Widget","metadata":{"name":"x","namespace":"other"},"spec":{"size":1}}`,
		`{"apiVersion":"diff.example.com/v1","kind":"Widget","metadata":{"name":"dry","labels":{"a":{}}},"spec":{"size":1}}`, `{"apiVersion":"diff.example.com/v1","kind":"Widget","metadata":{"name":"dry","nosuch":1},"spec":{"size":1},"more":1}`,
		named(`{}`), named(`{"size":0}`), named(`{"size":"1"}`), named(`{"size":100}`), named(`{"size":9,"color":"green"}`), named(`{"size":9,"name":"toolong"}`), named(`{"size":9,"name":"A"}`), named(`{"size":1,"replicas":2}`), named(`{"size":1,"parts":[{"id":"a"},{"id":"a"}]}`), named(`{"size":1,"parts":[{}]}`), named(`{"size":1,"when":"now"}`),
		named(`{"size":1,"port":1.5}`), named(`{"size":1,"none":null,"color":null}`), named(`{"size":1,"size":2}`), named(`{"size":1,"unknown":{"x":1},"free":{"any":1}}`), named(`{"size":1.0}`), named(`[]`),
	} {
		for _, validation := range []string{"", "Strict", "Ignore"} {
			all = append(all, do("POST", widgets+"?dryRun=All&fieldManager=m&fieldValidation="+validation, js, body))
		}
		all = append(all, do("PUT", widgets+"/dry?dryRun=All", js, body), do("PUT", widgets+"/a?dryRun=All", js, strings.ReplaceAll(body, `"dry"`, `"a"`)), do("POST", oldWidgets+"?dryRun=All", js, body), do("POST", widgets+"?dryRun=All", yaml, body), do("POST", widgets+"?dryRun=All", pb, body),
			do("PATCH", widgets+"/a?dryRun=All&fieldManager=m", applyPatch, strings.ReplaceAll(body, `"dry"`, `"a"`)), do("PUT", widgets+"/a/status?dryRun=All", js, strings.ReplaceAll(body, `"dry"`, `"a"`)), do("POST", gadgets+"?dryRun=All", js, body))
	}
	for _, mediaType := range []string{js, jsonPatch, mergePatch, strategicPatch, applyPatch, "text/plain", ""} {
		for _, body := range []string{"", "{", "{}", `{"spec":{"size":2}}`, `{"spec":{"size":4,"unknown":1}}`, `{"spec":{"color":"green"}}`, `[{"op":"remove","path":"/spec/size"}]`, `[{"op":"add","path":"/spec/size","value":9}]`, `{"metadata":{"name":"other"}}`, `{"metadata":{"resourceVersion":"1"}}`} {
			all = append(all, do("PATCH", widgets+"/a?dryRun=All", mediaType, body), do("PATCH", widgets+"/a/status?dryRun=All", mediaType, body), do("PATCH", widgets+"/a/scale?dryRun=All", mediaType, body), do("PATCH", oldWidgets+"/a?dryRun=All", mediaType, body))
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "POST", "HEAD", "OPTIONS", "FOO"} {
		for _, path := range []string{widgets + "?dryRun=All", widgets + "/nosuch", widgets + "/a/status?dryRun=All", widgets + "/a/scale?dryRun=All", widgets + "/a/nosuch", gadgets + "/g1/status", "/apis/diff.example.com/v1/widgets", "/apis/diff.example.com", "/apis/diff.example.com/v1", "/apis/nosuch.example.com/v1/x", "/apis/diff.example.com/v9/widgets"} {
			for _, accept := range []string{js, pb, "text/html"} {
				all = append(all, request{Method: method, Path: path, Accept: accept, Type: js})
			}
		}
	}
	for _, body := range []string{
		`{}`, defined[1], strings.ReplaceAll(defined[1], "gadgets.diff", "other.diff"), strings.Replace(defined[0], `"type":"integer","minimum":1`, `"type":"integer","minimum":"x"`, 1), strings.Replace(defined[0], `"storage":true`, `"storage":false`, 1),
		strings.Replace(defined[0], `"default":"red"`, `"default":5`, 1), strings.Replace(defined[0], `self.size >=`, `self.size >`+`x`, 1), strings.Replace(defined[0], `{"status":{},`, `{"status":{"x":1},`, 1),
	} {
		all = append(all, do("POST", definitions+"?dryRun=All&fieldValidation=Strict", js, withKind(definitions, body)), do("PUT", definitions+"/gadgets.diff.example.com?dryRun=All", js, withKind(definitions, body)))
	}
	return all
}

// customFlows are sequences of writes to custom resources.
func customFlows() [][]request {
	life := func(collection, name, spec, change string) []request {
		one := collection + "/" + name
		body := withKind(collection, `{"metadata":{"name":"`+name+`"}`+spec+`}`)
		return []request{
			do("POST", collection, js, body), do("POST", collection, js, body), get(one, js), get(one, yaml), get(one, table), get(one, partial), do("PUT", one, js, body), do("PATCH", one, mergePatch, change), do("PATCH", one, mergePatch, change),
			do("PATCH", one, strategicPatch, change), do("PATCH", one, jsonPatch, `[{"op":"add","path":"/metadata/annotations","value":{"c":"d"}}]`), do("PATCH", one+"?fieldManager=m", applyPatch, withKind(collection, `{"metadata":{"name":"`+name+`","labels":{"applied":"1"}}`+spec+`}`)),
			do("PATCH", one+"?fieldManager=n", applyPatch, withKind(collection, `{"metadata":{"name":"`+name+`","labels":{"applied":"2"}}`+spec+`}`)), do("PATCH", one+"?fieldManager=n&force=true", applyPatch, withKind(collection, `{"metadata":{"name":"`+name+`","labels":{"applied":"2"}}`+spec+`}`)),
			do("PATCH", one+"/status", mergePatch, `{"status":{"replicas":2,"selector":"a=b","unknown":1},"spec":{"size":50}}`), get(one+"/status", js), get(one+"/scale", js), get(one+"/scale", table), do("PUT", one+"/scale", js, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"`+name+`"},"spec":{"replicas":3}}`),
			do("PATCH", one+"/scale", mergePatch, `{"spec":{"replicas":99}}`), get(one, js), do("PATCH", one, mergePatch, `{"metadata":{"finalizers":["example.com/wait"]}}`), do("DELETE", one, js, ""), do("PATCH", one, mergePatch, `{"metadata":{"finalizers":["example.com/other"]}}`),
			do("PATCH", one, mergePatch, `{"metadata":{"finalizers":null}}`), get(one, js), do("DELETE", one, js, ""), do("PUT", one, js, body), do("PATCH", one+"-applied?fieldManager=m", applyPatch, strings.ReplaceAll(body, name, name+"-applied")),
			do("DELETE", one+"-applied", js, `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"x"}}`), do("DELETE", one+"-applied?propagationPolicy=Foreground", js, ""), do("DELETE", collection+"?labelSelector=flow%3D{who}", js, ""),
		}
	}
	return [][]request{
		life(widgets, "{who}", `,"spec":{"size":9,"parts":[{"id":"a"}],"unknown":1}`, `{"spec":{"size":10,"parts":[{"id":"b","n":1}]}}`),
		life(oldWidgets, "{who}-old", `,"spec":{"size":9}`, `{"spec":{"shape":"flat","size":10}}`),
		life(gadgets, "{who}", `,"data":{"any":[1,{"x":2.5}]}`, `{"data":{"more":1}}`),
	}
}
