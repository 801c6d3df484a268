package httpapi

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// kubelet is a fake kubelet that serves logs, exec and stats of one container.
type kubelet struct {
	*httptest.Server
	more chan struct{} // the log continues when this is closed
}

func newKubelet(t testing.TB) *kubelet {
	k := &kubelet{more: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/default/p/c", func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s\n", req.URL.RawQuery)
		w.(http.Flusher).Flush()
		<-k.more
		io.WriteString(w, "end\n")
	})
	mux.HandleFunc("/exec/default/p/c", func(w http.ResponseWriter, req *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		line, err := rw.ReadString('\n')
		if err == nil {
			io.WriteString(conn, req.URL.RawQuery+" "+line)
		}
	})
	mux.HandleFunc("/stats/x", func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprintf(w, "%s %s", req.Method, req.URL.RequestURI())
	})
	k.Server = httptest.NewTLSServer(mux)
	t.Cleanup(k.Close)
	return k
}

// placePod creates a pod on a node whose kubelet is k.
func (k *kubelet) placePod(t testing.TB, s *side) {
	t.Helper()
	host, port, err := net.SplitHostPort(k.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.must(t, post("/api/v1/namespaces", `{"metadata":{"name":"default"}}`))
	s.must(t, post("/api/v1/nodes", `{"metadata":{"name":"n"}}`))
	s.must(t, patch("merge-patch+json", "/api/v1/nodes/n/status", fmt.Sprintf(
		`{"status":{"addresses":[{"type":"InternalIP","address":%q}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, host, port)))
	s.must(t, post(defaultNS+"pods", `{"metadata":{"name":"p"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`))
}

func TestLogsAreHeardWhileTheyAreWritten(t *testing.T) {
	s, _ := newLarder(t)
	k := newKubelet(t)
	k.placePod(t, s)
	req, err := http.NewRequest("GET", "http://larder.test"+defaultNS+"pods/p/log?follow=true&tailLines=7", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp := s.do(req)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/plain" {
		t.Errorf("got Content-Type %q, want text/plain", got)
	}
	in := bufio.NewReader(resp.Body)
	if line, err := in.ReadString('\n'); line != "follow=true&tailLines=7\n" {
		t.Errorf("got first line %q and error %v", line, err)
	}
	close(k.more)
	if rest, err := io.ReadAll(in); string(rest) != "end\n" || err != nil {
		t.Errorf("got the rest %q and error %v", rest, err)
	}
}

// TestExecProxiesTheConnection checks that exec passes the kubelet's response on and proxies bytes both ways.
func TestExecProxiesTheConnection(t *testing.T) {
	s, server := newLarder(t)
	k := newKubelet(t)
	k.placePod(t, s)
	conn := proctest.DialTLS(t, server.config.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	fmt.Fprintf(conn, "POST %spods/p/exec?command=ls&stdout=true HTTP/1.1\r\nHost: larder.test\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n", defaultNS)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "SPDY/3.1" {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("got %s with header %v and body %s, want 101 with Upgrade SPDY/3.1", resp.Status, resp.Header, body)
	}
	fmt.Fprint(conn, "hello\n")
	line, err := in.ReadString('\n')
	if !strings.Contains(line, "command=ls") || !strings.HasSuffix(line, " hello\n") {
		t.Errorf("got %q and error %v, want the query and hello", line, err)
	}
}
