package httpapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/larder-io/larder/internal/proctest"
)

// stockAddress makes TestWire also test a kube-apiserver that knows the token "admintoken" of a member of
// system:masters.
var stockAddress = flag.String("wire-stock", "", "host:port of a stock kube-apiserver")

const (
	admin    = "Host: h\r\nAuthorization: Bearer admintoken\r\n"
	dryMaps  = "/api/v1/namespaces/default/configmaps?dryRun=All"
	aMap     = `{"metadata":{"name":"wire"}}`
	jsonType = "Content-Type: application/json\r\n"
	chunked  = "Transfer-Encoding: chunked\r\n"
)

// create is a request that creates a config map, with further header lines.
func create(lines, body string) string {
	return "POST " + dryMaps + " HTTP/1.1\r\n" + admin + jsonType + lines + "\r\n" + body
}

func sized(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }

// ask is a GET of a small document, with further header lines.
func ask(target, lines string) string {
	return "GET " + target + " HTTP/1.1\r\n" + admin + lines + "\r\n"
}

// Actions of a client besides sending.
const (
	hear   = "<hear>"  // reads one response, interim ones included
	hangUp = "<close>" // ends its writing side
)

// wireCase is a conversation in bytes. The outcome is the status of each response, and whether the connection then
// serves another request.
type wireCase struct {
	name  string
	says  []string
	stock string // the outcome with kube-apiserver 1.36.3
	ours  string // ours, where it is another
}

func wireCases() []wireCase {
	body := sized(aMap)
	version := ask("/version", "")
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(aMap), aMap)
	return []wireCase{
		{name: "one request", says: []string{version, hear}, stock: "200 open"},
		{name: "pipelined", says: []string{version + ask("/api", "") + version, hear, hear, hear}, stock: "200 200 200 open"},
		{name: "pipelined behind a body", says: []string{create(body, aMap) + version, hear, hear}, stock: "201 200 open"},
		{name: "pipelined behind a body that nobody reads", says: []string{ask("/version", body) + aMap + version, hear, hear}, stock: "200 200 open"},
		{name: "pipelined behind chunks that nobody reads", says: []string{ask("/version", chunked) + chunk + "0\r\n\r\n" + version, hear, hear}, stock: "200 200 open"},
		{name: "header in pieces", says: []string{"GET /ver", "sion HTTP/1.1\r", "\nHost: h\r\n", "Authorization: Bearer admintoken\r\n\r", "\n", hear}, stock: "200 open"},
		{name: "close", says: []string{ask("/version", "Connection: close\r\n"), hear}, stock: "200 closed"},
		{name: "close among others", says: []string{ask("/version", "Connection: keep-alive, Close\r\n"), hear}, stock: "200 closed"},
		{name: "half closed", says: []string{version, hangUp, hear}, stock: "504 closed", ours: "200 closed"},

		{name: "odd case of names", says: []string{"GET /version HTTP/1.1\r\nhOST: h\r\naUTHORIZATION: Bearer admintoken\r\n\r\n", hear}, stock: "200 open"},
		{name: "odd case of a method", says: []string{"get /version HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "405 open"},
		{name: "unknown method", says: []string{"FOO /api/v1/pods HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "405 open"},
		{name: "bad method", says: []string{"G@T /version HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "400 closed"},
		{name: "TRACE", says: []string{"TRACE /version HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "405 open"},
		{name: "CONNECT", says: []string{"CONNECT h:443 HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "404 open"},
		{name: "HEAD", says: []string{"HEAD /version HTTP/1.1\r\n" + admin + "\r\n", "<head>"}, stock: "405 open"},
		{name: "HEAD of a list", says: []string{"HEAD /api/v1/namespaces HTTP/1.1\r\n" + admin + "\r\n", "<head>"}, stock: "405 open"},
		{name: "HEAD of health", says: []string{"HEAD /livez HTTP/1.1\r\n" + admin + "\r\n", "<head>"}, stock: "200 open"},
		{name: "OPTIONS *", says: []string{"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", hear}, stock: "200 open"},
		{name: "OPTIONS", says: []string{"OPTIONS /api/v1/namespaces HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "405 open"},
		{name: "GET *", says: []string{"GET * HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "404 open", ours: "400 closed"},

		{name: "no host", says: []string{"GET /version HTTP/1.1\r\n\r\n", hear}, stock: "400 closed"},
		{name: "empty host", says: []string{"GET /version HTTP/1.1\r\nHost:\r\nAuthorization: Bearer admintoken\r\n\r\n", hear}, stock: "200 open", ours: "400 closed"},
		{name: "two hosts", says: []string{ask("/version", "Host: g\r\n"), hear}, stock: "400 closed"},
		{name: "bad host", says: []string{"GET /version HTTP/1.1\r\nHost: a b\r\nAuthorization: Bearer admintoken\r\n\r\n", hear}, stock: "400 closed"},
		{name: "absolute target", says: []string{ask("https://other/version", ""), hear}, stock: "200 open"},
		{name: "absolute target without path", says: []string{ask("https://other", ""), hear}, stock: "404 open"},
		{name: "two tokens", says: []string{ask("/version", "Authorization: Bearer other\r\n"), hear}, stock: "200 open", ours: "400 closed"},
		{name: "two types", says: []string{create(body+"Content-Type: text/plain\r\n", aMap), hear}, stock: "201 open", ours: "400 closed"},
		{name: "two accepts", says: []string{ask("/api", "Accept: application/json\r\nAccept: text/html\r\n"), hear}, stock: "200 open"},
		{name: "folded line", says: []string{ask("/version", "A: b\r\n c\r\n"), hear}, stock: "200 open", ours: "400 closed"},
		{name: "space before the colon", says: []string{ask("/version", "A : b\r\n"), hear}, stock: "400 closed"},
		{name: "no colon", says: []string{ask("/version", "A\r\n"), hear}, stock: "400 closed"},
		{name: "empty name", says: []string{ask("/version", ": b\r\n"), hear}, stock: "400 closed"},
		{name: "NUL in a value", says: []string{ask("/version", "A: b\x00c\r\n"), hear}, stock: "400 closed"},
		{name: "control in a value", says: []string{ask("/version", "A: b\x01c\r\n"), hear}, stock: "400 closed"},
		{name: "CR in a value", says: []string{ask("/version", "A: b\rc\r\n"), hear}, stock: "400 closed"},
		{name: "bytes in a value", says: []string{ask("/version", "A: \xff\xfe\r\n"), hear}, stock: "200 open"},
		{name: "a thousand lines", says: []string{ask("/version", strings.Repeat("A: b\r\n", 1000)), hear}, stock: "200 open"},
		{name: "many lines", says: []string{ask("/version", strings.Repeat("A: b\r\n", 50_000)), hear}, stock: "200 open"},
		{name: "a long line", says: []string{ask("/version", "A: "+strings.Repeat("b", 900<<10)+"\r\n"), hear}, stock: "200 open"},
		{name: "too long a line", says: []string{ask("/version", "A: "+strings.Repeat("b", 1100<<10)+"\r\n"), hear}, stock: "431 closed"},
		{name: "a long target", says: []string{ask("/version?a="+strings.Repeat("b", 100<<10), ""), hear}, stock: "200 open"},
		{name: "lines without CR", says: []string{"GET /version HTTP/1.1\nHost: h\nAuthorization: Bearer admintoken\n\n", hear}, stock: "200 open", ours: "400 closed"},
		{name: "an empty line first", says: []string{"\r\n" + version, hear}, stock: "400 closed", ours: "200 open"},
		{name: "an empty line behind a body", says: []string{create(body, aMap) + "\r\n", hear, version, hear}, stock: "201 200 open"},

		{name: "HTTP/1.0", says: []string{"GET /version HTTP/1.0\r\nAuthorization: Bearer admintoken\r\n\r\n", hear}, stock: "200 closed"},
		{name: "HTTP/1.0 kept alive", says: []string{"GET /version HTTP/1.0\r\nConnection: keep-alive\r\nAuthorization: Bearer admintoken\r\n\r\n", hear}, stock: "200 open"},
		{name: "HTTP/1.0 with a body", says: []string{"POST " + dryMaps + " HTTP/1.0\r\n" + admin + jsonType + body + "\r\n" + aMap, hear}, stock: "201 closed"},
		{name: "HTTP/1.0 in chunks", says: []string{"POST " + dryMaps + " HTTP/1.0\r\n" + admin + jsonType + chunked + "\r\n" + chunk + "0\r\n\r\n", hear}, stock: "400 closed"},
		{name: "HTTP/1.2", says: []string{"GET /version HTTP/1.2\r\n" + admin + "\r\n", hear}, stock: "200 open", ours: "505 closed"},
		{name: "HTTP/2.0", says: []string{"GET /version HTTP/2.0\r\n" + admin + "\r\n", hear}, stock: "505 closed"},
		{name: "HTTP/2 preface", says: []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", hear}, stock: "403 closed", ours: "400 closed"},
		{name: "HTTP/0.9", says: []string{"GET /version\r\n", hear}, stock: "400 closed"},
		{name: "http/1.1", says: []string{"GET /version http/1.1\r\n" + admin + "\r\n", hear}, stock: "400 closed"},
		{name: "no version", says: []string{"GET /version \r\n", hear}, stock: "400 closed"},
		{name: "two spaces", says: []string{"GET  /version HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "400 closed"},
		{name: "space in the target", says: []string{"GET /ver sion HTTP/1.1\r\n" + admin + "\r\n", hear}, stock: "400 closed"},
		{name: "garbage", says: []string{"\x16\x03\x01\x02\x00\r\n", hear}, stock: "400 closed"},

		{name: "NUL in the target", says: []string{ask("/ver\x00sion", ""), hear}, stock: "400 closed"},
		{name: "%00", says: []string{ask("/api/v1/namespaces/a%00b", ""), hear}, stock: "404 open"},
		{name: "bad escape", says: []string{ask("/version%zz", ""), hear}, stock: "400 closed"},
		{name: "%2F", says: []string{ask("/api/v1%2Fnamespaces", ""), hear}, stock: "200 open"},
		{name: "%2F in a name", says: []string{ask("/api/v1/namespaces/a%2Fb", ""), hear}, stock: "404 open"},
		{name: "%2e%2e", says: []string{ask("/api/v1/%2e%2e/v1/namespaces", ""), hear}, stock: "404 open"},
		{name: "..", says: []string{ask("/api/../version", ""), hear}, stock: "404 open"},
		{name: "//", says: []string{ask("//version", ""), hear}, stock: "404 open"},
		{name: "backslash", says: []string{ask("/api\\v1", ""), hear}, stock: "404 open"},
		{name: "fragment", says: []string{ask("/version#a", ""), hear}, stock: "404 open"},
		{name: "bytes in the target", says: []string{ask("/version\xff", ""), hear}, stock: "404 open"},
		{name: "semicolon in the query", says: []string{ask("/api/v1/namespaces?limit=1;resourceVersion=0", ""), hear}, stock: "200 open"},
		{name: "bad escape in the query", says: []string{ask("/api/v1/namespaces?labelSelector=%zz&limit=1", ""), hear}, stock: "200 open"},
		{name: "question marks", says: []string{ask("/api/v1/namespaces??limit=x", ""), hear}, stock: "200 open"},
		{name: "trailing slash", says: []string{ask("/api/v1/namespaces/", ""), hear}, stock: "200 open"},

		{name: "chunks", says: []string{create(chunked, chunk+"0\r\n\r\n"), hear}, stock: "201 open"},
		{name: "odd case of chunked", says: []string{create("Transfer-Encoding: Chunked\r\n", chunk+"0\r\n\r\n"), hear}, stock: "201 open"},
		{name: "chunk extension", says: []string{create(chunked, strings.Replace(chunk, "\r\n", ";a=\"b\"\r\n", 1)+"0;c\r\n\r\n"), hear}, stock: "201 open"},
		{name: "trailer", says: []string{create(chunked+"Trailer: A\r\n", chunk+"0\r\nA: b\r\n\r\n") + version, hear, hear}, stock: "201 200 open"},
		{name: "trailer that was not announced", says: []string{create(chunked, chunk+"0\r\nA: b\r\n\r\n") + version, hear, hear}, stock: "201 200 open"},
		{name: "bad trailer", says: []string{create(chunked, chunk+"0\r\nA\r\n\r\n"), hear}, stock: "500 closed"},
		{name: "long trailer", says: []string{create(chunked, chunk+"0\r\nA: "+strings.Repeat("b", 8<<10)+"\r\n\r\n"), hear}, stock: "500 closed"},
		{name: "bad chunk size", says: []string{create(chunked, "zz\r\n"), hear}, stock: "500 closed"},
		{name: "negative chunk size", says: []string{create(chunked, "-1\r\n"), hear}, stock: "500 closed"},
		{name: "huge chunk size", says: []string{create(chunked, "10000000000000000\r\n"), hear}, stock: "500 closed"},
		{name: "chunk size without CR", says: []string{create(chunked, strings.Replace(chunk, "\r\n", "\n", 1)+"0\r\n\r\n"), hear}, stock: "500 closed"},
		{name: "longer chunk than it says", says: []string{create(chunked, "1\r\nabc\r\n0\r\n\r\n"), hear}, stock: "500 closed"},
		{name: "bad chunk that nobody reads", says: []string{ask("/version", chunked) + "zz\r\n", hear}, stock: "200 closed"},
		{name: "length and chunks", says: []string{create(body+chunked, chunk+"0\r\n\r\n"), hear}, stock: "201 open", ours: "201 closed"},
		{name: "chunks twice", says: []string{create(chunked+chunked, chunk+"0\r\n\r\n"), hear}, stock: "501 closed", ours: "400 closed"},
		{name: "another coding", says: []string{create("Transfer-Encoding: gzip, chunked\r\n", chunk+"0\r\n\r\n"), hear}, stock: "501 closed", ours: "400 closed"},
		{name: "identity", says: []string{create("Transfer-Encoding: identity\r\n"+body, aMap), hear}, stock: "501 closed", ours: "400 closed"},
		{name: "two equal lengths", says: []string{create(body+body, aMap), hear}, stock: "201 open", ours: "400 closed"},
		{name: "two lengths", says: []string{create(body+"Content-Length: 3\r\n", aMap), hear}, stock: "400 closed"},
		{name: "list of lengths", says: []string{create("Content-Length: 28, 28\r\n", aMap), hear}, stock: "400 closed"},
		{name: "signed length", says: []string{create("Content-Length: +28\r\n", aMap), hear}, stock: "400 closed"},
		{name: "huge length", says: []string{create("Content-Length: 92233720368547758080\r\n", aMap), hear}, stock: "400 closed"},
		{name: "no length", says: []string{create("", ""), hear}, stock: "400 open"},

		{name: "a body that ends early", says: []string{create("Content-Length: 100\r\n", aMap), hangUp, hear}, stock: "nothing closed", ours: "500 closed"},
		{name: "chunks that end early", says: []string{create(chunked, chunk), hangUp, hear}, stock: "504 closed", ours: "500 closed"},
		{name: "a header that ends early", says: []string{"GET /version HTTP/1.1\r\nHost: h\r\n", hangUp, hear}, stock: "400 closed"},
		{name: "too large a body", says: []string{create("Content-Length: 3145729\r\n", strings.Repeat(" ", 3<<20+1)), hear}, stock: "413 open", ours: "413 closed"},
		{name: "far too large a body", says: []string{create("Content-Length: 4194304\r\n", strings.Repeat(" ", 4<<20)), hear}, stock: "413 closed"},
		{name: "too many chunks", says: []string{create(chunked, strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 64)+"0\r\n\r\n"), hear}, stock: "413 closed"},
		{name: "nobody with a small body", says: []string{"POST /version HTTP/1.1\r\nHost: h\r\n" + body + "\r\n" + aMap, hear}, stock: "403 open"},
		{name: "nobody with a large body", says: []string{"POST /version HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n", hear}, stock: "403 closed"},
		{name: "a bad token with a large body", says: []string{"POST /version HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\nContent-Length: 3000000\r\n\r\n", hear}, stock: "401 closed"},
		{name: "a large body that nobody reads", says: []string{ask("/version", "Content-Length: 262144\r\n"), hear}, stock: "200 closed"},
		{name: "many chunks that nobody reads", says: []string{ask("/version", chunked) + strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 5) + "0\r\n\r\n", hear}, stock: "200 closed"},
		{name: "the wrong type with a body", says: []string{strings.Replace(create(body, aMap), "application/json", "text/plain", 1), hear}, stock: "415 open"},

		{name: "continue", says: []string{create(body+"Expect: 100-continue\r\n", ""), hear, aMap, hear}, stock: "100 201 open"},
		{name: "continue in chunks", says: []string{create(chunked+"Expect: 100-Continue\r\n", ""), hear, chunk + "0\r\n\r\n", hear}, stock: "100 201 open"},
		{name: "continue at once", says: []string{create(body+"Expect: 100-continue\r\n", aMap), hear, hear}, stock: "100 201 open"},
		{name: "continue without a body", says: []string{create("Content-Length: 0\r\nExpect: 100-continue\r\n", ""), hear}, stock: "400 open"},
		{name: "continue that nobody waits for", says: []string{ask("/version", body+"Expect: 100-continue\r\n"), hear}, stock: "200 closed"},
		{name: "continue by nobody", says: []string{"POST /api HTTP/1.1\r\nHost: h\r\n" + body + "Expect: 100-continue\r\n\r\n", hear}, stock: "403 closed"},
		{name: "continue with the wrong type", says: []string{strings.Replace(create(body+"Expect: 100-continue\r\n", ""), "application/json", "text/plain", 1), hear}, stock: "415 closed"},
		{name: "continue and nothing", says: []string{create(body+"Expect: 100-continue\r\n", ""), hear, hangUp, hear}, stock: "100 504 closed", ours: "100 500 closed"},
		{name: "continue in HTTP/1.0", says: []string{"POST " + dryMaps + " HTTP/1.0\r\n" + admin + jsonType + body + "Expect: 100-continue\r\n\r\n" + aMap, hear}, stock: "201 closed"},
		{name: "another expectation", says: []string{ask("/version", "Expect: 200-ok\r\n"), hear}, stock: "417 closed"},

		{name: "upgrade to nothing", says: []string{ask("/version", "Connection: Upgrade\r\nUpgrade: websocket\r\n"), hear}, stock: "200 open"},
		{name: "upgrade with a body", says: []string{create("Connection: Upgrade\r\nUpgrade: websocket\r\n"+body, aMap), hear}, stock: "201 open"},
		{name: "upgrade to HTTP/2", says: []string{ask("/version", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"), hear}, stock: "200 open"},
		{name: "range", says: []string{ask("/version", "Range: bytes=0-1\r\n"), hear}, stock: "200 open"},
		{name: "a watch with a body", says: []string{ask("/api/v1/namespaces?watch=1&timeoutSeconds=1", body) + aMap, hear}, stock: "200 open", ours: "200 closed"},
	}
}

// TestWire compares every conversation with its outcome at kube-apiserver.
func TestWire(t *testing.T) {
	t.Parallel()
	address := *stockAddress
	if address == "" {
		side, s := newLarder(t, func(c *Config) {
			c.Authenticator = authenticator.RequestFunc(wireUser)
			c.Authorizer = authorizer.AuthorizerFunc(wireMay)
		})
		side.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
		address = s.config.Listener.Addr().String()
	}
	for _, c := range wireCases() {
		t.Run(c.name, func(t *testing.T) {
			want := c.stock
			if c.ours != "" && *stockAddress == "" {
				want = c.ours
			}
			if got := converse(t, address, c.says); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

func wireUser(req *http.Request) (*authenticator.Response, bool, error) {
	switch req.Header.Get("Authorization") {
	case "Bearer admintoken":
		return &authenticator.Response{User: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
	case "":
		return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous}}, true, nil
	}
	return nil, false, errors.New("unknown token")
}

func wireMay(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == user.Anonymous && (a.GetVerb() != "get" || a.GetPath() != "/version") {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// converse sends a client's bytes and returns the outcome.
func converse(t *testing.T, address string, says []string) string {
	t.Helper()
	c := proctest.DialTLS(t, address, &tls.Config{InsecureSkipVerify: true})
	defer c.Close()
	in := bufio.NewReader(c)
	var outcome []string
	for _, what := range says {
		switch what {
		case hear, "<head>":
			outcome = append(outcome, heardStatus(in, what))
		case hangUp:
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		default:
			// A server that refuses need not read on.
			_, _ = io.WriteString(c, what)
		}
	}
	probe := "GET /version HTTP/1.1\r\n" + admin + "\r\n"
	fate := "closed"
	if _, err := io.WriteString(c, probe); err == nil {
		switch status := heardStatus(in, hear); status {
		case "200":
			fate = "open"
		case "nothing":
		default:
			fate = status
		}
	}
	return strings.Join(append(outcome, fate), " ")
}

// heardStatus reads one response.
func heardStatus(in *bufio.Reader, how string) string {
	req := &http.Request{Method: http.MethodGet}
	if how != hear {
		req.Method = http.MethodHead
	}
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "late"
		}
		return "nothing"
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "cut"
	}
	return fmt.Sprint(resp.StatusCode)
}
