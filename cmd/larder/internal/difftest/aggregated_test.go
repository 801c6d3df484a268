package difftest

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

const (
	apiservices = "/apis/apiregistration.k8s.io/v1/apiservices"
	remote      = "/apis/remote.example.com/v1"
)

// remoteServer is an aggregated API server. It responds with the request it received.
func remoteServer(t *testing.T) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(serveRemote))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // hides errors of clients that do not trust its certificate
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func serveRemote(w http.ResponseWriter, req *http.Request) {
	path, inside := strings.CutPrefix(req.URL.Path, remote)
	switch {
	case !inside:
		http.NotFound(w, req)
	case path == "" || path == "/":
		w.Header().Set("Content-Type", js)
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"remote.example.com/v1","resources":[`+
			`{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","create","watch"],"shortNames":["th"]}]}`)
	case path == "/redirect":
		http.Redirect(w, req, "/elsewhere", http.StatusFound)
	case path == "/fail":
		http.Error(w, "it failed", http.StatusInternalServerError)
	case path == "/cut":
		panic(http.ErrAbortHandler)
	case path == "/nothing":
		w.WriteHeader(http.StatusNoContent)
	case path == "/page":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<html><body><a href="/x/y">y</a></body></html>`)
	case req.URL.Query().Get("watch") != "":
		w.Header().Set("Content-Type", js)
		for i := range 3 {
			fmt.Fprintf(w, `{"type":"ADDED","object":{"n":%d}}`+"\n", i)
			http.NewResponseController(w).Flush()
		}
	default:
		echo(w, req)
	}
}

// echo responds with the request, except parts that vary.
func echo(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	header := maps.Clone(req.Header)
	header["Audit-Id"] = []string{fmt.Sprint(len(req.Header["Audit-Id"]))}
	request := map[string]any{
		"method": req.Method, "target": req.RequestURI, "host": req.Host, "header": header,
		"length": req.ContentLength, "body": string(body), "error": fmt.Sprint(err),
	}
	w.Header().Set("Content-Type", js)
	w.Header().Set("Warning", `299 - "remote"`)
	w.Header().Set("Retry-After", "7")
	_ = json.NewEncoder(w).Encode(request)
}

// aggregate creates APIServices for existing and missing servers.
func (f *fixture) aggregate(t *testing.T, server *httptest.Server) {
	t.Helper()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	f.larder.ports = append(f.larder.ports, ":"+at.Port(), ": "+at.Port()) // in an address, and in indented JSON
	const services = "/api/v1/namespaces/diff/services"
	f.must(t, f.larder, do(http.MethodPost, services, js, withKind(services, `{"metadata":{"name":"remote"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)))
	register := func(version, group, service, more string) {
		t.Helper()
		spec := fmt.Sprintf(`{"metadata":{"name":"%[1]s.%[2]s"},"spec":{"group":%[2]q,"version":%[1]q,"groupPriorityMinimum":17250,"versionPriority":5%[3]s%[4]s}}`, version, group, service, more)
		f.must(t, f.larder, do(http.MethodPost, apiservices, js, withKind(apiservices, spec)))
	}
	service := fmt.Sprintf(`,"service":{"namespace":"diff","name":"remote","port":%s}`, at.Port())
	register("v1", "remote.example.com", service, `,"insecureSkipTLSVerify":true`)
	register("v2", "remote.example.com", service, `,"insecureSkipTLSVerify":true`)
	register("v1", "distrusted.example.com", service, "")
	register("v1", "missing.example.com", `,"service":{"namespace":"diff","name":"nosuch"}`, `,"insecureSkipTLSVerify":true`)
	register("v1", "local.example.com", "", "")
	available := regexp.MustCompile(`"type":"Available","status":"(True|False)"`)
	for name, want := range map[string]string{
		"v1.remote.example.com": "True", "v2.remote.example.com": "False", "v1.distrusted.example.com": "False",
		"v1.missing.example.com": "False", "v1.local.example.com": "True",
	} {
		proctest.Eventually(t, name+" is judged", func() error {
			a := f.larder.send(get(apiservices+"/"+name, js))
			if found := available.FindSubmatch(a.body); found == nil || string(found[1]) != want {
				return fmt.Errorf("%d %s", a.code, a.body)
			}
			return nil
		})
	}
}

// aggregatedReads are reads of aggregated servers, of the documents that describe them, and of servers that cannot be
// reached.
func aggregatedReads() []request {
	var all []request
	for _, path := range []string{
		remote, remote + "/", remote + "/things", remote + "/namespaces/diff/things/a?x=1&b=%20c&a=", remote + "/a%2Fb//c/../d", remote + "/things?limit=x&timeoutSeconds=5", remote + "/things?timeout=nonsense",
		remote + "/redirect", remote + "/fail", remote + "/nothing", remote + "/page", "/apis/remote.example.com", "/apis/remote.example.com/", "/apis/remote.example.com/v2", "/apis/remote.example.com/v2/things", "/apis/remote.example.com/v3", "/apis/remote.example.com/v3/things", "/apis/remote.example.com/v1x/things",
		"/apis/missing.example.com", "/apis/missing.example.com/v1", "/apis/missing.example.com/v1/things?watch=1", "/apis/distrusted.example.com/v1/things", "/apis/local.example.com", "/apis/local.example.com/v1", "/apis/local.example.com/v1/things",
		"//apis/remote.example.com/v1/things", "/apis//remote.example.com/v1", remote + "/things?watch=1", remote + "/watch/things", remote + "/namespaces/diff/things/a/log",
		apiservices, apiservices + "/v1.apps", apiservices + "/v1.", apiservices + "/v1.remote.example.com", apiservices + "/v1.missing.example.com/status", apiservices + "/nosuch", "/apis/apiregistration.k8s.io", "/apis/apiregistration.k8s.io/", "/apis/apiregistration.k8s.io/v1", "/apis/apiregistration.k8s.io/v1beta1", apiservices + "?fieldSelector=metadata.name%3Dv1.apps", apiservices + "?labelSelector=kube-aggregator.kubernetes.io%2Fautomanaged",
	} {
		for _, accept := range []string{"", js, pb, yaml, table, partials, "text/html", "nonsense"} {
			all = append(all, get(path, accept))
		}
		for _, user := range []string{"-", "alice", "unknown"} {
			all = append(all, request{Method: http.MethodGet, Path: path, User: user})
		}
		all = append(all, request{Method: http.MethodGet, Path: path, Encoding: "gzip"}, request{Method: http.MethodGet, Path: path, Agent: "curl/8.0"}, request{Method: http.MethodHead, Path: path})
	}
	return append(all, get(remote+"/cut", js))
}

// aggregatedWrites are writes to aggregated servers, and of APIServices.
func aggregatedWrites() []request {
	var all []request
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "FOO"} {
		for _, path := range []string{remote + "/things", remote + "/namespaces/diff/things/a?dryRun=All", remote, "/apis/remote.example.com", "/apis/missing.example.com/v1/things", apiservices + "/v1.local.example.com/status?dryRun=All"} {
			for _, body := range []string{"", `{"a":1}`, strings.Repeat("0123456789", 10_000)} {
				if method != "OPTIONS" || body == "" {
					all = append(all, do(method, path, js, body), request{Method: method, Path: path, Body: body, User: "alice"})
				}
			}
		}
	}
	for _, spec := range []string{
		`{}`, `{"group":"x.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1}`, `{"group":"x.example.com","version":"v1","groupPriorityMinimum":0,"versionPriority":0}`, `{"group":"x.example.com","version":"v1","groupPriorityMinimum":20001,"versionPriority":1001}`,
		`{"group":"x.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true}`, `{"group":"x.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"service":{"name":"s","namespace":"d"},"caBundle":"YQ==","insecureSkipTLSVerify":true}`,
		`{"group":"x.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"service":{"name":"s","namespace":"d","port":0}}`, `{"group":"x.example.com","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"service":{"name":"s","namespace":"d"},"unknown":1}`, `{"group":"other","version":"v2","groupPriorityMinimum":1,"versionPriority":1}`,
	} {
		for _, name := range []string{"v1.x.example.com", "v1.local.example.com", "nodots", ""} {
			body := withKind(apiservices, fmt.Sprintf(`{"metadata":{"name":%q},"spec":%s}`, name, spec))
			all = append(all, do("POST", apiservices+"?dryRun=All", js, body), do("PUT", apiservices+"/v1.local.example.com?dryRun=All", js, body), do("PATCH", apiservices+"/v1.local.example.com?dryRun=All&fieldManager=m", applyPatch, body), do("POST", apiservices+"?dryRun=All&fieldValidation=Strict", js, body))
		}
	}
	return all
}

// aggregatedFlows are writes of one APIService, in sequence.
func aggregatedFlows() [][]request {
	const name = "v1.{who}.example.com"
	body := withKind(apiservices, `{"metadata":{"name":"`+name+`"},"spec":{"group":"{who}.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":10}}`)
	one := apiservices + "/" + name
	return [][]request{{
		do("POST", apiservices, js, body), do("POST", apiservices, js, body), get(one, js), get(one, yaml), get(one, table), do("PUT", one, js, body), do("PATCH", one, mergePatch, `{"spec":{"versionPriority":11}}`),
		do("PATCH", one, strategicPatch, `{"metadata":{"labels":{"a":"b"}}}`), do("PATCH", one+"?fieldManager=m", applyPatch, strings.Replace(body, `"versionPriority":10`, `"versionPriority":11`, 1)), do("PATCH", one+"/status", mergePatch, `{"status":{"conditions":[]},"spec":{"versionPriority":12}}`),
		do("DELETE", one, js, ""), get(one, js), do("DELETE", one, js, ""),
	}}
}
