package httpapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/nethttp"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// running is a Server without a registry, behind TLS on loopback.
type running struct {
	*Server
	addr string
	pool *x509.CertPool
	stop func() error
}

// newTestServer serves the handlers that fill installs.
func newTestServer(t testing.TB, config Config, fill func(*routes.Table)) *running {
	t.Helper()
	return newTestServerWith(t, config, func(*http1.Config) {}, fill)
}

// newIdleServer returns a server with handlers by path. It does not run: tests serve connections by http1.Session.
func newIdleServer(t testing.TB, config Config, handlers map[string]http.HandlerFunc) *Server {
	s, table := newServer(config), routes.New()
	t.Cleanup(s.cancel)
	for path, h := range handlers {
		table.Handle(path, h)
	}
	s.table.Store(table)
	return s
}

// newTestServerWith is newTestServer with another configuration of the HTTP/1.1 server.
func newTestServerWith(t testing.TB, config Config, change func(*http1.Config), fill func(*routes.Table)) *running {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var pool *x509.CertPool
	config.Listener = l
	config.TLS, pool = testcert.Loopback(t)
	s := newServer(config)
	serving := s.http1Config()
	change(&serving)
	s.http1 = http1.New(serving)
	routes := routes.New()
	fill(routes)
	s.table.Store(routes)
	return runTestServer(t, s, l.Addr().String(), pool)
}

// runTestServer runs s until the test ends or stop is called.
func runTestServer(t testing.TB, s *Server, addr string, pool *x509.CertPool) *running {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	f := &running{Server: s, addr: addr, pool: pool}
	var stopped atomic.Bool
	f.stop = func() error {
		cancel()
		if stopped.Swap(true) {
			return nil
		}
		return <-ended
	}
	t.Cleanup(func() {
		if err := f.stop(); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return f
}

func (f *running) client(t testing.TB) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.pool}, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (f *running) dial(t testing.TB) *tls.Conn {
	t.Helper()
	return proctest.DialTLS(t, f.addr, &tls.Config{RootCAs: f.pool})
}

// raw sends bytes and returns all received bytes until the connection ends.
func (f *running) raw(t testing.TB, request string) string {
	t.Helper()
	c := f.dial(t)
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(c) // a reset ends it too
	return string(out)
}

func echo(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{Version: "v1"}, w, req)
		return
	}
	fmt.Fprintf(w, "%s %s %d", req.Method, req.URL.Path, len(body))
}

// TestDefaultLimitsMatchUpstream checks the limits of a server whose Config sets none.
func TestDefaultLimitsMatchUpstream(t *testing.T) {
	s := newServer(Config{})
	for name, ok := range map[string]bool{
		"bodies are bounded as upstream's":  s.config.MaxBodyBytes == 3<<20,
		"headers are bounded as upstream's": s.config.MaxHeaderBytes == 1<<20,
		"reading a body takes bounded time": s.http1Config().BodyTimeout == s.config.RequestTimeout && s.config.RequestTimeout == time.Minute,
		"connections are not bounded":       s.http1Config().MaxConns == 0 && s.http1Config().MaxConnsPerIP == 0,
	} {
		if !ok {
			t.Errorf("want: %s", name)
		}
	}
}

// TestRequestsAreReadOnce sends messages that two HTTP readers could read differently. No message may reach the
// handler twice, or its rest as another.
func TestRequestsAreReadOnce(t *testing.T) {
	var served atomic.Int64
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			served.Add(1)
			echo(w, req)
		}))
		routes.Handle("/smuggled", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("smuggled request served") }))
	})
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
	for _, c := range []struct {
		name, request string
		status        string // of the first response; "" if there may be none
		served        int64
	}{
		{"plain", "GET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "200", 1},
		{"pipelined", "GET /x HTTP/1.1\r\nHost: h\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "200", 2},
		{"http/1.0", "GET /x HTTP/1.0\r\n\r\n", "200", 1},
		{"no host", "GET /x HTTP/1.1\r\n\r\n", "400", 0},
		{"two hosts", "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", 0},
		{"two authorizations", "GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", "400", 0},
		{"two content types", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nContent-Type: c/d\r\nContent-Length: 0\r\n\r\n", "400", 0},
		{"space in a name", "GET /x HTTP/1.1\r\nHost: a\r\nX Remote-User: root\r\n\r\n", "400", 0},
		{"space after a name", "GET /x HTTP/1.1\r\nHost: a\r\nX-Remote-User : root\r\n\r\n", "400", 0},
		{"folded header", "GET /x HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n", "400", 0},
		{"empty name", "GET /x HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", "400", 0},
		{"two lengths", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 38\r\n\r\n" + smuggled, "400", 0},
		{"signed length", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n" + smuggled, "400", 0},
		{"huge length", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 21000000000000000000\r\n\r\n" + smuggled, "400", 0},
		{"length and chunks", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "200", 1},
		{"chunks twice", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "400", 0},
		{"odd coding", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled, "400", 0},
		{"chunks in 1.0", "POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "400", 0},
		{"broken chunk", "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + smuggled, "500", 1},
		{"multipart", "POST /x HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 9\r\nConnection: close\r\n\r\n--b--\r\n\r\n", "200", 1},
		{"bad version", "GET /x HTTP/3.7\r\nHost: a\r\n\r\n", "505", 0},
		{"no target", "GET  HTTP/1.1\r\nHost: a\r\n\r\n", "400", 0},
		{"relative target", "GET x HTTP/1.1\r\nHost: a\r\n\r\n", "400", 0},
		{"absolute target", "GET https://h/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200", 1},
		{"bad escape", "GET /x%zz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "400", 0},
		{"dots stay", "GET /a/../x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "404", 0},
		{"slashes stay", "GET //x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "404", 0},
		{"escapes are decoded once", "GET /%2578 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "404", 0},
		{"escaped path", "GET /%78 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "200", 1},
		{"garbage", "\x16\x03\x01\x00\r\n\r\n", "400", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := served.Load()
			out := f.raw(t, c.request)
			if got := served.Load() - before; got != c.served {
				t.Errorf("served %d times, want %d\n%s", got, c.served, out)
			}
			if !strings.HasPrefix(out, "HTTP/1.1 "+c.status) {
				t.Errorf("got response %.60q, want status %s", out, c.status)
			}
		})
	}
}

// TestSizeLimits checks the responses to a header and to a body that exceed their limits.
func TestSizeLimits(t *testing.T) {
	f := newTestServer(t, Config{}, func(routes *routes.Table) { routes.Handle("/x", http.HandlerFunc(echo)) })
	t.Run("header", func(t *testing.T) {
		out := f.raw(t, "GET /x HTTP/1.1\r\nHost: h\r\nA: "+strings.Repeat("a", 1<<20+8<<10)+"\r\n\r\n")
		if !strings.HasPrefix(out, "HTTP/1.1 431 ") {
			t.Errorf("got %.80q, want status 431", out)
		}
	})
	t.Run("body", func(t *testing.T) {
		c := f.client(t)
		for size, want := range map[int64]int{3 << 20: 200, 3<<20 + 1: 413} {
			resp, err := c.Post("https://"+f.addr+"/x", "application/json", io.LimitReader(zeros{}, size))
			if err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%d bytes: got status %d, want %d: %s", size, resp.StatusCode, want, body)
			}
			if want == 413 && !strings.Contains(string(body), `"message":"Request entity too large: limit is 3145728","reason":"RequestEntityTooLarge"`) {
				t.Errorf("got body %s, want upstream's Status of 413", body)
			}
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestHandlerPanicsEndOneRequest checks the response to a handler's panic, and that the server serves on.
func TestHandlerPanicsEndOneRequest(t *testing.T) {
	f := newTestServer(t, Config{Access: Access{HSTS: "max-age=1"}}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(echo))
		routes.Handle("/panic", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
		routes.Handle("/late", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Write(make([]byte, nethttp.MaxBuffered+1))
			panic("boom")
		}))
		routes.Handle("/abort", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		routes.Handle("/debug/pprof/stream", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") }))
	})
	c := f.client(t)
	for _, path := range []string{"/panic", "/debug/pprof/stream"} {
		resp, err := c.Get("https://" + f.addr + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 500 || string(body) != "This request caused apiserver to panic. Look in the logs for details.\n" || resp.Header.Get("Strict-Transport-Security") != "max-age=1" {
			t.Errorf("%s: got status %d, header %v and body %q, want upstream's 500", path, resp.StatusCode, resp.Header, body)
		}
	}
	if resp, err := c.Get("https://" + f.addr + "/abort"); err == nil {
		t.Errorf("/abort: got status %d, want a closed connection", resp.StatusCode)
	}
	resp, err := c.Get("https://" + f.addr + "/late")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("/late: got a complete body, want an error after a part of it")
	}
	resp.Body.Close()
	if resp, err = c.Get("https://" + f.addr + "/x"); err != nil || resp.StatusCode != 200 {
		t.Fatalf("after the panics: got %v and error %v, want status 200", resp, err)
	}
	resp.Body.Close()
}

// TestDeadlineOfHandlers checks the responses to requests whose handler does not return before the deadline, and to
// odd values of the parameter timeout.
func TestDeadlineOfHandlers(t *testing.T) {
	released := make(chan struct{})
	f := newTestServer(t, Config{Timeouts: Timeouts{RequestTimeout: time.Hour}}, func(routes *routes.Table) {
		routes.Handle("/slow", http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			<-req.Context().Done()
			close(released)
		}))
		routes.Handle("/responds", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { // as upstream's finisher may
			<-req.Context().Done()
			w.WriteHeader(http.StatusGatewayTimeout)
		}))
		routes.Handle("/x", http.HandlerFunc(echo))
	})
	c := f.client(t)
	const late = `{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}` + "\n"
	for _, test := range []struct {
		path, body string
		code       int
	}{
		{"/slow?timeout=20ms", late, 504},
		{"/responds?timeout=20ms", late, 504},
		{"/x?timeout=soon", `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"invalid timeout specified in the request URL - time: invalid duration \"soon\"","reason":"BadRequest","code":400}` + "\n", 400},
		{"/x?timeout=0s", "GET /x 0", 200},
	} {
		resp, err := c.Get("https://" + f.addr + test.path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != test.code || string(body) != test.body {
			t.Errorf("%s: got status %d: %s\nwant %d: %s", test.path, resp.StatusCode, body, test.code, test.body)
		}
		if kind := resp.Header.Get("Content-Type"); test.body == late && kind != "text/plain; charset=utf-8" {
			t.Errorf("%s: got Content-Type %q, want that of plain text", test.path, kind)
		}
	}
	<-released
}

// TestRefusalsOfTheChain checks the responses of authentication and authorization, and the header fields that every
// response has.
func TestRefusalsOfTheChain(t *testing.T) {
	who := func(req *http.Request) (*authenticator.Response, bool, error) {
		switch req.Header.Get("Authorization") {
		case "Bearer good":
			return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
		case "":
			return nil, false, nil
		}
		return nil, false, errors.New("bad token")
	}
	may := func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		switch {
		case a.GetUser().GetName() != "alice":
			return authorizer.DecisionNoOpinion, "", nil
		case a.GetPath() == "/broken":
			return authorizer.DecisionNoOpinion, "", errors.New("no <rules>")
		case a.GetPath() == "/x":
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionDeny, "because", nil
	}
	f := newTestServer(t, Config{Access: Access{Authenticator: authenticator.RequestFunc(who), Authorizer: authorizer.AuthorizerFunc(may)}}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			fmt.Fprintf(w, "%q %q", req.Header.Get("Authorization"), req.Header.Get("X-Remote-User"))
		}))
	})
	for _, test := range []struct {
		path, token, as string
		code            int
		body            string
	}{
		{"/x", "", "", 401, `"message":"Unauthorized","reason":"Unauthorized","code":401}`},
		{"/x", "bad", "", 401, `"reason":"Unauthorized"`},
		{"/x", "good", "", 200, `"" ""`},
		{"/y", "good", "", 403, `"message":"forbidden: User \"alice\" cannot get path \"/y\": because","reason":"Forbidden","details":{},"code":403}`},
		{"/api/v1/namespaces/n/pods/p/log", "good", "", 403, `"message":"pods \"p\" is forbidden: User \"alice\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"n\": because","reason":"Forbidden","details":{"name":"p","kind":"pods"},"code":403}`},
		{"/broken", "good", "", 500, "Internal Server Error: \"/broken\": no &lt;rules&gt;\n"},
		{"/x", "good", "root", 403, `cannot impersonate:user-info resource \"users\"`},
		{"/api/v1/watch", "good", "", 500, "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch\n"},
	} {
		req, _ := http.NewRequest("GET", "https://"+f.addr+test.path, nil)
		if test.token != "" {
			req.Header.Set("Authorization", "Bearer "+test.token)
		}
		if test.as != "" {
			req.Header.Set("Impersonate-User", test.as)
		}
		req.Header.Set("X-Remote-User", "root")
		req.Header.Set("Audit-Id", "the-id")
		resp, err := f.client(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != test.code || !strings.Contains(string(body), test.body) {
			t.Errorf("%s as %q: got status %d: %s\nwant %d: %s", test.path, test.token+test.as, resp.StatusCode, body, test.code, test.body)
		}
		cacheControl := "no-cache, private"
		if strings.HasSuffix(test.body, "from url, /api/v1/watch\n") {
			cacheControl = "" // upstream fails before it would set it
		}
		if resp.Header.Get("Cache-Control") != cacheControl || resp.Header.Get("Audit-Id") != "the-id" || resp.Header.Get("Date") == "" || resp.Header.Get("Server") != "" {
			t.Errorf("%s: got header %v, want Cache-Control %q, the Audit-Id of the request, a Date and no Server", test.path, resp.Header, cacheControl)
		}
	}
}

func TestUnknownPathsGet404(t *testing.T) {
	f := newTestServer(t, Config{}, func(routes *routes.Table) { routes.Handle("/x", http.HandlerFunc(echo)) })
	out := f.raw(t, "GET /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(out, "HTTP/1.1 404 ") || !strings.HasSuffix(out, "\r\n\r\n404 page not found\n") {
		t.Errorf("got %q, want upstream's 404", out)
	}
}

func TestShutdownCompletesRequests(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	f := newTestServer(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/slow", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-finish
			io.WriteString(w, "done")
		}))
	})
	c := f.dial(t)
	io.WriteString(c, "GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
	<-began
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	<-f.draining
	close(finish)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); string(body) != "done" {
		t.Errorf("got body %q, want done", body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	// Another process may have the port by now.
	if c, err := tls.DialWithDialer(&net.Dialer{Timeout: proctest.Patience}, "tcp", f.addr, &tls.Config{RootCAs: f.pool}); err == nil {
		c.Close()
		t.Error("a connection was accepted after shutdown")
	}
}

// TestConnectionsStayOpenUntilTheListenerCloses checks that no client has to open another connection within a second,
// and no stream ends, as long as the server accepts connections.
func TestConnectionsStayOpenUntilTheListenerCloses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closing, proceed := make(chan struct{}), make(chan struct{})
	config, pool := testcert.Loopback(t)
	s := newServer(Config{TLS: config, Listener: &lateListener{Listener: l, closing: closing, proceed: proceed}})
	routes := routes.New()
	const stream = "/debug/pprof/x"
	routes.Handle("/x", http.HandlerFunc(echo))
	routes.Handle(stream, http.HandlerFunc(echo))
	s.table.Store(routes)
	f := runTestServer(t, s, l.Addr().String(), pool)
	dialed, c := time.Now(), f.dial(t)
	in := bufio.NewReader(c)
	get := func() *http.Response {
		io.WriteString(c, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		return resp
	}
	get()
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	<-closing
	if get().Close && time.Since(dialed) < time.Second { // a connection older than a second ends
		t.Error("the response ends the connection before the listener is closed")
	}
	for _, path := range []string{"/x", stream} {
		if out := f.raw(t, "GET "+path+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(out, "HTTP/1.1 200 ") {
			t.Errorf("got %q for the last client of %s, want status 200", out, path)
		}
	}
	close(proceed)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// lateListener reports that it is about to close, and waits until it may.
type lateListener struct {
	net.Listener
	closing chan<- struct{}
	proceed <-chan struct{}
}

func (l *lateListener) Close() error {
	close(l.closing)
	<-l.proceed
	return l.Listener.Close()
}

func TestRunEndsIfItsContextHasEnded(t *testing.T) {
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		config, _ := testcert.Loopback(t)
		s := newServer(Config{Listener: l, TLS: config})
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := s.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
