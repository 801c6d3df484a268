package difftest

import (
	"net/http"
	"strings"
)

const configmaps = "/api/v1/namespaces/diff/configmaps"

const (
	mergePatch     = "application/merge-patch+json"
	jsonPatch      = "application/json-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

func do(method, path, mediaType, body string) request {
	return request{Method: method, Path: path, Accept: js, Type: mediaType, Body: body}
}

// writes are independent requests that change nothing, because they are rejected or dry runs. flows are the others.
func writes() []request {
	return append(append(append(badBodies(), badPatches()...), badMethods()...), badObjects()...)
}

func badBodies() []request {
	var all []request
	for _, mediaType := range []string{js, yaml, pb, "text/plain", "", jsonPatch, "application/cbor", "application/json; charset=utf-8", "nonsense"} {
		for _, body := range []string{
			"", "{", "[]", "null", "{}", `"x"`, "kind: ConfigMap\n", `{"kind":"ConfigMap"}`, `{"apiVersion":"v1"}`, `{"apiVersion":"v1","kind":"Nosuch"}`, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"q"}}`, `{"apiVersion":"v2","kind":"ConfigMap"}`,
			"\x00\x01", "k8s\x00", "k8s\x00\xff\xff", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"B_ad"}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","namespace":"other"}}`,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":5}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c1"},"data":{"k":1}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c1"},"data":{"bad key":"1"}}`,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","resourceVersion":"1"}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, "a: b: c", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  name: b\n",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dry"},"data":{"k":"v"}}`,
		} {
			all = append(all, do("POST", configmaps+"?dryRun=All", mediaType, body), do("PUT", configmaps+"/a?dryRun=All", mediaType, body), do("PUT", configmaps+"/nosuch?dryRun=All", mediaType, body))
		}
	}
	for _, validation := range []string{"", "Ignore", "Warn", "Strict", "Bad"} {
		body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","nosuch":1},"data":{"k":"1","k":"2"},"spec":{}}`
		all = append(all, do("POST", configmaps+"?dryRun=All&fieldValidation="+validation, js, strings.ReplaceAll(body, `"a"`, `"dry"`)), do("PUT", configmaps+"/a?dryRun=All&fieldValidation="+validation, js, body))
		all = append(all, do("PATCH", configmaps+"/a?dryRun=All&fieldManager=m&fieldValidation="+validation, applyPatch, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"spec":{}}`))
		for _, patch := range []string{mergePatch, strategicPatch} {
			all = append(all, do("PATCH", configmaps+"/a?dryRun=All&fieldManager=m&fieldValidation="+validation, patch, body))
		}
	}
	return all
}

func badPatches() []request {
	var all []request
	for _, mediaType := range []string{js, jsonPatch, mergePatch, strategicPatch, applyPatch, "application/apply-patch+cbor", "text/plain", ""} {
		for _, body := range []string{
			"", "{", "[]", "{}", "null", `[{"op":"replace","path":"/data/nosuch","value":"1"}]`, `[{"op":"bad","path":"/x"}]`, `[{"op":"test","path":"/metadata/name","value":"b"}]`, `{"metadata":{"name":"other"}}`, `{"metadata":{"resourceVersion":"1"}}`,
			`{"metadata":{"uid":"x"}}`, `{"data":{"k":1}}`, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"z"}}`, `{"$patch":"bad"}`, `[{"op":"add","path":"/data/new","value":"1"}]`, `{"metadata":{"labels":{"bad key!":"x"}}}`,
		} {
			all = append(all, do("PATCH", configmaps+"/a?dryRun=All", mediaType, body), do("PATCH", configmaps+"/a?dryRun=All&fieldManager=m", mediaType, body),
				do("PATCH", configmaps+"/a?dryRun=All&fieldManager=m&force=true", mediaType, body), do("PATCH", configmaps+"/nosuch?dryRun=All&fieldManager=m", mediaType, body))
		}
	}
	return all
}

// badMethods are requests with every method for each path, without a body.
func badMethods() []request {
	var all []request
	for _, method := range []string{"PUT", "DELETE", "PATCH", "POST", "HEAD", "OPTIONS", "TRACE", "FOO"} {
		for _, path := range []string{
			configmaps + "?dryRun=All", configmaps + "/nosuch", "/api", "/apis", "/apis/apps", "/version", "/healthz", "/readyz", "/nosuch", "/api/v1", "/api/v1/namespaces/diff/nosuch", "/api/v1/namespaces/diff/pods/p/nosuch", "/api/v1/namespaces/diff/pods/p/status?dryRun=All",
			"/api/v1/pods", "/api/v1/bindings?dryRun=All", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/openapi/v2", "/openapi/v3", "/api/v1/watch/namespaces/diff/configmaps", "/api/v1/namespaces/diff/finalize?dryRun=All", "/apis/apps/v1/namespaces/diff/deployments/d/scale?dryRun=All",
		} {
			for _, accept := range []string{js, pb, "text/html"} {
				all = append(all, request{Method: method, Path: path, Accept: accept, Type: js})
			}
			all = append(all, request{Method: method, Path: path, User: "alice"}, request{Method: method, Path: path, User: "-"})
		}
	}
	return all
}

func badObjects() []request {
	long := strings.Repeat("x", 1<<20)
	return []request{
		do("PUT", configmaps+"/a?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}`),
		do("PUT", configmaps+"/a?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"x"}}`),
		do("PUT", configmaps+"/d?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"d"},"data":{"immutable":"no"}}`),
		do("DELETE", configmaps+"/a?dryRun=All", js, `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"nope"}}`),
		do("DELETE", configmaps+"/a?dryRun=All", js, `{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"1"}}`),
		do("DELETE", configmaps+"/a?dryRun=All", js, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Bad"}`),
		do("DELETE", configmaps+"/a?dryRun=All", js, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan","orphanDependents":true}`),
		do("DELETE", configmaps+"/a?dryRun=Bad", js, ""), do("DELETE", configmaps+"/a?dryRun=All", js, "{bad"), do("DELETE", configmaps+"/a?dryRun=All", "text/plain", "x"), do("DELETE", configmaps+"/a?dryRun=All&gracePeriodSeconds=x", js, ""),
		do("DELETE", configmaps+"/a?dryRun=All&propagationPolicy=Foreground", js, ""), do("DELETE", configmaps+"?dryRun=All", js, ""), do("DELETE", configmaps+"?dryRun=All&labelSelector=x%3D1", js, ""), do("DELETE", configmaps+"?dryRun=All&fieldSelector=foo%3D1", js, ""),
		do("DELETE", configmaps+"?dryRun=All&labelSelector=%3D%3D", js, ""), do("DELETE", configmaps+"?dryRun=All&limit=1", js, ""),
		do("POST", configmaps+"?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"k":"`+long+`x"}}`),
		do("POST", configmaps+"?dryRun=All", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"huge"},"data":{"k":"`+long+long+long+`x"}}`),
		do("POST", configmaps+"?dryRun=Bad", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dry"}}`),
		do("POST", configmaps+"?dryRun=All&fieldManager="+strings.Repeat("m", 200), js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dry"}}`), do("POST", configmaps+"?dryRun=All&pretty=true", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dry"}}`),
		do("POST", "/api/v1/namespaces/nosuchns/configmaps", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`),
		do("POST", "/api/v1/namespaces/diff/pods?dryRun=All", js, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad"},"spec":{"containers":[]}}`),
		do("POST", "/api/v1/namespaces/diff/pods?dryRun=All", js, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bad!"},"spec":{"restartPolicy":"X","containers":[{"name":"C","image":""}]}}`),
		do("POST", "/api/v1/namespaces/diff/pods?dryRun=All", js, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"dry"},"spec":{"containers":[{"name":"c","image":"i"}]}}`),
		do("POST", "/api/v1/namespaces/diff/services?dryRun=All", js, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s2"},"spec":{"clusterIP":"10.0.0.77","ports":[{"port":80}]}}`),
		do("POST", "/api/v1/namespaces/diff/services?dryRun=All", js, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s3"},"spec":{"clusterIP":"1.2.3.4","ports":[{"port":80}]}}`),
		do("POST", "/api/v1/namespaces/diff/services?dryRun=All", js, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s3"},"spec":{"type":"NodePort","ports":[{"port":80,"nodePort":80}]}}`),
		do("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", js, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`),
		do("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", js, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"alice","resourceAttributes":{"verb":"get","resource":"configmaps","namespace":"diff"}}}`),
		do("POST", "/apis/authentication.k8s.io/v1/tokenreviews", js, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"alice"}}`),
		do("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", js, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`),
		do("POST", "/api/v1/namespaces/diff/pods/p/eviction?dryRun=All", js, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"p"}}`),
		do("POST", "/api/v1/namespaces/diff/pods/r/binding?dryRun=All", js, `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"r"},"target":{"kind":"Node","name":"n2"}}`),
		do("PUT", "/apis/apps/v1/namespaces/diff/deployments/d/scale?dryRun=All", js, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d","namespace":"diff"},"spec":{"replicas":3}}`),
		do("DELETE", "/api/v1/namespaces/kube-system?dryRun=All", js, ""), do("DELETE", "/api/v1/namespaces/nosuch", js, ""), do("DELETE", "/api/v1/namespaces/diff?dryRun=All", js, ""),
		do("POST", "/api/v1/namespaces/diff/events?dryRun=All", js, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"dry"},"involvedObject":{"namespace":"other"}}`),
	}
}

// flows are sequences of writes of objects whose names differ between the servers.
func flows() [][]request {
	named := func(collection, spec, change string) []request {
		one := collection + "/{who}"
		body := withKind(collection, `{"metadata":{"name":"{who}"}`+spec+`}`)
		return []request{
			do("POST", collection, js, body), do("POST", collection, js, body), get(one, js), get(one, yaml), do("PUT", one, js, body), do("PATCH", one, mergePatch, change), do("PATCH", one, mergePatch, change),
			do("PATCH", one, strategicPatch, `{"metadata":{"annotations":{"a":"b"}}}`), do("PATCH", one, jsonPatch, `[{"op":"add","path":"/metadata/annotations/c","value":"d"}]`),
			do("PATCH", one+"?fieldManager=m", applyPatch, withKind(collection, `{"metadata":{"name":"{who}","labels":{"applied":"1"}}}`)), do("PATCH", one+"?fieldManager=n", applyPatch, withKind(collection, `{"metadata":{"name":"{who}","labels":{"applied":"2"}}}`)),
			do("PATCH", one+"?fieldManager=n&force=true", applyPatch, withKind(collection, `{"metadata":{"name":"{who}","labels":{"applied":"2"}}}`)), do("PUT", one, js, withKind(collection, `{"metadata":{"name":"{who}","resourceVersion":"1"}`+spec+`}`)),
			get(one, table), do("DELETE", one, js, ""), do("DELETE", one, js, ""), get(one, js),
		}
	}
	template := `,"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"nginx"}]}}}`
	return [][]request{
		named(configmaps, `,"data":{"k":"v"}`, `{"data":{"k":"w"}}`),
		named("/api/v1/namespaces/diff/secrets", `,"stringData":{"k":"v"}`, `{"data":{"k":"dw=="}}`),
		named("/apis/apps/v1/namespaces/diff/deployments", template, `{"spec":{"replicas":2}}`),
		named("/apis/apps/v1/namespaces/diff/daemonsets", template, `{"spec":{"minReadySeconds":2}}`),
		named("/apis/coordination.k8s.io/v1/namespaces/diff/leases", `,"spec":{"holderIdentity":"me"}`, `{"spec":{"holderIdentity":"you"}}`),
		named("/apis/rbac.authorization.k8s.io/v1/clusterroles", `,"rules":[]`, `{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`),
		named("/api/v1/nodes", `,"spec":{"podCIDR":"10.9.0.0/24"}`, `{"spec":{"unschedulable":true}}`),
		named("/api/v1/namespaces/diff/pods", `,"spec":{"containers":[{"name":"c","image":"nginx"}]}`, `{"spec":{"activeDeadlineSeconds":5}}`),
		named("/apis/storage.k8s.io/v1/storageclasses", `,"provisioner":"example.org/p"`, `{"metadata":{"labels":{"a":"b"}}}`),
		named("/apis/batch/v1/namespaces/diff/cronjobs", `,"spec":{"schedule":"@daily","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}`, `{"spec":{"suspend":true}}`),
		named("/apis/discovery.k8s.io/v1/namespaces/diff/endpointslices", `,"addressType":"IPv4","endpoints":[{"addresses":["10.2.0.1"]}]`, `{"endpoints":[]}`),
		{
			do(http.MethodPost, configmaps, js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{who}-fixed"},"immutable":true}`),
			do(http.MethodPatch, configmaps+"/{who}-fixed", mergePatch, `{"metadata":{"labels":{"a":"b"}}}`),
			do(http.MethodPut, configmaps+"/{who}-fixed", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{who}-fixed"},"immutable":true,"data":{}}`),
			do(http.MethodDelete, configmaps+"/{who}-fixed", js, ""),
		},
		{
			do(http.MethodPut, "/api/v1/namespaces/diff/events/{who}", js, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"{who}","namespace":"diff"},"involvedObject":{"namespace":"diff"}}`),
			do(http.MethodPut, configmaps+"/{who}-put", js, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"{who}-put"}}`),
			do(http.MethodPatch, configmaps+"/{who}-applied?fieldManager=m", applyPatch, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: \"{who}-applied\"\n"),
			do(http.MethodDelete, configmaps+"?labelSelector=flow%3D{who}", js, ""),
		},
	}
}
