package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/larder-io/larder/internal/proctest"
)

// headerRoom is the size of the header that the server accepts, without the fields that all requests have.
const headerRoom = http.DefaultMaxHeaderBytes

// refuser is a server whose upstream authenticators know no token. It records all requests.
func refuser(t testing.TB) *Server {
	none := authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil })
	proxied, err := headerrequest.New([]string{"X-Remote-User"}, []string{"X-Remote-Uid"}, []string{"X-Remote-Group"}, []string{"X-Remote-Extra-"})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(Config{
		Timeouts: Timeouts{RequestTimeout: time.Minute},
		Access: Access{
			Authenticator: union.New(proxied, bearertoken.New(none), websocket.NewProtocolAuthenticator(none)),
			Authorizer:    authorizerfactory.NewAlwaysDenyAuthorizer(),
			AuditPolicy:   parsePolicy(t, "rules: [{level: Metadata}]"),
			Audit:         discardingSink{},
		},
	})
	t.Cleanup(s.cancel)
	return s
}

// discardingSink discards audit events.
type discardingSink struct{}

// ProcessEvents implements audit.Sink.
func (discardingSink) ProcessEvents(...*auditapi.Event) bool { return true }

// growing returns a function that serves one request until authentication refuses its sender, or parsing refuses it
// as malformed.
func growing(t testing.TB, s *Server, code int, target, header string) func() {
	script := []byte("GET " + target + " HTTP/1.1\r\nHost: h\r\n" + header + "\r\n")
	if len(script) > headerRoom {
		t.Fatalf("a header of %d bytes exceeds the limit of %d", len(script), headerRoom)
	}
	return func() {
		c := &scriptConn{in: bytes.NewReader(script)}
		s.http1.Session(c).Serve()
		if got := c.out.String(); !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", code)) {
			t.Fatalf("got response %.200q", got)
		}
	}
}

// numbered repeats text, which holds one %d.
func numbered(n int, text string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, text, i)
	}
	return b.String()
}

// TestHeaderCostIsLinear checks that a request whose sender is not yet authenticated takes work in proportion to its
// length.
func TestHeaderCostIsLinear(t *testing.T) {
	s := refuser(t)
	list := func(query string) string { return "/api/v1/pods?" + query }
	for _, test := range []struct {
		name   string
		n      int // the test compares it with 8*n
		target func(n int) string
		header func(n int) string
		code   int // 401 if it is 0
	}{
		{name: "header lines", n: 8000, header: func(n int) string { return numbered(n, "A%d: b\r\n") }},
		{name: "equal header lines", n: 20000, header: func(n int) string { return strings.Repeat("A:\r\n", n) }},
		{name: "cookie lines", n: 8000, header: func(n int) string { return strings.Repeat("Cookie: a\r\n", n) }},
		{name: "cookies", n: 8000, header: func(n int) string { return "Cookie: " + numbered(n, "c%d=d; ") + "\r\n" }},
		{name: "connection lines", n: 5000, header: func(n int) string { return strings.Repeat("Connection: a\r\n", n) }},
		{name: "connection options", n: 20000, header: func(n int) string { return "Connection: " + strings.Repeat("a, ", n) + "\r\n" }},
		{name: "trailers", n: 8000, header: func(n int) string { return "Trailer: " + numbered(n, "T%d, ") + "\r\n" }},
		{name: "trailer lines", n: 6000, header: func(n int) string { return numbered(n, "Trailer: T%d\r\n") }},
		{name: "folded lines", n: 8000, code: 400, header: func(n int) string { return strings.Repeat("A: b\r\n c\r\n", n) }},
		{name: "a line in folds", n: 20000, code: 400, header: func(n int) string { return "A: b\r\n" + strings.Repeat(" c\r\n", n) }},
		{name: "forwarded addresses", n: 8000, header: func(n int) string { return "X-Forwarded-For: " + strings.Repeat("1.2.3.4, ", n) + "\r\n" }},
		{name: "long value", n: 1 << 16, header: func(n int) string { return "A: " + strings.Repeat("b", n) + "\r\n" }},
		{name: "long name", n: 1 << 16, header: func(n int) string { return strings.Repeat("a", n) + ": b\r\n" }},
		{name: "query keys", n: 8000, target: func(n int) string { return list(numbered(n, "k%d=v&")) }},
		{name: "read query keys", n: 1249, target: func(n int) string { return list(numbered(n, "k%d=v&")) }},
		{name: "equal query keys", n: 40000, target: func(n int) string { return list(strings.Repeat("a&", n)) }},
		{name: "empty parameters", n: 100000, target: func(n int) string { return list(strings.Repeat("&", n)) }},
		{name: "escapes in a key", n: 40000, target: func(n int) string { return list(strings.Repeat("%61", n)) }},
		{name: "list options", n: 600, target: func(n int) string { return list(strings.Repeat("labelSelector=a&fieldSelector=a%3Db&", n)) }},
		{name: "options that do not decode", n: 1249, target: func(n int) string { return list("limit=x&" + numbered(n-1, "k%d=v&")) }},
		{name: "label selector", n: 8000, target: func(n int) string { return list("labelSelector=" + numbered(n, "l%d,") + "x") }},
		{name: "label selector of equal keys", n: 20000, target: func(n int) string { return list("labelSelector=" + strings.Repeat("a=b,", n) + "a") }},
		{name: "label selector of a set", n: 8000, target: func(n int) string { return list("labelSelector=a+in+(" + numbered(n, "v%d,") + "x)") }},
		{name: "label selector of brackets", n: 40000, target: func(n int) string { return list("labelSelector=a+in+" + strings.Repeat("(", n)) }},
		{name: "field selector", n: 8000, target: func(n int) string { return list("fieldSelector=" + numbered(n, "f%d=v,") + "x=y") }},
		{name: "field selector of escapes", n: 20000, target: func(n int) string { return list("fieldSelector=a=" + strings.Repeat(`\\`, n)) }},
		{name: "field selector of names", n: 6000, target: func(n int) string {
			return list("fieldSelector=" + strings.Repeat("metadata.name=x,", n) + "metadata.name=x")
		}},
		{name: "path segments", n: 40000, target: func(n int) string { return "/api/v1/namespaces/a/pods/b" + strings.Repeat("/c", n) }},
		{name: "slashes", n: 100000, target: func(n int) string { return strings.Repeat("/", n) }},
		{name: "escapes in a path", n: 40000, target: func(n int) string { return "/" + strings.Repeat("%2F", n) }},
		{name: "accept clauses", n: 6000, header: func(n int) string { return "Accept: " + numbered(n, "a/b;c=d;q=0.%d,") + "\r\n" }},
		{name: "impersonated groups", n: 2000, header: func(n int) string {
			return "Impersonate-User: u\r\n" + numbered(n, "Impersonate-Group: a%d\r\n")
		}},
		{name: "websocket protocols", n: 8000, header: func(n int) string {
			return "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " + numbered(n, "p%d, ") + "\r\n"
		}},
		{name: "tokens among websocket protocols", n: 2000, header: func(n int) string {
			return "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " + numbered(n, "base64url.bearer.authorization.k8s.io.YQ%d, ") + "\r\n"
		}},
		{name: "groups of a front proxy", n: 4000, code: 403, header: func(n int) string {
			return "X-Remote-User: u\r\n" + numbered(n, "X-Remote-Group: g%d\r\n")
		}},
		{name: "extra of a front proxy", n: 2000, code: 403, header: func(n int) string {
			return "X-Remote-User: u\r\n" + numbered(n, "X-Remote-Extra-K%d: %%41\r\n")
		}},
		{name: "user agent", n: 1 << 16, header: func(n int) string { return "User-Agent: " + strings.Repeat("a", n) + "\r\n" }},
		{name: "expectations", n: 8000, header: func(n int) string { return "Expect: 100-continue" + strings.Repeat(", a", n) + "\r\n" }},
		{name: "authorization", n: 1 << 16, header: func(n int) string { return "Authorization: Bearer " + strings.Repeat("t", n) + "\r\n" }},
	} {
		t.Run(test.name, func(t *testing.T) {
			proctest.OfThread.CheckGrowth(t, test.n, func(n int) func() {
				target, header := "/api/v1/pods", ""
				if test.target != nil {
					target = test.target(n)
				}
				if test.header != nil {
					header = test.header(n)
				}
				return growing(t, s, cmp.Or(test.code, http.StatusUnauthorized), target, header)
			})
		})
	}
}

// impersonator is a server whose clients may impersonate every user, and have no other rights.
func impersonator(t testing.TB) *Server {
	s := newServer(Config{
		Timeouts: Timeouts{RequestTimeout: time.Minute},
		Access: Access{
			Authenticator: authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
			}),
			Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if a.GetVerb() == "impersonate" {
					return authorizer.DecisionAllow, "", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			}),
		},
	})
	t.Cleanup(s.cancel)
	return s
}

// TestImpersonationCostIsLinear checks that the work for impersonation headers is proportional to their length.
func TestImpersonationCostIsLinear(t *testing.T) {
	s := impersonator(t)
	for name, header := range map[string]string{
		"groups":         "Impersonate-Group: a%d\r\n",
		"keys of extra":  "Impersonate-Extra-K%d: v\r\n",
		"extra of a key": "Impersonate-Extra-K: v%d\r\n",
		"users":          "Impersonate-User: a%d\r\n",
		"equal groups":   "Impersonate-Group: a\r\nA%d: b\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			proctest.OfThread.CheckGrowth(t, 500, func(n int) func() {
				return growing(t, s, http.StatusForbidden, "/api/v1/pods", "Impersonate-User: u\r\n"+numbered(n, header))
			})
		})
	}
}
