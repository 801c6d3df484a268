package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/request"
	"github.com/larder-io/larder/httpapi/request/requesttest"
	"github.com/larder-io/larder/internal/registry/registrytest"
)

const podOn = `{"metadata":{"name":%q},"spec":{"nodeName":%q,"containers":[{"name":"c","image":"i"}]}}`

// TestNodesWatchTheirPodsAlone checks that over a websocket, which upstream's handler serves, a node sees only the
// objects it was authorized for, however many parameters it sends.
func TestNodesWatchTheirPodsAlone(t *testing.T) {
	node.RegisterMetrics()
	f := serveBackWith(t, registrytest.New(t, nil), func(c *Config) {
		c.Authenticator = authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
			who := &user.DefaultInfo{Name: "system:node:mine", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
			return &authenticator.Response{User: who}, true, nil
		})
		c.Authorizer = node.NewAuthorizer(node.NewGraph(), nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules())
	})
	inside := &side{name: "larder", do: func(req *http.Request) *http.Response {
		resp, err := f.RoundTripper().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}}
	inside.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"a"}}`))
	inside.must(t, post("/api/v1/namespaces/a/serviceaccounts", `{"metadata":{"name":"default"}}`))
	inside.must(t, post("/api/v1/namespaces/a/pods", fmt.Sprintf(podOn, "of-mine", "mine")))
	inside.must(t, post("/api/v1/namespaces/a/pods", fmt.Sprintf(podOn, "of-other", "other")))

	written := 0
	const selected = "/api/v1/pods?watch=1&timeoutSeconds=600&fieldSelector=spec.nodeName%3Dmine"
	for name, test := range map[string]struct {
		target string
		code   int
	}{
		"selected":                 {selected, http.StatusSwitchingProtocols},
		"not selected":             {"/api/v1/pods?watch=1&timeoutSeconds=600", http.StatusForbidden},
		"as many as are read":      {selected + strings.Repeat("&", request.MaxParams-3), http.StatusSwitchingProtocols},
		"more than are read":       {selected + strings.Repeat("&", request.MaxParams-2), http.StatusForbidden},
		"selected twice":           {selected + "&fieldSelector=", http.StatusSwitchingProtocols},
		"selected, too late":       {"/api/v1/pods?watch=1&timeoutSeconds=600&fieldSelector=&fieldSelector=spec.nodeName%3Dmine", http.StatusForbidden},
		"selected after a ;":       {"/api/v1/pods?watch=1;&fieldSelector=spec.nodeName%3Dmine;a=b", http.StatusForbidden},
		"selected by another name": {"/api/v1/pods?watch=1&FieldSelector=spec.nodeName%3Dmine", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			c := f.dial(t)
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: h\r\nOrigin: https://h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
				"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", test.target)
			in := bufio.NewReader(c)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != test.code {
				t.Errorf("got status %d, want %d", resp.StatusCode, test.code)
			}
			if resp.StatusCode != http.StatusSwitchingProtocols {
				if body, _ := io.ReadAll(resp.Body); bytes.Contains(body, []byte("of-other")) {
					t.Errorf("a node sees another's pod: %.300q", body)
				}
				return
			}
			written++ // events of a later pod follow all initial events
			last := fmt.Sprint("of-mine-", written)
			inside.must(t, post("/api/v1/namespaces/a/pods", fmt.Sprintf(podOn, last, "mine")))
			var seen []byte
			for !bytes.Contains(seen, []byte(`"name":"`+last+`"`)) {
				b, err := in.ReadByte()
				if err != nil {
					t.Fatalf("%.300q, %v", seen, err)
				}
				seen = append(seen, b)
			}
			if bytes.Contains(seen, []byte("of-other")) {
				t.Errorf("a node sees another's pod: %.300q", seen)
			}
			if !bytes.Contains(seen, []byte(`"name":"of-mine"`)) {
				t.Errorf("a node does not see its own pod: %.300q", seen)
			}
		})
	}
}

// claim is the attributes that an authorizer receives, and the attributes that handlers use.
type claim struct {
	verb, group, version, namespace, resource, subresource, name, path string
	isResource                                                         bool
	fields, labels                                                     string
}

func claimOf(a authorizer.Attributes) claim {
	c := claim{
		a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetNamespace(), a.GetResource(), a.GetSubresource(), a.GetName(), a.GetPath(),
		a.IsResourceRequest(), "", "",
	}
	required, err := a.GetFieldSelector()
	c.fields = fmt.Sprint(required, err)
	needed, err := a.GetLabelSelector()
	c.labels = fmt.Sprint(needed, err)
	return c
}

// served serves one request up to the authorizer. It returns the authorizer's attributes and the request as a handler
// would receive it; nil if it does not get that far.
func served(method, target string) (c claim, r *request.Request, handed *http.Request) {
	s := newServer(Config{
		Timeouts: Timeouts{RequestTimeout: time.Minute},
		Access: Access{
			Authenticator: authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
				handed = req
				return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
			}),
			Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				c, r = claimOf(a), new(request.Request)
				_ = r.Parse(method, target) // which the server's did not refuse
				return authorizer.DecisionDeny, "", nil
			}),
		},
	})
	defer s.cancel()
	script := method + " " + target + " HTTP/1.1\r\nHost: h\r\n\r\n"
	s.http1.Session(&scriptConn{in: bytes.NewReader([]byte(script))}).Serve()
	if r == nil {
		return c, nil, nil
	}
	return c, r, handed
}

// checkHanded fails t if upstream's code reads something else from a request than what was authorized.
func checkHanded(t interface{ Fatalf(string, ...any) }, method, target string) {
	if strings.ContainsFunc(method+target, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return // no request line
	}
	want, r, handed := served(method, target)
	if r == nil {
		return
	}
	factory := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(handed)
	if err != nil {
		t.Fatalf("%s %.200q: %v", method, target, err)
	}
	attributes, err := filters.GetAuthorizerAttributes(apirequest.WithRequestInfo(context.Background(), info))
	if err != nil {
		t.Fatalf("%s %.200q: %v", method, target, err)
	}
	if got := claimOf(attributes); got != want {
		t.Fatalf("%s %.200q: authorized as\n%+v\nread as\n%+v", method, target, want, got)
	}
	query := handed.URL.Query()
	if !reflect.DeepEqual(query, r.Query.Values()) {
		t.Fatalf("%s %.200q: query %v, read as %v", method, target, r.Query, query)
	}
	ours, oursErr := (&request.Request{Query: r.Query}).ListOptions()
	theirs := &internalversion.ListOptions{}
	theirsErr := internalscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, theirs)
	if got, want := optionsText(theirs, theirsErr), optionsText(ours, oursErr); got != want {
		t.Fatalf("%s %.200q: options\n%s\nread as\n%s", method, target, want, got)
	}
	checkWritten(t, handed)
}

// checkWritten fails t where a request's URL does not stand for itself once it is text.
func checkWritten(t interface{ Fatalf(string, ...any) }, handed *http.Request) {
	if handed.URL.Host != "" || handed.URL.Opaque != "" || handed.URL.User != nil || handed.URL.RawPath != "" {
		t.Fatalf("handed on %#v", handed.URL)
	}
	again, err := url.ParseRequestURI(handed.RequestURI)
	if err != nil {
		t.Fatalf("%.200q: %v", handed.RequestURI, err)
	}
	if again.Path != handed.URL.Path && handed.URL.Path != "" || !reflect.DeepEqual(again.Query(), handed.URL.Query()) {
		t.Fatalf("%.200q is read as %.200q %v", handed.RequestURI, again.Path, again.Query())
	}
	if _, err := url.ParseQuery(handed.URL.RawQuery); err != nil {
		t.Fatalf("%.200q: %v", handed.URL.RawQuery, err)
	}
}

func optionsText(o *internalversion.ListOptions, err error) string {
	if err != nil {
		return err.Error()
	}
	text := func(selector fmt.Stringer) string {
		if v := reflect.ValueOf(selector); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return ""
		}
		return selector.String()
	}
	plain := *o
	plain.LabelSelector, plain.FieldSelector = nil, nil
	timeout, send := "", ""
	if plain.TimeoutSeconds != nil {
		timeout = fmt.Sprint(*plain.TimeoutSeconds)
	}
	if plain.SendInitialEvents != nil {
		send = fmt.Sprint(*plain.SendInitialEvents)
	}
	plain.TimeoutSeconds, plain.SendInitialEvents = nil, nil
	return fmt.Sprintf("%+v %q %q %s %s", plain, text(o.LabelSelector), text(o.FieldSelector), timeout, send)
}

// handedTargets are read in two ways by one parser or another.
var handedTargets = []string{
	"/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dmine" + strings.Repeat("&", request.MaxParams-2),
	"/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dmine" + strings.Repeat("&", request.MaxParams-1),
	"/api/v1/pods?" + strings.Repeat("a&", request.MaxParams-1) + "watch=1", "/api/v1/pods?" + strings.Repeat("a&", request.MaxParams) + "watch=1",
	"/api/v1/pods?watch;fieldSelector=a%3Db", "/api/v1/pods?watch=0&watch=1", "/api/v1/pods?limit=1&limit=x", "/api/v1/pods?%77atch=%31", "/api/v1/pods?watch=%zz&watch=1",
	"/api/v1/pods?fieldSelector=a=b&fieldSelector=c=d", "/api/v1/pods?labelSelector=a+in+(b,c)", "/api/v1/pods?a=b=c&=&==&=x", "/api/v1/pods?watch#x", "/api/v1/pods?x=\xff&y=\u00fc",
	"/api/v1/namespaces/a/pods/b%2Fc/log", "/api/v1/namespaces/a/services/b/proxy/c%2Fd%3Fe?f&g=%20+&h;i", "/api/v1/namespaces/a/pods/b/proxy", "/api/v1/pods%3Fwatch=1", "/%2Fapi/v1/pods",
	"//api/v1/pods?watch=1", "/api/v1/pods/..%2F..%2Fsecrets", "http://h/api/v1/pods?watch=1", "http://u:p@g:1/api/v1/pods", "https://h", "/a%25b", "/%3F", "/%23", "/ü", "/[a]\"<>^`{|}",
}

func FuzzHandedRequests(f *testing.F) {
	for _, list := range [][]string{handedTargets, requesttest.Targets()} {
		for i, target := range list {
			f.Add("GET", target)
			f.Add(requesttest.Methods()[i%len(requesttest.Methods())], target)
		}
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if len(target) <= 1<<15 {
			checkHanded(t, method, target)
			requesttest.CheckParity(t, method, target)
		}
	})
}

// TestHandedRequestsSayWhatWasAuthorized runs the checks of FuzzHandedRequests without a fuzzer.
func TestHandedRequestsSayWhatWasAuthorized(t *testing.T) {
	segment := rapid.SampledFrom([]string{
		"", "api", "apis", "apps", "v1", "pods", "namespaces", "watch", "proxy", "status", "a", "..", ".", "%2F", "%2f..", "%3F", "%25", "%", "%zz", "+", "ü", "%C3%BC", "%ff", ":", "*", "a;b", "a=b", "#",
	})
	key := rapid.SampledFrom([]string{
		"watch", "%77atch", "Watch", "limit", "fieldSelector", "field%53elector", "labelSelector", "timeoutSeconds", "sendInitialEvents", "continue", "resourceVersion", "pretty", "path", "", "a;watch", "+watch", "\xff",
	})
	value := rapid.SampledFrom([]string{
		"", "1", "true", "False", "0", "-3", "x", "a=b", "a%3Db", "metadata.name%3Dx", "metadata.name=..%2Fx", "a+in+(b)", "((", "%zz", "%", ";", "%3B", "%26watch%3D1", "%00", "#", "?watch", "%2B", "+", "99999999999999999999",
	})
	between := rapid.SampledFrom([]string{"&", "&", "&", "&", "&&", ";", "&amp;", strings.Repeat("&", request.MaxParams-3), strings.Repeat("&", request.MaxParams)})
	rapid.Check(t, func(t *rapid.T) {
		target := rapid.SampledFrom([]string{"/", "/api/v1/pods", "/api/v1/namespaces/a/", "/apis/apps/v1/", "//", "http://h/", "http://h", ""}).Draw(t, "start")
		target += strings.Join(rapid.SliceOfN(segment, 0, 6).Draw(t, "path"), "/")
		for i := range rapid.IntRange(0, 5).Draw(t, "params") {
			if i == 0 {
				target += "?"
			} else {
				target += between.Draw(t, "between")
			}
			target += key.Draw(t, "key") + rapid.SampledFrom([]string{"=", "=", "=", ""}).Draw(t, "eq") + value.Draw(t, "value")
		}
		method := rapid.SampledFrom(requesttest.Methods()).Draw(t, "method")
		checkHanded(t, method, target)
		requesttest.CheckParity(t, method, target)
	})
}

// TestProxiedQueriesAreNotRewritten checks that an application behind a proxy gets the client's spelling of query
// parameters. Upstream's handlers get them re-encoded. Neither gets parameters that were not parsed.
func TestProxiedQueriesAreNotRewritten(t *testing.T) {
	const query = "?b=%7e+%20&a&c;d&e=%zz&a=2&&signature=x%2fy"
	for target, want := range map[string]string{
		"/api/v1/namespaces/a/services/s/proxy/p" + query:                                          "b=%7e+%20&a&a=2&signature=x%2fy",
		"/api/v1/namespaces/a/services/s/proxy/p" + query + strings.Repeat("&", request.MaxParams): "",
		"/api/v1/namespaces/a/pods" + query:                                                        "b=~++&a=&a=2&signature=x%2Fy",
		"/healthz" + query:                                                                         "b=~++&a=&a=2&signature=x%2Fy",
	} {
		_, _, handed := served("GET", target)
		if handed == nil || handed.URL.RawQuery != want {
			t.Errorf("%.100s: %v, want %s", target, handed, want)
		}
	}
	_, _, handed := served("GET", "http://other:1/healthz")
	if handed == nil || handed.Host != "other:1" || handed.URL.Host != "" || handed.RequestURI != "/healthz" {
		t.Errorf("the handler got %+v, want the path /healthz and the host other:1", handed)
	}
}
