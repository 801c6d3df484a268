package nethttp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/proxy"

	"github.com/larder-io/larder/httpapi/exchange"
)

// TestLengthsOfAnswersToHead checks that a handler may tell the length of a body that it does not send.
func TestLengthsOfAnswersToHead(t *testing.T) {
	s := serve(t, map[string]http.HandlerFunc{
		"/told":   func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "7") },
		"/silent": func(http.ResponseWriter, *http.Request) {},
	})
	for path, want := range map[string]string{"/told": "7", "/silent": ""} {
		req, _ := http.NewRequest(http.MethodHead, "https://"+s.addr+path, nil)
		resp := s.send(t, req)
		resp.Body.Close()
		if got := resp.Header.Get("Content-Length"); got != want {
			t.Errorf("%s: length %q, want %q", path, got, want)
		}
	}
	req, _ := http.NewRequest(http.MethodGet, "https://"+s.addr+"/told", nil)
	resp := s.send(t, req)
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the response to a GET is whole without its body")
	}
}

func TestAnswersOfHandlers(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), (MaxBuffered+1<<20)/16)
	s := serve(t, map[string]http.HandlerFunc{
		"/silent":  func(http.ResponseWriter, *http.Request) {},
		"/sniffed": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"/none":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"/headers": func(w http.ResponseWriter, req *http.Request) {
			w.Header().Add("Warning", "299 - a")
			w.Header().Add("Warning", "299 - b")
			w.Header().Set("Content-Type", "x/y")
			w.WriteHeader(http.StatusTeapot)
			w.Header().Set("Late", "1")
			io.WriteString(w, req.Header.Get("A")+req.Header.Get("Authorization")+req.Header.Get("Host")+req.Host)
		},
		"/big": func(w http.ResponseWriter, _ *http.Request) {
			for rest := big; len(rest) > 0; rest = rest[1<<16:] {
				w.Write(rest[:1<<16])
			}
		},
		"/debug/pprof/sized": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			io.WriteString(w, "four")
		},
		"/debug/pprof/small": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "small") },
		"/debug/pprof/big":   func(w http.ResponseWriter, _ *http.Request) { w.Write(big) },
	})
	for _, test := range []struct {
		path   string
		code   int
		length int64
		body   string
	}{
		{"/silent", 200, 0, ""},
		{"/sniffed", 200, 6, "<html>"},
		{"/none", 204, 0, ""},
		{"/headers", 418, -2, "valueh"},
		{"/big", 200, -1, string(big)},
		{"/debug/pprof/sized", 200, 4, "four"},
		{"/debug/pprof/small", 200, 5, "small"},
		{"/debug/pprof/big", 200, -1, string(big)},
	} {
		req, _ := http.NewRequest("GET", "https://"+s.addr+test.path, nil)
		req.Header.Set("A", "value")
		req.Header.Set("Authorization", "secret")
		req.Host = "h"
		resp := s.send(t, req)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != test.code || string(body) != test.body {
			t.Errorf("%s: %d, %d bytes, %v", test.path, resp.StatusCode, len(body), err)
		}
		if test.length != -2 && resp.ContentLength != test.length {
			t.Errorf("%s: length %d, want %d", test.path, resp.ContentLength, test.length)
		}
		if test.path == "/headers" && (len(resp.Header["Warning"]) != 2 || resp.Header.Get("Late") != "" || resp.Header.Get("Content-Type") != "x/y") {
			t.Errorf("%s: header %v", test.path, resp.Header)
		}
		if resp.Header.Get("Cache-Control") != "no-cache, private" {
			t.Errorf("%s: header %v", test.path, resp.Header)
		}
	}
}

// TestBodilessAnswersHaveNoBody checks that what a handler writes behind a status without a body is not sent, where the
// client would take it for the next response.
func TestBodilessAnswersHaveNoBody(t *testing.T) {
	by := make(map[string]http.HandlerFunc)
	for path, code := range map[string]int{"/204": http.StatusNoContent, "/304": http.StatusNotModified} {
		by[path] = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			io.WriteString(w, "body")
		}
	}
	s := serve(t, by)
	conn := s.dial(t)
	in := bufio.NewReader(conn)
	for path := range by {
		for range 2 {
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path)
			if resp := read(t, in); "/"+fmt.Sprint(resp.StatusCode) != path {
				t.Errorf("GET %s: got %v, want that status", path, resp)
			}
		}
	}
}

// TestForwardedRequestsKeepTheirAuditID checks that upstream's proxies send the audit ID of a request that is not
// audited.
func TestForwardedRequestsKeepTheirAuditID(t *testing.T) {
	sent := make(chan string, 1)
	s := serve(t, map[string]http.HandlerFunc{"/x": func(_ http.ResponseWriter, req *http.Request) {
		onward, cancel := proxy.NewRequestForProxy(req.URL, req)
		defer cancel()
		sent <- strings.Join(onward.Header["Audit-Id"], "|")
	}})
	for _, method := range []string{http.MethodGet, http.MethodHead} { // with a response that is buffered, and that is not
		req, _ := http.NewRequest(method, "https://"+s.addr+"/forwarded/x", nil)
		req.Header.Set("Audit-Id", "of the client")
		s.send(t, req).Body.Close()
		if got := <-sent; got != "audit-id" {
			t.Errorf("%s: got audit ID %q, want audit-id", method, got)
		}
	}
}

// TestHandlersMayOutliveTheirRequest checks that a request does not change under a handler that continues after its
// deadline.
func TestHandlersMayOutliveTheirRequest(t *testing.T) {
	type seen struct{ before, after string }
	saw := make(chan seen, 1)
	resume := make(chan struct{})
	s := serve(t, map[string]http.HandlerFunc{
		"/slow": func(w http.ResponseWriter, req *http.Request) {
			describe := func() string {
				info, _ := apirequest.RequestInfoFrom(req.Context())
				return fmt.Sprint(req.Method, req.URL, req.Header["Secret"], req.Host, req.RemoteAddr, info.Path)
			}
			before := describe()
			var first [1]byte
			if req.URL.Query().Has("reads") {
				io.ReadFull(req.Body, first[:])
			}
			<-req.Context().Done()
			<-resume
			_, err := w.Write([]byte("late"))
			body, bodyErr := io.ReadAll(req.Body)
			if first[0] != 0 {
				body = append(first[:], body...)
			} else if bodyErr == nil {
				t.Error("a body was read after its request")
			} else {
				body = []byte("tenant-a")
			}
			saw <- seen{before + "tenant-a", describe() + string(body)}
			if err == nil {
				t.Error("a write after the deadline went somewhere")
			}
		},
		"/x": func(w http.ResponseWriter, req *http.Request) { io.Copy(w, req.Body) },
	})
	for _, query := range []string{"", "&reads"} {
		conn := s.dial(t)
		in := bufio.NewReader(conn)
		fmt.Fprintf(conn, "POST /slow?timeout=100ms%s HTTP/1.1\r\nHost: h\r\nSecret: a\r\nContent-Length: 8\r\n\r\ntenant-a", query)
		if resp := read(t, in); resp.StatusCode != http.StatusGatewayTimeout {
			t.Fatal(resp)
		}
		for range 20 {
			fmt.Fprintf(conn, "POST /x?y=zzzzzzzzz HTTP/1.1\r\nHost: z\r\nSecret: b\r\nContent-Length: 8\r\n\r\ntenant-b")
			if resp := read(t, in); resp.StatusCode != http.StatusOK {
				t.Fatal(resp)
			}
		}
		resume <- struct{}{}
		if was := <-saw; was.before != was.after {
			t.Errorf("the request changed:\n%s\n%s", was.before, was.after)
		}
	}
}

// TestErrorsAtTheDeadlineAreTimeouts checks that a handler that fails when its deadline has passed is handled as
// one that has not ended, and that other responses stay.
func TestErrorsAtTheDeadlineAreTimeouts(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	<-late.Done()
	ended := make(chan struct{})
	close(ended)
	for ctx, want := range map[context.Context]map[int]int{
		t.Context(): {0: 200, 201: 201, 404: 404, 500: 500, 503: 503, 504: 504},
		late:        {0: 504, 201: 201, 404: 404, 500: 504, 503: 504, 504: 504},
	} {
		for status, want := range want {
			x := new(Call)
			new(Handlers).Init(x, carrier{}, time.Now(), t.Context())
			if err := x.Parse(http.MethodGet, "/x"); err != nil {
				t.Fatal(err)
			}
			w := &buffered{done: ended, Recorder: *NewRecorder()}
			if status != 0 {
				w.WriteHeader(status)
				io.WriteString(w, "of the handler")
			}
			x.respond(ctx, w)
			if timedOut := ctx == late && want == 504; x.StatusCode() != want || strings.Contains(string(x.Bytes), "allotted timeout") != timedOut {
				t.Errorf("a handler that returns %d, deadline passed: %t: got %d %s", status, ctx == late, x.StatusCode(), x.Bytes)
			}
		}
	}
}

// carrier is a request without header and body.
type carrier struct{ exchange.Carrier }

func (carrier) Fields() []exchange.Field         { return nil }
func (carrier) Host() []byte                     { return nil }
func (carrier) Peek(string) []byte               { return nil }
func (carrier) Lines() iter.Seq2[[]byte, []byte] { return func(func(_, _ []byte) bool) {} }
func (carrier) BodyLength() int64                { return 0 }
func (carrier) RemoteAddr() net.Addr             { return new(net.TCPAddr) }
func (carrier) TLS() *tls.ConnectionState        { return nil }
func (carrier) Major() int                       { return 1 }
func (carrier) OnEnd(func())                     {}

func TestStreamsAreHeardAtOnce(t *testing.T) {
	next, gone := make(chan struct{}), make(chan struct{})
	s := serve(t, map[string]http.HandlerFunc{
		"/debug/pprof/follow": func(w http.ResponseWriter, req *http.Request) {
			io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			<-next
			io.WriteString(w, "second")
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			close(gone)
		},
	})
	req, _ := http.NewRequest("GET", "https://"+s.addr+"/debug/pprof/follow", nil)
	resp := s.send(t, req)
	var buf [16]byte
	if n, err := io.ReadFull(resp.Body, buf[:5]); err != nil || string(buf[:n]) != "first" {
		t.Fatalf("read %q, error %v; want first", buf[:n], err)
	}
	close(next)
	if n, err := io.ReadFull(resp.Body, buf[:6]); err != nil || string(buf[:n]) != "second" {
		t.Fatalf("read %q, error %v; want second", buf[:n], err)
	}
	// The client leaves: the check for disconnected clients finds that, and the handler's context ends.
	resp.Body.Close()
	for {
		select {
		case <-gone:
			return
		case <-time.After(10 * time.Millisecond):
			s.streams.Probe()
		}
	}
}

func TestConnectionsAreTakenOver(t *testing.T) {
	s := serve(t, map[string]http.HandlerFunc{
		"/debug/pprof/upgrade": func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Upgrade", "echo")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			line, _ := rw.ReadString('\n')
			rw.WriteString("you said " + line)
			rw.Flush()
		},
	})
	c := s.dial(t)
	// The bytes after the header arrive with it, and must reach the handler.
	io.WriteString(c, "GET /debug/pprof/upgrade HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "echo" {
		t.Fatalf("response %v, error %v; want 101", resp, err)
	}
	if line, err := in.ReadString('\n'); line != "you said hello\n" {
		t.Errorf("read %q, error %v; want the echo of hello", line, err)
	}
}
