package relay

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// TestRequestsGoThrough checks that the upstream gets the parsed request: method, path, query, headers and body.
func TestRequestsGoThrough(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, req.Body)
	})
	config := u.config()
	config.Host += "/base"
	s := serve(t, config)
	long := strings.Repeat("0123456789abcdef", maxRepeated/8) // is not read before it is passed on
	for _, h2 := range []bool{false, true} {
		tr := newTransport(t, s.tlsFor(t, ""), h2)
		for _, c := range []struct{ method, target, uri, body string }{
			{"GET", "/api/v1/pods?labelSelector=a=b,c&x", "/base/api/v1/pods?labelSelector=a%3Db%2Cc&x=", ""},
			{"GET", "/api/v1//namespaces/a%2Fb/../pods%3F?b=2&a=1;c&a=%zz&a=3", "/base/api/v1//namespaces/a/b/../pods%3F?b=2&a=3", ""},
			{"GET", "/api/v1/namespaces/n/services/s/proxy/x?q=a+b&p=%41", "/base/api/v1/namespaces/n/services/s/proxy/x?q=a+b&p=%41", ""},
			{"POST", "/api/v1/namespaces/n/pods?dryRun=All", "/base/api/v1/namespaces/n/pods?dryRun=All", `{"kind":"Pod"}`},
			{"PUT", "/apis/apps/v1/namespaces/n/deployments/d", "/base/apis/apps/v1/namespaces/n/deployments/d", long},
			{"PATCH", "/api/v1/namespaces/n/pods/p", "/base/api/v1/namespaces/n/pods/p", "[]"},
			{"DELETE", "/api/v1/namespaces/n/pods/p", "/base/api/v1/namespaces/n/pods/p", ""},
			{"FOO", "/x", "/base/x", ""},
		} {
			req, err := http.NewRequest(c.method, "https://"+s.addr+c.target, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"Content-Type": {"x/y"}, "Accept": {"a", "b"}, "Audit-Id": {"an-id"}, "User-Agent": {"kubectl"}, "Traceparent": {"x"}}
			resp := send(t, tr, req)
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusCreated || string(body) != c.body {
				t.Fatalf("%s %s: %d, %d bytes, %v", c.method, c.target, resp.StatusCode, len(body), err)
			}
			got := <-u.received
			if got.method != c.method || got.uri != c.uri || got.proto != "HTTP/2.0" {
				t.Errorf("%s %s reached the upstream as %s %s %s", c.method, c.target, got.method, got.uri, got.proto)
			}
			for name, values := range req.Header {
				if strings.Join(got.header[name], "|") != strings.Join(values, "|") {
					t.Errorf("%s: %q, want %q", name, got.header[name], values)
				}
			}
			if got.header["Accept-Encoding"] != nil {
				t.Errorf("the relay asks for compression: %q", got.header["Accept-Encoding"])
			}
		}
		req, _ := http.NewRequest("POST", "https://"+s.addr+"/x", io.MultiReader(strings.NewReader("of unknown "), strings.NewReader("length")))
		resp := send(t, tr, req)
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "of unknown length" {
			t.Errorf("body %q, error %v; want the request's", body, err)
		}
		resp.Body.Close()
		<-u.received
	}
}

// TestResponsesGoThrough checks that the client gets the upstream's status, headers, warnings and trailers, each once.
func TestResponsesGoThrough(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h["Warning"] = []string{"299 - a", "299 - b"}
		h.Set("Audit-Id", "upstreams")
		h.Set("Cache-Control", "no-cache, private")
		switch req.URL.Path {
		case "/moved":
			http.Redirect(w, req, "https://elsewhere/", http.StatusFound)
		case "/gone":
			w.WriteHeader(http.StatusGone)
		case "/zipped":
			h.Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("\x1f\x8b no gzip"))
		case "/api/v1/namespaces/n/pods/p/proxy/": // may run for long
			h.Set("Trailer", "Grpc-Status")
			_, _ = w.Write([]byte("body"))
			h.Set("Grpc-Status", "7")
		default:
			_, _ = w.Write(make([]byte, 5<<20))
		}
	})
	s := serve(t, u.config())
	for _, h2 := range []bool{false, true} {
		tr := newTransport(t, s.tlsFor(t, ""), h2)
		for path, code := range map[string]int{"/moved": 302, "/gone": 410, "/zipped": 200, "/api/v1/namespaces/n/pods/p/proxy/": 200, "/large": 200} {
			req, _ := http.NewRequest("GET", "https://"+s.addr+path, nil)
			resp := send(t, tr, req)
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			h := resp.Header
			if err != nil || resp.StatusCode != code || strings.Join(h["Warning"], "|") != "299 - a|299 - b" || strings.Join(h["Audit-Id"], "|") != "upstreams" || len(h["Cache-Control"]) != 1 {
				t.Errorf("%s: status %d, header %v, error %v; want %d and the upstream's header", path, resp.StatusCode, h, err, code)
			}
			switch {
			case path == "/moved" && h.Get("Location") != "https://elsewhere/", path == "/zipped" && (string(body) != "\x1f\x8b no gzip" || h.Get("Content-Encoding") != "gzip"),
				path == "/large" && len(body) != 5<<20, strings.HasSuffix(path, "/proxy/") && (resp.Trailer.Get("Grpc-Status") != "7" || string(body) != "body"):
				t.Errorf("%s: header %v, trailer %v, body %.20q; want the upstream's", path, h, resp.Trailer, body)
			}
		}
	}
}

// TestFlushedResponsesAreSentAtOnce checks that a completed response of unknown length is sent with its length, and
// that a longer one begins before its end.
func TestFlushedResponsesAreSentAtOnce(t *testing.T) {
	goOn := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "part.")
			_ = http.NewResponseController(w).Flush()
		}
		if req.URL.Path == "/slow" {
			<-goOn
			_, _ = io.WriteString(w, "end.")
		}
	})
	s := serve(t, u.config())
	tr := newTransport(t, s.tlsFor(t, ""), false)
	begun := func(path string) *http.Response {
		req, _ := http.NewRequest("GET", "https://"+s.addr+path, nil)
		return send(t, tr, req)
	}
	resp := begun("/quick")
	for tries := 1; resp.ContentLength < 0; tries++ { // the upstream was slow
		if resp.Body.Close(); tries == 50 {
			t.Fatal("each of 50 responses was sent without its length")
		}
		resp = begun("/quick")
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "part.part.part." {
		t.Errorf("body %q, error %v; want the three parts", body, err)
	}
	resp.Body.Close()
	resp = begun("/slow")
	close(goOn)
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "part.part.part.end." {
		t.Errorf("body %q, error %v; want the three parts and the end", body, err)
	}
	resp.Body.Close()
}

// TestWatchesStream checks that events arrive when they are sent, and that the client can tell a premature end from a
// complete response.
func TestWatchesStream(t *testing.T) {
	next := make(chan string)
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		for event := range next {
			if event == "cut" {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		}
	})
	s := serve(t, u.config())
	for _, h2 := range []bool{false, true} {
		req, _ := http.NewRequest("GET", "https://"+s.addr+"/api/v1/pods?watch=1", nil)
		go func() { next <- "first" }()
		resp := send(t, newTransport(t, s.tlsFor(t, "bob"), h2), req)
		var event [8]byte
		for _, text := range []string{"first", "second"} {
			if _, err := io.ReadFull(resp.Body, event[:len(text)]); err != nil || string(event[:len(text)]) != text {
				t.Fatalf("event %q, error %v; want %q", event, err, text)
			}
			if text == "first" {
				next <- "second"
			}
		}
		next <- "cut"
		if rest, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("a watch that was cut ends without an error after %q", rest)
		}
		resp.Body.Close()
	}
	close(next)
}

// TestUpgrades checks that an upgraded connection carries bytes both ways, with the credential of the request.
func TestUpgrades(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Has("refuse") {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Stream-Protocol-Version: v4\r\n\r\nhello\n", req.Header.Get("Upgrade"))
		_ = rw.Flush()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString("you said " + line)
			_ = rw.Flush()
		}
	})
	s := serve(t, u.config())
	for name, want := range map[string]string{"": "Bearer " + annsToken, "bob": "Bearer " + relaysToken} {
		for protocol, method := range map[string]string{"SPDY/3.1": "POST", "websocket": "GET"} {
			c, in := s.upgrade(t, name, method, "/api/v1/namespaces/n/pods/p/exec?command=sh", protocol)
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != protocol || resp.Header.Get("X-Stream-Protocol-Version") != "v4" {
				t.Fatalf("upgrade to %s: response %v, error %v; want 101", protocol, resp, err)
			}
			for _, text := range []string{"hello\n", "you said one\n", "you said two\n"} {
				if line, err := in.ReadString('\n'); err != nil || line != text {
					t.Fatalf("line %q, error %v; want %q", line, err, text)
				}
				if said, ok := map[string]string{"hello\n": "one\n", "you said one\n": "two\n"}[text]; ok {
					_, _ = io.WriteString(c, said)
				}
			}
			c.Close()
			if got := <-u.received; got.header.Get("Authorization") != want || got.proto != "HTTP/1.1" || (got.header.Get("Impersonate-User") == "bob") != (name == "bob") {
				t.Errorf("user %q: the upstream got %v, want the credential %q", name, got, want)
			}
		}
		_, in := s.upgrade(t, name, "POST", "/api/v1/namespaces/n/pods/p/exec?refuse", "SPDY/3.1")
		if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("refused upgrade: response %v, error %v; want 403", resp, err)
		}
		<-u.received
	}
	// Over another protocol, requests without impersonation could follow.
	for _, protocol := range []string{"h2c", "TLS/1.0", "websocket, h2c"} {
		_, in := s.upgrade(t, "bob", "GET", "/api/v1/namespaces/n/pods/p/exec", protocol)
		if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusBadRequest || len(u.received) > 0 {
			t.Errorf("upgrade to %s: response %v, error %v; want 400, and nothing sent", protocol, resp, err)
		}
	}
}

// upgrade requests an upgrade, as bob with his certificate or as ann with her token. It returns the connection.
func (s *server) upgrade(t *testing.T, name, method, target, protocol string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	c := s.dial(t, s.tlsFor(t, name))
	token := "Authorization: Bearer " + annsToken + "\r\n"
	if name != "" {
		token = ""
	}
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%sContent-Length: 0\r\n\r\n", method, target, protocol, token)
	return c, bufio.NewReader(c)
}

func (s *server) dial(t *testing.T, config *tls.Config) *tls.Conn {
	t.Helper()
	return proctest.DialTLS(t, s.addr, config)
}

// TestUnreachableUpstream checks that if the upstream cannot be reached, the client gets a Status that tells it to retry,
// unless the upstream may have executed a write.
func TestUnreachableUpstream(t *testing.T) {
	u := newUpstream(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	down := newUpstream(t, nil)
	down.Close()
	for _, c := range []struct {
		u      *upstream
		method string
		after  string
	}{{down, "GET", "1"}, {down, "POST", "1"}, {u, "GET", "1"}, {u, "POST", ""}, {u, "DELETE", ""}} {
		s := serve(t, c.u.config())
		for _, path := range []string{"/api/v1/namespaces/n/pods", "/api/v1/namespaces/n/pods/p/proxy/"} { // short and long-running
			req, _ := http.NewRequest(c.method, "https://"+s.addr+path, bytes.NewReader([]byte("{}")))
			resp := send(t, newTransport(t, s.tlsFor(t, ""), true), req)
			var status metav1.Status
			err := json.NewDecoder(resp.Body).Decode(&status)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != c.after || resp.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s %s: status %d, header %v, error %v; want 503 with Retry-After %q", c.method, path, resp.StatusCode, resp.Header, err, c.after)
			}
			if status.Kind != "Status" || status.APIVersion != "v1" || status.Status != "Failure" || status.Reason != metav1.StatusReasonServiceUnavailable || status.Code != 503 || (status.Details != nil) != (c.after != "") {
				t.Errorf("%s %s: got %+v, want a Status that says ServiceUnavailable", c.method, path, status)
			}
		}
	}
}

// TestUpstreamRefusesTheRelay checks that a client with a valid certificate gets 503 if the upstream refuses the
// relay's credential. A 401 of a webhook, a kubelet or a pod reaches the client.
func TestUpstreamRefusesTheRelay(t *testing.T) {
	const own = "the relay's own credential"
	var accepted atomic.Bool
	u := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/version" || !accepted.Load() {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
		}
	})
	s := serve(t, u.config())
	for _, accept := range []bool{false, true} {
		accepted.Store(accept)
		for _, c := range []struct{ name, method, path string }{
			{"bob", "GET", "/api/v1/namespaces/n/pods"}, {"bob", "POST", "/api/v1/namespaces/n/pods"}, {"bob", "GET", "/api/v1/pods?watch=1"},
			{"bob", "GET", "/api/v1/namespaces/n/pods/p/proxy/"}, {"", "GET", "/api/v1/namespaces/n/pods"},
		} {
			want, code := own, http.StatusServiceUnavailable
			if c.name == "" || accept {
				want, code = "unauthorized", http.StatusUnauthorized
			}
			req, _ := http.NewRequest(c.method, "https://"+s.addr+c.path, nil)
			resp := send(t, newTransport(t, s.tlsFor(t, c.name), true), req)
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != code || !strings.Contains(string(text), want) || want == own != (resp.Header.Get("Retry-After") == "1") {
				t.Errorf("%q, accepted %v: %s %s: %d, %v, %s, %v", c.name, accept, c.method, c.path, resp.StatusCode, resp.Header, text, err)
			}
		}
		_, in := s.upgrade(t, "bob", "POST", "/api/v1/namespaces/n/pods/p/exec", "SPDY/3.1")
		if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode == http.StatusServiceUnavailable == accept {
			t.Errorf("accepted %v: %v, %v", accept, resp, err)
		}
	}
}

// neverResponds is an upstream that waits until the request ends.
type neverResponds struct{}

func (neverResponds) RoundTrip(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// TestRefusedEndsInTime checks that the 401 of a watch reaches the client although the upstream does not report its
// version.
func TestRefusedEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := &Proxy{upstream: new(url.URL), relay: proxyTransport{plain: neverResponds{}}}, time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if p.refused(ctx) || time.Since(began) != contactInterval {
			t.Errorf("returned after %v, want false after %v", time.Since(began), contactInterval)
		}
	})
}

// TestRequestsThatDoNotGoThrough checks that tunnels, and methods that return the request's headers, are refused.
func TestRequestsThatDoNotGoThrough(t *testing.T) {
	u := newUpstream(t, nil)
	s := serve(t, u.config())
	for request, code := range map[string]int{
		"TRACE /api/v1/pods HTTP/1.1\r\nHost: h\r\n\r\n":                           405,
		"CONNECT /api/v1/pods HTTP/1.1\r\nHost: h\r\n\r\n":                         405,
		"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n":                            405,
		"GET /api/v1/pods HTTP/1.1\r\nHost: h\r\nA: b\x01c\r\n\r\n":                400,
		"GET /api/v1/pods HTTP/1.1\r\nHost: h\r\nX-Remote-User\t: a\r\n\r\n":       400,
		"GET /api/v1/pods HTTP/1.1\r\nHost: h\r\nImpersonate-U\u017fer: a\r\n\r\n": 400,
		"GET /api/v1/pods HTTP/1.1\r\nHost: h\r\nA: b\r\n Authorization\r\n\r\n":   400,
	} {
		for _, name := range []string{"", "bob"} {
			c := s.dial(t, s.tlsFor(t, name))
			_, _ = io.WriteString(c, request)
			if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != code || len(u.received) > 0 {
				t.Errorf("%q: response %v, error %v; want %d, and nothing sent", request, resp, err, code)
			}
		}
	}
}

// TestDeadlines checks that a request beyond its deadline gets the same response as one to this server.
func TestDeadlines(t *testing.T) {
	u := newUpstream(t, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	s := serve(t, u.config())
	for _, method := range []string{"GET", "HEAD"} { // no other request uses the connection of HEAD
		req, _ := http.NewRequest(method, "https://"+s.addr+"/api/v1/pods?timeout=20ms", nil)
		resp := send(t, newTransport(t, s.tlsFor(t, ""), false), req)
		resp.Body.Close()
		if resp.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("%s: got %d, want 504", method, resp.StatusCode)
		}
	}
}

// TestConfigsThatAreRefused checks that a credential that cannot be kept apart is an error.
func TestConfigsThatAreRefused(t *testing.T) {
	for want, config := range map[string]*rest.Config{
		"its own transport":   {Host: "https://h", WrapTransport: func(rt http.RoundTripper) http.RoundTripper { return rt }},
		"impersonates a user": {Host: "https://h", Impersonate: rest.ImpersonationConfig{UserName: "root"}},
		"missing":             {Host: "https://h", TLSClientConfig: rest.TLSClientConfig{CAFile: "missing"}},
		"host must be":        {Host: "https://h:x"},
	} {
		if _, err := NewProxy(ProxyConfig{Upstream: config}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
