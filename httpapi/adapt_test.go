package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/larder-io/larder/httpapi/routes"
)

func TestAnswersOfHandlers(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), (maxBuffered+1<<20)/16)
	f := newFront(t, Config{}, func(routes *routes.Table) {
		handle := func(path string, h http.HandlerFunc) { routes.Handle(path, h) }
		handle("/silent", func(http.ResponseWriter, *http.Request) {})
		handle("/sniffed", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") })
		handle("/none", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
		handle("/headers", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Add("Warning", "299 - a")
			w.Header().Add("Warning", "299 - b")
			w.Header().Set("Content-Type", "x/y")
			w.WriteHeader(http.StatusTeapot)
			w.Header().Set("Late", "1")
			io.WriteString(w, req.Header.Get("A")+req.Header.Get("Host")+req.Host)
		})
		handle("/big", func(w http.ResponseWriter, _ *http.Request) {
			for rest := big; len(rest) > 0; rest = rest[1<<16:] {
				w.Write(rest[:1<<16])
			}
		})
		handle("/debug/pprof/sized", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			io.WriteString(w, "four")
		})
		handle("/debug/pprof/small", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "small") })
		handle("/debug/pprof/big", func(w http.ResponseWriter, _ *http.Request) { w.Write(big) })
	})
	c := f.client(t)
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
		req, _ := http.NewRequest("GET", "https://"+f.addr+test.path, nil)
		req.Header.Set("A", "value")
		req.Host = "h"
		resp, err := c.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", test.path, err)
		}
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

// TestHandlersMayOutliveTheirRequest checks that nothing of a request changes
// under a handler that goes on after its deadline.
func TestHandlersMayOutliveTheirRequest(t *testing.T) {
	type seen struct{ before, after string }
	saw := make(chan seen, 1)
	resume := make(chan struct{})
	f := newFront(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/slow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
		}))
		routes.Handle("/x", http.HandlerFunc(echo))
	})
	for _, query := range []string{"", "&reads"} {
		conn := f.dial(t)
		in := bufio.NewReader(conn)
		fmt.Fprintf(conn, "POST /slow?timeout=100ms%s HTTP/1.1\r\nHost: h\r\nSecret: a\r\nContent-Length: 8\r\n\r\ntenant-a", query)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != 504 {
			t.Fatalf("%v %v", resp, err)
		}
		io.Copy(io.Discard, resp.Body)
		for range 20 {
			fmt.Fprintf(conn, "POST /x?y=zzzzzzzzz HTTP/1.1\r\nHost: z\r\nSecret: b\r\nContent-Length: 8\r\n\r\ntenant-b")
			if resp, err = http.ReadResponse(in, nil); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%v %v", resp, err)
			}
			io.Copy(io.Discard, resp.Body)
		}
		resume <- struct{}{}
		if s := <-saw; s.before != s.after {
			t.Errorf("the request changed:\n%s\n%s", s.before, s.after)
		}
	}
}

func TestStreamsAreHeardAtOnce(t *testing.T) {
	next, gone := make(chan struct{}), make(chan struct{})
	f := newFront(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/debug/pprof/follow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			<-next
			io.WriteString(w, "second")
			w.(http.Flusher).Flush()
			<-req.Context().Done()
			close(gone)
		}))
	})
	resp, err := f.client(t).Get("https://" + f.addr + "/debug/pprof/follow")
	if err != nil {
		t.Fatal(err)
	}
	var buf [16]byte
	if n, err := io.ReadFull(resp.Body, buf[:5]); err != nil || string(buf[:n]) != "first" {
		t.Fatalf("%q %v", buf[:n], err)
	}
	close(next)
	if n, err := io.ReadFull(resp.Body, buf[:6]); err != nil || string(buf[:n]) != "second" {
		t.Fatalf("%q %v", buf[:n], err)
	}
	// The client leaves: what looks for that finds out and the handler's context ends.
	resp.Body.Close()
	for {
		select {
		case <-gone:
			return
		case <-time.After(10 * time.Millisecond):
			f.streams.Probe()
		}
	}
}

func TestConnectionsAreTakenOver(t *testing.T) {
	f := newFront(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/debug/pprof/upgrade", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
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
		}))
	})
	c := f.dial(t)
	// What follows the head arrives with it: it must reach the handler.
	io.WriteString(c, "GET /debug/pprof/upgrade HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != "echo" {
		t.Fatalf("%v %v", resp, err)
	}
	if line, err := in.ReadString('\n'); line != "you said hello\n" {
		t.Errorf("%q %v", line, err)
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	began := make(chan struct{})
	f := newFront(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/debug/pprof/follow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.(http.Flusher).Flush()
			close(began)
			<-req.Context().Done()
		}))
	})
	c := f.dial(t)
	io.WriteString(c, "GET /debug/pprof/follow HTTP/1.1\r\nHost: h\r\n\r\n")
	<-began
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	if n := f.streams.Stats().Open; n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

func TestTransport(t *testing.T) {
	f := newFront(t, Config{}, func(routes *routes.Table) {
		routes.Handle("/x", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			u, _ := apirequest.UserFrom(req.Context())
			body, _ := io.ReadAll(req.Body)
			fmt.Fprintf(w, "%s %s", u.GetName(), body)
		}))
		routes.Handle("/debug/pprof/follow", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}))
	})
	c := &http.Client{Transport: f.RoundTripper()}
	for _, scheme := range []string{"http", "https"} {
		resp, err := c.Post(scheme+"://anywhere/x", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "system:apiserver hello" {
			t.Errorf("%s: %q", scheme, body)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://anywhere/debug/pprof/follow", nil)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var buf [5]byte
	if _, err := io.ReadFull(resp.Body, buf[:]); err != nil || string(buf[:]) != "first" {
		t.Errorf("%q %v", buf, err)
	}
	cancel()
}
