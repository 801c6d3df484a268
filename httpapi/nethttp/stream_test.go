package nethttp

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// TestStreamsAreFramed checks that the output of handlers with their own connection is framed as by net/http's
// server: responses without a body have no length, trailers follow the body, informational responses precede the
// response, and a client of HTTP/1.0 receives no chunks.
func TestStreamsAreFramed(t *testing.T) {
	by := map[string]http.HandlerFunc{
		"204": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"304": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"200": func(w http.ResponseWriter, _ *http.Request) {},
		"own length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			io.WriteString(w, "ab")
		},
		"written": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ab") },
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				io.WriteString(w, "ab")
				w.(http.Flusher).Flush()
			}
		},
		"trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Trailer", "X-Sum, x-count")
			io.WriteString(w, "ab")
			w.Header().Set("X-Sum", "195")
			w.Header().Set("X-Count", "2")
			w.Header().Set("X-Other", "1")
			w.Header().Set(http.TrailerPrefix+"x-late", "1")
		},
		"late trailers": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "ab")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Late", "1\r\nX-Smuggled: 1")
		},
		"hints": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</a>")
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusProcessing)
			w.Header().Del("Link")
			io.WriteString(w, "ab")
		},
	}
	ours := make(map[string]http.HandlerFunc)
	for name, h := range by {
		ours["/debug/pprof/"+strings.ReplaceAll(name, " ", "-")] = h
	}
	s := serve(t, ours)
	theirs := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Cache-Control", "no-cache, private") // as ours has it
		ours[req.URL.Path](w, req)
	}))
	theirs.StartTLS()
	defer theirs.Close()
	for path := range ours {
		for _, line := range []string{"GET %s HTTP/1.1", "HEAD %s HTTP/1.1", "GET %s HTTP/1.0"} {
			line = fmt.Sprintf(line, path)
			want := responses(t, dialed(t, theirs), line)
			if got := responses(t, s.dial(t), line); got != want {
				t.Errorf("%s\nnet/http:\n%s\nlarder:\n%s", line, want, got)
			}
		}
	}
}

// TestTruncatedProxyAnswersDoNotLookWhole checks that a response that a proxy could not copy to its end is seen as
// truncated.
func TestTruncatedProxyAnswersDoNotLookWhole(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer backend.Close()
	to, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy.Transport, proxy.FlushInterval = transport, -1
	s := serve(t, map[string]http.HandlerFunc{"/debug/pprof/proxied": proxy.ServeHTTP})
	if got := responses(t, s.dial(t), "GET /debug/pprof/proxied HTTP/1.1"); !strings.Contains(got, `"some" unexpected EOF`) {
		t.Error(got)
	}
}

func dialed(t *testing.T, s *httptest.Server) net.Conn {
	t.Helper()
	c, err := tls.Dial("tcp", s.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// responses sends a request and returns all responses to it, and how they are framed.
func responses(t *testing.T, c net.Conn, line string) string {
	t.Helper()
	defer c.Close()
	fmt.Fprintf(c, "%s\r\nHost: h\r\nConnection: close\r\n\r\n", line)
	in := bufio.NewReader(c)
	method, _, _ := strings.Cut(line, " ")
	var out strings.Builder
	for {
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			return out.String() + err.Error()
		}
		resp.Header.Del("Date")
		body, err := io.ReadAll(resp.Body)
		fmt.Fprintf(&out, "%s %v length=%d %v trailer=%v %q %v\n", resp.Status, resp.Header, resp.ContentLength, resp.TransferEncoding, resp.Trailer, body, err)
		if resp.StatusCode >= http.StatusOK {
			return out.String()
		}
	}
}
