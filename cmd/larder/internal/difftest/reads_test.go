package difftest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

const (
	pb       = "application/vnd.kubernetes.protobuf"
	yaml     = "application/yaml"
	table    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partial  = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
	partials = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

func get(path, accept string) request {
	return request{Method: http.MethodGet, Path: path, Accept: accept}
}

func with(path, query string) string {
	if strings.Contains(path, "?") {
		return path + "&" + query
	}
	return path + "?" + query
}

// accepts are media types, valid and invalid, to request for every kind of path.
var accepts = []string{
	"", js, pb, yaml, table, partial, partials, "*/*", "application/*", "application/cbor", "text/html",
	pb + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io", pb + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	pb + ";q=0.1,application/json", "text/html,application/yaml;q=0.9", "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
	"application/json;as=Table;v=v2;g=meta.k8s.io", "application/json;as=Table;v=v2;g=meta.k8s.io,application/json", "application/yaml;as=Table;v=v1;g=meta.k8s.io",
	pb + ";as=Table;v=v1;g=meta.k8s.io", "application/json;as=Nosuch;v=v1;g=meta.k8s.io", "application/json;stream=watch", "application/json;pretty=1",
	"application/json;charset=utf-8", "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io", "application/json; q=x", "nonsense", ",", "application/json;q=0",
}

// objectPaths are paths of collections, objects and subresources of many forms.
var objectPaths = []string{
	"/api/v1/namespaces/diff/configmaps", "/api/v1/namespaces/diff/configmaps/a", "/api/v1/namespaces/empty/configmaps",
	"/api/v1/namespaces/diff/pods", "/api/v1/namespaces/diff/pods/p", "/api/v1/namespaces/diff/pods/nosuch", "/api/v1/namespaces/diff/pods/p/status",
	"/api/v1/namespaces/diff/services/s", "/api/v1/namespaces/diff/events", "/api/v1/namespaces/diff/events/e1", "/apis/events.k8s.io/v1/namespaces/diff/events",
	"/apis/apps/v1/namespaces/diff/deployments", "/apis/apps/v1/namespaces/diff/deployments/d", "/apis/apps/v1/namespaces/diff/deployments/d/scale",
	"/apis/autoscaling/v1/namespaces/diff/horizontalpodautoscalers", "/apis/autoscaling/v1/namespaces/diff/horizontalpodautoscalers/h",
	"/apis/autoscaling/v2/namespaces/diff/horizontalpodautoscalers/h", "/api/v1/namespaces/diff", "/api/v1/nodes", "/api/v1/nodes/n1",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles?limit=3", "/apis/networking.k8s.io/v1/servicecidrs", "/api/v1/namespaces/diff/nosuch",
}

// parameters are query parameters of GET and LIST, valid and invalid.
var parameters = []string{
	"pretty=true", "pretty=false", "pretty=x", "resourceVersion=0", "resourceVersion=1", "resourceVersion=x", "resourceVersion=-1", "resourceVersion=", "resourceVersion=01",
	"limit=1", "limit=x", "limit=-1", "limit=0", "limit=500", "limit=9223372036854775808", "continue=abc", "continue=abc&resourceVersion=1", "continue=&limit=1",
	"resourceVersionMatch=Exact", "resourceVersion=1&resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=NotOlderThan",
	"resourceVersion=1&resourceVersionMatch=Foo", "sendInitialEvents=true", "sendInitialEvents=false", "sendInitialEvents=x", "allowWatchBookmarks=true", "allowWatchBookmarks=x",
	"labelSelector=x", "labelSelector=!x", "labelSelector=x%3D1", "labelSelector=x%3D%3D%3D", "labelSelector=x+in+(1,2)", "labelSelector=x+notin+(1)", "labelSelector=x>1", "labelSelector=x%3D1,y", "labelSelector=a/b/c", "labelSelector=",
	"labelSelector=x%3D1&labelSelector=x%3D2", "fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name!%3Da", "fieldSelector=metadata.name%3Da,metadata.name%3Db", "fieldSelector=metadata.name%3Dno/good", "fieldSelector=metadata.name%3D",
	"fieldSelector=foo%3Dbar", "fieldSelector=foo", "fieldSelector=metadata.namespace%3Ddiff", "fieldSelector=metadata.namespace%3Dother", "fieldSelector=spec.nodeName%3Dn1", "fieldSelector=status.phase%3DPending", "fieldSelector=spec.host%3Dn1",
	"export=true", "exact=true", "timeout=abc", "timeout=5s", "timeout=-1s", "timeout=0", "timeoutSeconds=x", "timeoutSeconds=1", "dryRun=All", "dryRun=Bad", "unknown=1", "watch=0", "watch=false&limit=1", "%zz=1", "a;b=1",
	"shardSelector=x", "fieldManager=x", "includeObject=Object", "includeObject=Bad",
}

// plainPaths are paths without objects: discovery, documents, health, and paths that do not exist.
var plainPaths = []string{
	"/api", "/apis", "/api/", "/apis/", "/api/v1", "/api/v1/", "/apis/apps", "/apis/apps/", "/apis/apps/v1", "/apis/nosuch", "/apis/apps/v9", "/api/v2", "/version", "/version/",
	"/healthz", "/livez", "/readyz", "/healthz/ping", "/livez/ping", "/readyz/ping", "/healthz/etcd", "/healthz/nosuch", "/livez?exclude=etcd", "/nosuch", "/nosuch/x",
	"/api/v1/nosuch", "/api/v1/namespaces/diff/nosuch/x", "/apis/apps/v1/nosuch", "/openapi", "/openapi/v4", "/.well-known/openid-configuration", "/openid/v1/jwks", "/.well-known/openid-configuration/below", "/openid/v1/jwks/below", "/openid/v1/jwks/",
	"/api/v1/namespaces/diff/configmaps/a/nosuch", "/api/v1/namespaces/diff/pods/p/log/x", "/api/v1/watch", "/api/v1/watch/", "/api/v1/watch/nosuch", "/api/v1/proxy/x",
	"//api/v1/pods", "/api//v1/pods", "/api/v1/namespaces/diff//pods", "/api/v1/namespaces/../pods", "/api/v1/namespaces/./pods", "/api/v1/namespaces/diff/configmaps/a/", "/api/v1/namespaces/diff/configmaps/",
	"/api/v1/namespaces/diff/configmaps/%61", "/api/v1/namespaces/diff/configmaps/a%2Fb", "/api/v1/namespaces/diff/configmaps/..", "/api/v1/namespaces/diff/configmaps/.", "/api/v1/namespaces/diff/configmaps/%2e%2e", "/api/v1/namespaces/diff/configmaps/a%25b",
	"/api/v1/./pods", "/API/v1/pods", "/api/v1/Pods", "/api/v1/namespaces/diff/configmaps/a?watch=1", "/api/v1/namespaces/diff/configmaps/a?watch=1&resourceVersion=0", "/api/v1/pods/p", "/api/v1/namespaces/diff/nodes", "/api/v1/namespaces/diff/namespaces",
	"/api/v1/namespaces/diff/pods/p/exec?command=ls", "/api/v1/namespaces/diff/pods/nosuch/log", "/api/v1/nodes/nosuch/proxy/healthz", "/api/v1/namespaces/diff/services/nosuch/proxy/",
	"/api/v1/componentstatuses/nosuch", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "/apis/apps/v1beta1/deployments", "/apis/extensions/v1beta1/ingresses", "/swagger.json", "/swaggerapi",
	"/api//", "/api/v1///", "/apis//", "/apis/apps//", "/apis/apps/v1/%2F", "/apis/apps/v1//x", "/version//", "/version//x", "/api/v1/watch/componentstatuses", "/api/v1/watch/componentstatuses/x",
	"/debug/nosuch", "/logs/nosuch", "/api/v1/namespaces/nosuch", "/api/v1/namespaces/nosuch/configmaps", "/api/v1/namespaces/B%40d/configmaps", "/api/v1/namespaces/diff/configmaps/B%40d",
}

// fixedReads are reads whose responses can be recorded, because they depend neither on revisions nor on other objects
// in the store.
func fixedReads() []request {
	var all []request
	for _, path := range plainPaths {
		for _, accept := range []string{"", js, pb, yaml, "text/html"} {
			all = append(all, get(path, accept))
		}
		all = append(all, request{Method: http.MethodGet, Path: path, User: "-"}, request{Method: http.MethodGet, Path: path, User: "alice"})
	}
	for _, accept := range []string{"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", pb + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"} {
		all = append(all, get("/api", accept), get("/apis", accept))
	}
	for _, path := range objectPaths {
		for _, accept := range accepts {
			all = append(all, get(path, accept))
		}
		for _, parameter := range parameters {
			all = append(all, get(with(path, parameter), js))
		}
		for _, include := range []string{"None", "Metadata", "Object", "Bad", ""} {
			all = append(all, get(with(path, "includeObject="+include), table))
		}
		for _, user := range []string{"-", "alice", "unknown"} {
			all = append(all, request{Method: http.MethodGet, Path: path, User: user}, request{Method: http.MethodGet, Path: path, User: user, Accept: pb})
		}
		for _, agent := range []string{"curl/8.0", "Wget/1", "Mozilla/5.0 (X)", "kubectl/v1"} {
			all = append(all, request{Method: http.MethodGet, Path: path, Agent: agent}, request{Method: http.MethodGet, Path: with(path, "pretty=false"), Agent: agent})
		}
	}
	return all
}

// resource is an entry of discovery.
type resource struct {
	Name       string
	Namespaced bool
	Verbs      []string
}

// everyResource returns requests for every kind in every encoding, whose responses depend on the objects in the store.
func (f *fixture) everyResource(t *testing.T) []request {
	t.Helper()
	all := []request{get("/openapi/v2", js), get("/openapi/v2", pb), get("/openapi/v3", js), get("/", ""), get("/", js)}
	for _, version := range f.versions(t) {
		all = append(all, get(version, js), get(version, pb), get(version, ""), get("/openapi/v3"+version, js))
		var list struct{ Resources []resource }
		a := f.stock.send(get(version, js))
		if a.code != http.StatusOK { // its server is missing
			continue
		}
		if err := json.Unmarshal(a.body, &list); err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Resources {
			if !strings.Contains(strings.Join(r.Verbs, " "), "list") || strings.Contains(r.Name, "/") || r.Name == "componentstatuses" {
				continue // component statuses are in random order
			}
			for _, accept := range []string{js, pb, yaml, table, partials, pb + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
				all = append(all, get(version+"/"+r.Name, accept))
			}
			all = append(all, get(version+"/"+r.Name+"?includeObject=Object", table), get(version+"/"+r.Name+"?resourceVersion=0", js), get(version+"/"+r.Name+"?limit=2", table),
				get(version+"/"+r.Name+"?fieldSelector=nosuch%3D1", js), get(version+"/"+r.Name+"?fieldSelector=metadata.namespace%3Ddiff", js))
			if r.Namespaced {
				all = append(all, get(version+"/namespaces/diff/"+r.Name, js), get(version+"/namespaces/diff/"+r.Name+"/nosuch", js))
			} else {
				all = append(all, get(version+"/"+r.Name+"/nosuch", js))
			}
		}
	}
	for _, encoding := range []string{"gzip", "gzip, deflate, br", "gzip;q=1.0", "deflate", "*", "identity"} {
		for _, path := range []string{"/api/v1/namespaces/many/configmaps", "/api/v1/namespaces/diff/configmaps", "/openapi/v2", "/apis", "/apis/apps/v1"} {
			for _, accept := range []string{js, pb, table, partials} {
				all = append(all, request{Method: http.MethodGet, Path: path, Accept: accept, Encoding: encoding})
			}
		}
	}
	return all
}

// versions lists the paths of all API versions.
func (f *fixture) versions(t *testing.T) []string {
	t.Helper()
	var groups struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	a := f.must(t, f.stock, get("/apis", js))
	if err := json.Unmarshal(a.body, &groups); err != nil {
		t.Fatal(err)
	}
	all := []string{"/api/v1"}
	for _, g := range groups.Groups {
		for _, v := range g.Versions {
			all = append(all, "/apis/"+v.GroupVersion)
		}
	}
	return all
}

// lists is the cross product of the parameters that select the data of a LIST.
func lists() []request {
	var all []request
	for _, scope := range []string{"/api/v1/namespaces/diff/configmaps", "/api/v1/configmaps", "/api/v1/namespaces/diff/pods", "/api/v1/nodes", "/api/v1/namespaces/diff/events"} {
		for _, version := range []string{"", "0", "1", "{mid}", "{now}", "99999999", "x"} {
			for _, match := range []string{"", "Exact", "NotOlderThan", "Bad"} {
				for _, limit := range []string{"", "2", "-1", "500"} {
					for _, token := range []string{"", "{token:{mid}}", "{token:-1}", "{token:1}", "{token:0}", "bad"} {
						for _, selector := range []string{"", "labelSelector=x%3D1", "fieldSelector=metadata.name%3Db", "fieldSelector=metadata.namespace%3Ddiff"} {
							if skipped(scope, version, limit, token, selector) {
								continue
							}
							all = append(all, get(scope+query("resourceVersion", version, "resourceVersionMatch", match, "limit", limit, "continue", token)+and(selector), js))
						}
					}
				}
			}
		}
	}
	return all
}

// skipped reports whether a request would take the same path through the servers as another. All requests in the first
// scope are sent.
func skipped(scope, version, limit, token, selector string) bool {
	if version == "99999999" && token == "" { // waits for three seconds, see waits
		return limit != "2" || scope != "/api/v1/namespaces/diff/configmaps" || selector != ""
	}
	if scope == "/api/v1/namespaces/diff/configmaps" {
		return false
	}
	return limit == "-1" || limit == "500" || token == "bad" || token == "{token:0}" || version == "x"
}

// waits are reads at revisions that do not exist yet.
func waits() []request {
	var all []request
	for _, path := range []string{
		"/api/v1/namespaces/diff/configmaps", "/api/v1/namespaces/diff/configmaps/a", "/api/v1/namespaces/diff/events", "/api/v1/namespaces/diff/events/e1", "/api/v1/pods", "/apis/apps/v1/namespaces/diff/deployments/nosuch",
	} {
		for _, accept := range []string{js, pb, table, partials} {
			all = append(all, get(path+"?resourceVersion=99999999", accept))
		}
		for _, more := range []string{"limit=2", "resourceVersionMatch=Exact", "resourceVersionMatch=NotOlderThan", "fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name%3Da&resourceVersionMatch=Exact", "labelSelector=x%3D1"} {
			all = append(all, get(path+"?resourceVersion=99999999&"+more, js))
		}
		all = append(all, get(path+"?resourceVersion=9223372036854775807", js), get(path+"?resourceVersion=18446744073709551615", js), get(path+"?resourceVersion=18446744073709551616", js))
	}
	return all
}

// query joins names and values, and omits parameters with an empty value.
func query(pairs ...string) string {
	out := "?"
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out += pairs[i] + "=" + pairs[i+1] + "&"
		}
	}
	return strings.TrimRight(out, "&")
}

func and(parameter string) string {
	if parameter == "" {
		return ""
	}
	return "&" + parameter
}

var tokenPlaceholder = regexp.MustCompile(`\{token:(-?\d+)\}`)

// fillTokens replaces {token:N} with a continue token of revision N that starts after b.
func fillTokens(path string) string {
	namespaced := strings.Contains(path, "/namespaces/")
	return tokenPlaceholder.ReplaceAllStringFunc(path, func(match string) string {
		start := `diff/b\u0000`
		if namespaced {
			start = `b\u0000`
		}
		number := tokenPlaceholder.FindStringSubmatch(match)[1]
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"v":"meta.k8s.io/v1","rv":%s,"start":"%s"}`, number, start))
	})
}
