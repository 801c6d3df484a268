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

// stockAddress makes TestMalformedRequestsMatchKubeAPIServer also test a kube-apiserver that knows the token "admintoken" of a member of
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
func getRequest(target, lines string) string {
	return "GET " + target + " HTTP/1.1\r\n" + admin + lines + "\r\n"
}

// Actions of a client besides sending.
const (
	readResponse = "<response>" // reads one response, interim ones included
	closeWrite   = "<close>"    // ends its writing side
)

// wireCase is a conversation in bytes. The outcome is the status of each response, and whether the connection then
// serves another request.
type wireCase struct {
	name  string
	steps []string
	stock string // the outcome with kube-apiserver 1.36.3
	ours  string // ours, where it is another
}

func wireCases() []wireCase {
	body := sized(aMap)
	version := getRequest("/version", "")
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(aMap), aMap)
	return []wireCase{
		{name: "one request", steps: []string{version, readResponse}, stock: "200 open"},
		{name: "pipelined", steps: []string{version + getRequest("/api", "") + version, readResponse, readResponse, readResponse}, stock: "200 200 200 open"},
		{name: "pipelined after a body", steps: []string{create(body, aMap) + version, readResponse, readResponse}, stock: "201 200 open"},
		{name: "pipelined after a body that no handler reads", steps: []string{getRequest("/version", body) + aMap + version, readResponse, readResponse}, stock: "200 200 open"},
		{name: "pipelined after chunks that no handler reads", steps: []string{getRequest("/version", chunked) + chunk + "0\r\n\r\n" + version, readResponse, readResponse}, stock: "200 200 open"},
		{name: "header in pieces", steps: []string{"GET /ver", "sion HTTP/1.1\r", "\nHost: h\r\n", "Authorization: Bearer admintoken\r\n\r", "\n", readResponse}, stock: "200 open"},
		{name: "close", steps: []string{getRequest("/version", "Connection: close\r\n"), readResponse}, stock: "200 closed"},
		{name: "close among others", steps: []string{getRequest("/version", "Connection: keep-alive, Close\r\n"), readResponse}, stock: "200 closed"},
		{name: "half closed", steps: []string{version, closeWrite, readResponse}, stock: "504 closed", ours: "200 closed"},

		{name: "odd case of names", steps: []string{"GET /version HTTP/1.1\r\nhOST: h\r\naUTHORIZATION: Bearer admintoken\r\n\r\n", readResponse}, stock: "200 open"},
		{name: "odd case of a method", steps: []string{"get /version HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "405 open"},
		{name: "unknown method", steps: []string{"FOO /api/v1/pods HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "405 open"},
		{name: "bad method", steps: []string{"G@T /version HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "400 closed"},
		{name: "TRACE", steps: []string{"TRACE /version HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "405 open"},
		{name: "CONNECT", steps: []string{"CONNECT h:443 HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "404 open"},
		{name: "HEAD", steps: []string{"HEAD /version HTTP/1.1\r\n" + admin + "\r\n", "<head>"}, stock: "405 open"},
		{name: "HEAD of a list", steps: []string{"HEAD /api/v1/namespaces HTTP/1.1\r\n" + admin + "\r\n", "<head>"}, stock: "405 open"},
		{name: "HEAD of health", steps: []string{"HEAD /livez HTTP/1.1\r\n" + admin + "\r\n", "<head>"}, stock: "200 open"},
		{name: "OPTIONS *", steps: []string{"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", readResponse}, stock: "200 open"},
		{name: "OPTIONS", steps: []string{"OPTIONS /api/v1/namespaces HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "405 open"},
		{name: "GET *", steps: []string{"GET * HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "404 open", ours: "400 closed"},

		{name: "no host", steps: []string{"GET /version HTTP/1.1\r\n\r\n", readResponse}, stock: "400 closed"},
		{name: "empty host", steps: []string{"GET /version HTTP/1.1\r\nHost:\r\nAuthorization: Bearer admintoken\r\n\r\n", readResponse}, stock: "200 open", ours: "400 closed"},
		{name: "two hosts", steps: []string{getRequest("/version", "Host: g\r\n"), readResponse}, stock: "400 closed"},
		{name: "bad host", steps: []string{"GET /version HTTP/1.1\r\nHost: a b\r\nAuthorization: Bearer admintoken\r\n\r\n", readResponse}, stock: "400 closed"},
		{name: "absolute target", steps: []string{getRequest("https://other/version", ""), readResponse}, stock: "200 open"},
		{name: "absolute target without path", steps: []string{getRequest("https://other", ""), readResponse}, stock: "404 open"},
		{name: "two tokens", steps: []string{getRequest("/version", "Authorization: Bearer other\r\n"), readResponse}, stock: "200 open", ours: "400 closed"},
		{name: "two types", steps: []string{create(body+"Content-Type: text/plain\r\n", aMap), readResponse}, stock: "201 open", ours: "400 closed"},
		{name: "two accepts", steps: []string{getRequest("/api", "Accept: application/json\r\nAccept: text/html\r\n"), readResponse}, stock: "200 open"},
		{name: "folded line", steps: []string{getRequest("/version", "A: b\r\n c\r\n"), readResponse}, stock: "200 open", ours: "400 closed"},
		{name: "space before the colon", steps: []string{getRequest("/version", "A : b\r\n"), readResponse}, stock: "400 closed"},
		{name: "no colon", steps: []string{getRequest("/version", "A\r\n"), readResponse}, stock: "400 closed"},
		{name: "empty name", steps: []string{getRequest("/version", ": b\r\n"), readResponse}, stock: "400 closed"},
		{name: "NUL in a value", steps: []string{getRequest("/version", "A: b\x00c\r\n"), readResponse}, stock: "400 closed"},
		{name: "control in a value", steps: []string{getRequest("/version", "A: b\x01c\r\n"), readResponse}, stock: "400 closed"},
		{name: "CR in a value", steps: []string{getRequest("/version", "A: b\rc\r\n"), readResponse}, stock: "400 closed"},
		{name: "bytes in a value", steps: []string{getRequest("/version", "A: \xff\xfe\r\n"), readResponse}, stock: "200 open"},
		{name: "a thousand lines", steps: []string{getRequest("/version", strings.Repeat("A: b\r\n", 1000)), readResponse}, stock: "200 open"},
		{name: "many lines", steps: []string{getRequest("/version", strings.Repeat("A: b\r\n", 50_000)), readResponse}, stock: "200 open"},
		{name: "a long line", steps: []string{getRequest("/version", "A: "+strings.Repeat("b", 900<<10)+"\r\n"), readResponse}, stock: "200 open"},
		{name: "too long a line", steps: []string{getRequest("/version", "A: "+strings.Repeat("b", 1100<<10)+"\r\n"), readResponse}, stock: "431 closed"},
		{name: "a long target", steps: []string{getRequest("/version?a="+strings.Repeat("b", 100<<10), ""), readResponse}, stock: "200 open"},
		{name: "lines without CR", steps: []string{"GET /version HTTP/1.1\nHost: h\nAuthorization: Bearer admintoken\n\n", readResponse}, stock: "200 open", ours: "400 closed"},
		{name: "an empty line first", steps: []string{"\r\n" + version, readResponse}, stock: "400 closed", ours: "200 open"},
		{name: "an empty line after a body", steps: []string{create(body, aMap) + "\r\n", readResponse, version, readResponse}, stock: "201 200 open"},

		{name: "HTTP/1.0", steps: []string{"GET /version HTTP/1.0\r\nAuthorization: Bearer admintoken\r\n\r\n", readResponse}, stock: "200 closed"},
		{name: "HTTP/1.0 kept alive", steps: []string{"GET /version HTTP/1.0\r\nConnection: keep-alive\r\nAuthorization: Bearer admintoken\r\n\r\n", readResponse}, stock: "200 open"},
		{name: "HTTP/1.0 with a body", steps: []string{"POST " + dryMaps + " HTTP/1.0\r\n" + admin + jsonType + body + "\r\n" + aMap, readResponse}, stock: "201 closed"},
		{name: "HTTP/1.0 in chunks", steps: []string{"POST " + dryMaps + " HTTP/1.0\r\n" + admin + jsonType + chunked + "\r\n" + chunk + "0\r\n\r\n", readResponse}, stock: "400 closed"},
		{name: "HTTP/1.2", steps: []string{"GET /version HTTP/1.2\r\n" + admin + "\r\n", readResponse}, stock: "200 open", ours: "505 closed"},
		{name: "HTTP/2.0", steps: []string{"GET /version HTTP/2.0\r\n" + admin + "\r\n", readResponse}, stock: "505 closed"},
		{name: "HTTP/2 preface", steps: []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", readResponse}, stock: "403 closed", ours: "400 closed"},
		{name: "HTTP/0.9", steps: []string{"GET /version\r\n", readResponse}, stock: "400 closed"},
		{name: "http/1.1", steps: []string{"GET /version http/1.1\r\n" + admin + "\r\n", readResponse}, stock: "400 closed"},
		{name: "no version", steps: []string{"GET /version \r\n", readResponse}, stock: "400 closed"},
		{name: "two spaces", steps: []string{"GET  /version HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "400 closed"},
		{name: "space in the target", steps: []string{"GET /ver sion HTTP/1.1\r\n" + admin + "\r\n", readResponse}, stock: "400 closed"},
		{name: "garbage", steps: []string{"\x16\x03\x01\x02\x00\r\n", readResponse}, stock: "400 closed"},

		{name: "NUL in the target", steps: []string{getRequest("/ver\x00sion", ""), readResponse}, stock: "400 closed"},
		{name: "%00", steps: []string{getRequest("/api/v1/namespaces/a%00b", ""), readResponse}, stock: "404 open"},
		{name: "bad escape", steps: []string{getRequest("/version%zz", ""), readResponse}, stock: "400 closed"},
		{name: "%2F", steps: []string{getRequest("/api/v1%2Fnamespaces", ""), readResponse}, stock: "200 open"},
		{name: "%2F in a name", steps: []string{getRequest("/api/v1/namespaces/a%2Fb", ""), readResponse}, stock: "404 open"},
		{name: "%2e%2e", steps: []string{getRequest("/api/v1/%2e%2e/v1/namespaces", ""), readResponse}, stock: "404 open"},
		{name: "..", steps: []string{getRequest("/api/../version", ""), readResponse}, stock: "404 open"},
		{name: "//", steps: []string{getRequest("//version", ""), readResponse}, stock: "404 open"},
		{name: "backslash", steps: []string{getRequest("/api\\v1", ""), readResponse}, stock: "404 open"},
		{name: "fragment", steps: []string{getRequest("/version#a", ""), readResponse}, stock: "404 open"},
		{name: "bytes in the target", steps: []string{getRequest("/version\xff", ""), readResponse}, stock: "404 open"},
		{name: "semicolon in the query", steps: []string{getRequest("/api/v1/namespaces?limit=1;resourceVersion=0", ""), readResponse}, stock: "200 open"},
		{name: "bad escape in the query", steps: []string{getRequest("/api/v1/namespaces?labelSelector=%zz&limit=1", ""), readResponse}, stock: "200 open"},
		{name: "question marks", steps: []string{getRequest("/api/v1/namespaces??limit=x", ""), readResponse}, stock: "200 open"},
		{name: "trailing slash", steps: []string{getRequest("/api/v1/namespaces/", ""), readResponse}, stock: "200 open"},

		{name: "chunks", steps: []string{create(chunked, chunk+"0\r\n\r\n"), readResponse}, stock: "201 open"},
		{name: "odd case of chunked", steps: []string{create("Transfer-Encoding: Chunked\r\n", chunk+"0\r\n\r\n"), readResponse}, stock: "201 open"},
		{name: "chunk extension", steps: []string{create(chunked, strings.Replace(chunk, "\r\n", ";a=\"b\"\r\n", 1)+"0;c\r\n\r\n"), readResponse}, stock: "201 open"},
		{name: "trailer", steps: []string{create(chunked+"Trailer: A\r\n", chunk+"0\r\nA: b\r\n\r\n") + version, readResponse, readResponse}, stock: "201 200 open"},
		{name: "trailer that was not announced", steps: []string{create(chunked, chunk+"0\r\nA: b\r\n\r\n") + version, readResponse, readResponse}, stock: "201 200 open"},
		{name: "bad trailer", steps: []string{create(chunked, chunk+"0\r\nA\r\n\r\n"), readResponse}, stock: "500 closed"},
		{name: "long trailer", steps: []string{create(chunked, chunk+"0\r\nA: "+strings.Repeat("b", 8<<10)+"\r\n\r\n"), readResponse}, stock: "500 closed"},
		{name: "bad chunk size", steps: []string{create(chunked, "zz\r\n"), readResponse}, stock: "500 closed"},
		{name: "negative chunk size", steps: []string{create(chunked, "-1\r\n"), readResponse}, stock: "500 closed"},
		{name: "huge chunk size", steps: []string{create(chunked, "10000000000000000\r\n"), readResponse}, stock: "500 closed"},
		{name: "chunk size without CR", steps: []string{create(chunked, strings.Replace(chunk, "\r\n", "\n", 1)+"0\r\n\r\n"), readResponse}, stock: "500 closed"},
		{name: "longer chunk than its size", steps: []string{create(chunked, "1\r\nabc\r\n0\r\n\r\n"), readResponse}, stock: "500 closed"},
		{name: "bad chunk that no handler reads", steps: []string{getRequest("/version", chunked) + "zz\r\n", readResponse}, stock: "200 closed"},
		{name: "length and chunks", steps: []string{create(body+chunked, chunk+"0\r\n\r\n"), readResponse}, stock: "201 open", ours: "201 closed"},
		{name: "chunks twice", steps: []string{create(chunked+chunked, chunk+"0\r\n\r\n"), readResponse}, stock: "501 closed", ours: "400 closed"},
		{name: "another coding", steps: []string{create("Transfer-Encoding: gzip, chunked\r\n", chunk+"0\r\n\r\n"), readResponse}, stock: "501 closed", ours: "400 closed"},
		{name: "identity", steps: []string{create("Transfer-Encoding: identity\r\n"+body, aMap), readResponse}, stock: "501 closed", ours: "400 closed"},
		{name: "two equal lengths", steps: []string{create(body+body, aMap), readResponse}, stock: "201 open", ours: "400 closed"},
		{name: "two lengths", steps: []string{create(body+"Content-Length: 3\r\n", aMap), readResponse}, stock: "400 closed"},
		{name: "list of lengths", steps: []string{create("Content-Length: 28, 28\r\n", aMap), readResponse}, stock: "400 closed"},
		{name: "signed length", steps: []string{create("Content-Length: +28\r\n", aMap), readResponse}, stock: "400 closed"},
		{name: "huge length", steps: []string{create("Content-Length: 92233720368547758080\r\n", aMap), readResponse}, stock: "400 closed"},
		{name: "no length", steps: []string{create("", ""), readResponse}, stock: "400 open"},

		{name: "a body that ends early", steps: []string{create("Content-Length: 100\r\n", aMap), closeWrite, readResponse}, stock: "nothing closed", ours: "500 closed"},
		{name: "chunks that end early", steps: []string{create(chunked, chunk), closeWrite, readResponse}, stock: "504 closed", ours: "500 closed"},
		{name: "a header that ends early", steps: []string{"GET /version HTTP/1.1\r\nHost: h\r\n", closeWrite, readResponse}, stock: "400 closed"},
		{name: "too large a body", steps: []string{create("Content-Length: 3145729\r\n", strings.Repeat(" ", 3<<20+1)), readResponse}, stock: "413 open", ours: "413 closed"},
		{name: "far too large a body", steps: []string{create("Content-Length: 4194304\r\n", strings.Repeat(" ", 4<<20)), readResponse}, stock: "413 closed"},
		{name: "too many chunks", steps: []string{create(chunked, strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 64)+"0\r\n\r\n"), readResponse}, stock: "413 closed"},
		{name: "no token, with a small body", steps: []string{"POST /version HTTP/1.1\r\nHost: h\r\n" + body + "\r\n" + aMap, readResponse}, stock: "403 open"},
		{name: "no token, with a large body", steps: []string{"POST /version HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n", readResponse}, stock: "403 closed"},
		{name: "a bad token with a large body", steps: []string{"POST /version HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\nContent-Length: 3000000\r\n\r\n", readResponse}, stock: "401 closed"},
		{name: "a large body that no handler reads", steps: []string{getRequest("/version", "Content-Length: 262144\r\n"), readResponse}, stock: "200 closed"},
		{name: "many chunks that no handler reads", steps: []string{getRequest("/version", chunked) + strings.Repeat("10000\r\n"+strings.Repeat(" ", 1<<16)+"\r\n", 5) + "0\r\n\r\n", readResponse}, stock: "200 closed"},
		{name: "the wrong type with a body", steps: []string{strings.Replace(create(body, aMap), "application/json", "text/plain", 1), readResponse}, stock: "415 open"},

		{name: "continue", steps: []string{create(body+"Expect: 100-continue\r\n", ""), readResponse, aMap, readResponse}, stock: "100 201 open"},
		{name: "continue in chunks", steps: []string{create(chunked+"Expect: 100-Continue\r\n", ""), readResponse, chunk + "0\r\n\r\n", readResponse}, stock: "100 201 open"},
		{name: "continue at once", steps: []string{create(body+"Expect: 100-continue\r\n", aMap), readResponse, readResponse}, stock: "100 201 open"},
		{name: "continue without a body", steps: []string{create("Content-Length: 0\r\nExpect: 100-continue\r\n", ""), readResponse}, stock: "400 open"},
		{name: "continue that the client does not wait for", steps: []string{getRequest("/version", body+"Expect: 100-continue\r\n"), readResponse}, stock: "200 closed"},
		{name: "continue without a token", steps: []string{"POST /api HTTP/1.1\r\nHost: h\r\n" + body + "Expect: 100-continue\r\n\r\n", readResponse}, stock: "403 closed"},
		{name: "continue with the wrong type", steps: []string{strings.Replace(create(body+"Expect: 100-continue\r\n", ""), "application/json", "text/plain", 1), readResponse}, stock: "415 closed"},
		{name: "continue and nothing", steps: []string{create(body+"Expect: 100-continue\r\n", ""), readResponse, closeWrite, readResponse}, stock: "100 504 closed", ours: "100 500 closed"},
		{name: "continue in HTTP/1.0", steps: []string{"POST " + dryMaps + " HTTP/1.0\r\n" + admin + jsonType + body + "Expect: 100-continue\r\n\r\n" + aMap, readResponse}, stock: "201 closed"},
		{name: "another expectation", steps: []string{getRequest("/version", "Expect: 200-ok\r\n"), readResponse}, stock: "417 closed"},

		{name: "upgrade to nothing", steps: []string{getRequest("/version", "Connection: Upgrade\r\nUpgrade: websocket\r\n"), readResponse}, stock: "200 open"},
		{name: "upgrade with a body", steps: []string{create("Connection: Upgrade\r\nUpgrade: websocket\r\n"+body, aMap), readResponse}, stock: "201 open"},
		{name: "upgrade to HTTP/2", steps: []string{getRequest("/version", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"), readResponse}, stock: "200 open"},
		{name: "range", steps: []string{getRequest("/version", "Range: bytes=0-1\r\n"), readResponse}, stock: "200 open"},
		{name: "a watch with a body", steps: []string{getRequest("/api/v1/namespaces?watch=1&timeoutSeconds=1", body) + aMap, readResponse}, stock: "200 open", ours: "200 closed"},
	}
}

// TestMalformedRequestsMatchKubeAPIServer checks that each conversation ends as with kube-apiserver, unless the case
// names another end.
func TestMalformedRequestsMatchKubeAPIServer(t *testing.T) {
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
			if got := converse(t, address, c.steps); got != want {
				t.Errorf("got %q, want %q", got, want)
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
func converse(t *testing.T, address string, steps []string) string {
	t.Helper()
	c := proctest.DialTLS(t, address, &tls.Config{InsecureSkipVerify: true})
	defer c.Close()
	in := bufio.NewReader(c)
	var outcome []string
	for _, step := range steps {
		switch step {
		case readResponse, "<head>":
			outcome = append(outcome, readStatus(in, step))
		case closeWrite:
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		default:
			// A server that refuses need not read on.
			_, _ = io.WriteString(c, step)
		}
	}
	probe := "GET /version HTTP/1.1\r\n" + admin + "\r\n"
	fate := "closed"
	if _, err := io.WriteString(c, probe); err == nil {
		switch status := readStatus(in, readResponse); status {
		case "200":
			fate = "open"
		case "nothing":
		default:
			fate = status
		}
	}
	return strings.Join(append(outcome, fate), " ")
}

// readStatus reads one response.
func readStatus(in *bufio.Reader, how string) string {
	req := &http.Request{Method: http.MethodGet}
	if how != readResponse {
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
