package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"pgregory.net/rapid"

	"github.com/larder-io/larder/httpapi/http1"
	"github.com/larder-io/larder/httpapi/routes"
	"github.com/larder-io/larder/internal/proctest"
)

// dripConn is a client that sends its script byte by byte.
type dripConn struct{ scriptConn }

func (c *dripConn) Read(p []byte) (int, error) { return c.scriptConn.Read(p[:min(1, len(p))]) }

// TestDrippingHeader checks that a header that arrives byte by byte costs as much as any other. It takes minutes if
// each byte causes a new scan.
func TestDrippingHeader(t *testing.T) {
	s := newIdleServer(t, Config{}, map[string]http.HandlerFunc{"/x": echo})
	long := strings.Repeat("a", 1<<20-100)
	for _, script := range []string{
		"GET /x HTTP/1.1\r\nHost: h\r\nA: " + long + "\r\n\r\n",
		"GET /x?" + long + " HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /x HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("A: b\r\n", len(long)/6-1) + "\r\n",
	} {
		c := &dripConn{scriptConn{in: bytes.NewReader([]byte(script))}}
		s.http1.Session(c).Serve()
		if !strings.HasPrefix(c.out.String(), "HTTP/1.1 200 OK") {
			t.Errorf("%.60q: got %.60q, want 200", script, c.out.String())
		}
	}
}

// BenchmarkDrippingHeader measures a header of 64 KiB that comes byte by byte.
func BenchmarkDrippingHeader(b *testing.B) {
	s := newIdleServer(b, Config{}, nil)
	script := []byte("GET /x?" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\nHost: h\r\n\r\n")
	for b.Loop() {
		s.http1.Session(&dripConn{scriptConn{in: bytes.NewReader(script)}}).Serve()
	}
}

// TestRefusalsPrecedeTheBody checks that a client without rights is refused before it has sent a
// body, and that no memory is allocated for the body.
func TestRefusalsPrecedeTheBody(t *testing.T) {
	f := newTestServer(t, Config{Access: Access{Authenticator: authenticator.RequestFunc(wireUser), Authorizer: authorizer.AuthorizerFunc(wireMay)}}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(echo))
	})
	for _, c := range []struct{ header, status string }{
		{"", "403"},
		{"Authorization: Bearer x\r\n", "401"},
		{"Impersonate-User: root\r\n", "403"},
	} {
		for _, frame := range []string{"Content-Length: 3000000\r\n", "Content-Length: 1\r\nExpect: 100-continue\r\n", "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"} {
			conn := f.dial(t)
			fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: h\r\n%s%s\r\n", c.header, frame)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%q: %v", c.header+frame, err)
			}
			if got := fmt.Sprint(resp.StatusCode); got != c.status || !resp.Close {
				t.Errorf("%q: %s, close %t, want %s", c.header+frame, got, resp.Close, c.status)
			}
			conn.Close()
		}
	}
}

// discarded is how much of an unread body the server reads.
const discarded = 256 << 10

// TestBodiesArrive checks that a handler reads the whole body, regardless of framing and splits. The next request is
// found whether or not the body was read.
func TestBodiesArrive(t *testing.T) {
	sum := func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%x %v", sha256.Sum256(body), err)
	}
	leave := func(http.ResponseWriter, *http.Request) {}
	s := newIdleServer(t, Config{Connections: Connections{Limits: http1.Limits{MaxBodyBytes: 300 << 10}}},
		map[string]http.HandlerFunc{"/read": sum, "/leave": leave})
	rapid.Check(t, func(t *rapid.T) {
		var script bytes.Buffer
		var want []string
		for range rapid.IntRange(1, 3).Draw(t, "requests") {
			body := make([]byte, rapid.SampledFrom([]int{0, 1, 100, 4096, 5000, 100_000, discarded, 300 << 10}).Draw(t, "size"))
			rand.Read(body)
			path := rapid.SampledFrom([]string{"/read", "/leave"}).Draw(t, "path")
			frame(t, &script, path, body)
			if path == "/leave" {
				want = append(want, "")
				if len(body) >= discarded {
					break // the connection ends
				}
				continue
			}
			want = append(want, fmt.Sprintf("%x <nil>", sha256.Sum256(body)))
		}
		c := &scriptConn{in: bytes.NewReader(script.Bytes())}
		s.http1.Session(c).Serve()
		in := bufio.NewReader(&c.out)
		for i, text := range want {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, _ := io.ReadAll(resp.Body)
			if string(got) != text {
				t.Fatalf("response %d: got status %d and body %q, want body %q", i, resp.StatusCode, got, text)
			}
		}
		if rest, _ := io.ReadAll(in); len(rest) > 0 {
			t.Fatalf("got %.100q after the last response", rest)
		}
	})
}

// frame appends a request.
func frame(t *rapid.T, script *bytes.Buffer, path string, body []byte) {
	fmt.Fprintf(script, "POST %s HTTP/1.1\r\nHost: h\r\n", path)
	if rapid.Bool().Draw(t, "sized") {
		fmt.Fprintf(script, "Content-Length: %d\r\n\r\n", len(body))
		script.Write(body)
		return
	}
	script.WriteString("Transfer-Encoding: chunked\r\n\r\n")
	for len(body) > 0 {
		n := min(len(body), rapid.SampledFrom([]int{1000, 4094, 4096, 1 << 16, 1 << 20}).Draw(t, "chunk"))
		fmt.Fprintf(script, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	script.WriteString("0\r\n" + rapid.SampledFrom([]string{"", "A: b\r\n"}).Draw(t, "trailer") + "\r\n")
}

// TestStreamsReadBodies checks that a handler with its own connection reads a body without a limit, and the bytes
// after it if it takes the connection over.
func TestStreamsReadBodies(t *testing.T) {
	f := newTestServer(t, Config{Connections: Connections{Limits: http1.Limits{MaxBodyBytes: 100}}}, func(routes *routes.Table) {
		routes.Handle("/debug/pprof/sum", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			n, err := io.Copy(io.Discard, req.Body)
			fmt.Fprint(w, n, " ", err)
		}))
	})
	body := strings.Repeat("b", 5<<20)
	for name, request := range map[string]string{
		"sized":    fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"chunked":  fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
		"continue": fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
	} {
		conn := f.dial(t)
		in := bufio.NewReader(conn)
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(conn, "POST /debug/pprof/sum HTTP/1.1\r\nHost: h\r\n"+request)
			sent <- err
		}()
		resp, err := http.ReadResponse(in, nil)
		if name == "continue" && err == nil {
			if resp.StatusCode != http.StatusContinue {
				t.Errorf("%s: got status %d, want 100", name, resp.StatusCode)
			}
			resp, err = http.ReadResponse(in, nil)
		}
		if err != nil {
			t.Fatalf("%s: reading the response: %v", name, err)
		}
		got, _ := io.ReadAll(resp.Body)
		if want := fmt.Sprint(len(body), " <nil>"); string(got) != want {
			t.Errorf("%s: the handler read %q, want %q", name, got, want)
		}
		if err := <-sent; err != nil {
			t.Errorf("%s: sending the body: %v", name, err)
		}
	}
}

// TestPanicsBeforeHandlersGet500 checks that a panic before the handler gets status 500, too, and http.ErrAbortHandler
// ends the connection.
func TestPanicsBeforeHandlersGet500(t *testing.T) {
	f := newTestServer(t, Config{Access: Access{Authenticator: authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if req.Header.Get("Abort") != "" {
			panic(http.ErrAbortHandler)
		}
		panic("boom")
	})}}, func(*routes.Table) {})
	if out := f.raw(t, "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"); !strings.HasPrefix(out, "HTTP/1.1 500 ") {
		t.Errorf("got %q, want status 500", out)
	}
	if out := f.raw(t, "GET /x HTTP/1.1\r\nHost: h\r\nAbort: 1\r\n\r\n"); out != "" {
		t.Errorf("got %q after http.ErrAbortHandler, want no response", out)
	}
}

// TestLateBodies checks that a handler waits for a body until the deadline, but not for a body that it will not read.
func TestLateBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the handler waits before the deadline comes
		ended := make(chan error, 1)
		read := func(_ http.ResponseWriter, req *http.Request) {
			_, err := io.ReadAll(req.Body)
			ended <- err
		}
		s := newIdleServer(t, Config{Timeouts: Timeouts{RequestTimeout: time.Hour}}, map[string]http.HandlerFunc{"/x": read})
		client, server := net.Pipe()
		var all sync.WaitGroup
		all.Go(s.http1.Session(server).Serve)
		all.Go(func() {
			_, _ = io.WriteString(client, "POST /x?timeout=50ms HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n012")
		})
		start := time.Now()
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil || resp.StatusCode != http.StatusGatewayTimeout || !resp.Close {
			t.Errorf("got %v and error %v, want status 504 and the end of the connection", resp, err)
		}
		if took := time.Since(start); took != 50*time.Millisecond {
			t.Errorf("got the response after %v, want 50ms", took)
		}
		if err := <-ended; !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("the handler read: %v", err)
		}
		client.Close()
		all.Wait()
		s.handlers.Wait()
	})
}

// TestRefusedRequestsHoldNoSeat checks that a refused request whose body has not arrived does not delay others.
func TestRefusedRequestsHoldNoSeat(t *testing.T) {
	authorizing := make(chan struct{}, 1)
	f := newTestServer(t, Config{Concurrency: Concurrency{MaxMutatingInFlight: 1}, Access: Access{Authenticator: authenticator.RequestFunc(wireUser), Authorizer: authorizer.AuthorizerFunc(
		func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			select {
			case authorizing <- struct{}{}:
			default:
			}
			return authorizer.DecisionNoOpinion, "", nil
		})}}, func(*routes.Table) {})
	slow := f.dial(t)
	io.WriteString(slow, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
	<-authorizing
	quick := f.dial(t)
	in := bufio.NewReader(quick)
	for end := time.Now().Add(proctest.Patience); ; { // the other is about to release its seat
		io.WriteString(quick, "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode == http.StatusForbidden {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got status %d, want 403", resp.StatusCode)
		}
	}
	io.WriteString(slow, "01234")
	if resp, err := http.ReadResponse(bufio.NewReader(slow), nil); err != nil || resp.StatusCode != http.StatusForbidden || resp.Close {
		t.Errorf("got %v and error %v, want status 403 on an open connection", resp, err)
	}
}

// TestOversizedBodiesGet413 checks that a client that is still sending a body beyond the limit reads the response
// 413.
func TestOversizedBodiesGet413(t *testing.T) {
	_, server := newLarder(t)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	url := "https://" + server.config.Listener.Addr().String() + maps_
	for _, size := range []int{3<<20 + 1, 4 << 20, 16 << 20} {
		for name, body := range map[string]io.Reader{
			"sized":   strings.NewReader(strings.Repeat(" ", size)),
			"chunked": io.MultiReader(strings.NewReader(strings.Repeat(" ", size))),
		} {
			resp, err := client.Post(url, "application/json", body)
			if err != nil {
				t.Errorf("%d bytes, %s: %v", size, name, err)
				continue
			}
			data, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Errorf("%d bytes, %s: %v", size, name, err)
				continue
			}
			var status metav1.Status
			decode(t, data, &status)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || status.Reason != metav1.StatusReasonRequestEntityTooLarge ||
				status.Message != "Request entity too large: limit is 3145728" {
				t.Errorf("%d bytes, %s: got status %d and %s, want upstream's 413", size, name, resp.StatusCode, data)
			}
		}
	}
}
