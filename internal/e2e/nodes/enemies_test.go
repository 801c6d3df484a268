package nodes

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/larder-io/larder/internal/proctest"
)

// ways returns every request that reaches a kubelet or a pod, for the node "node" and the pod "pod".
func ways(port int) []question {
	const pod, node = "/api/v1/namespaces/default/pods/pod/", "/api/v1/nodes/node/proxy/"
	return []question{
		{line: "GET " + pod + "log"},
		{line: "GET " + pod + "log?follow=true"},
		{line: "POST " + pod + "exec?command=true&stdout=1", lines: spdyUpgrade},
		{line: "GET " + pod + "exec?command=true&stdout=1", lines: webSocket + "v4.channel.k8s.io"},
		{line: "GET " + pod + "exec?command=true&stdout=1&stdin=1", lines: webSocket + "v5.channel.k8s.io"},
		{line: "POST " + pod + "portforward", lines: portUpgrade},
		{line: "GET " + pod + "portforward?ports=80", lines: webSocket + "v4.channel.k8s.io"},
		{line: "GET " + pod + "portforward", lines: webSocket + "SPDY/3.1+portforward.k8s.io"},
		{line: "GET " + node + "stats/summary"},
		{line: "GET " + node + "websocket", lines: webSocket + "a"},
		{line: fmt.Sprintf("GET /api/v1/namespaces/default/pods/https:pod:%d/proxy/x", port)},
		{line: fmt.Sprintf("GET /api/v1/namespaces/default/pods/https:pod:%d/proxy/x", port), lines: webSocket + "a"},
	}
}

// enemy makes s the kubelet of node, and the server in pod.
func (c *cluster) enemy(t *testing.T, s *script, config *tls.Config) {
	t.Helper()
	address := needOutward(t)
	s.serve(t, config)
	c.node(t, "node", address, s.port)
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "pod", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err == nil {
		proctest.Eventually(t, "the pod is deleted", func() error {
			_, err := c.client.CoreV1().Pods("default").Get(t.Context(), "pod", metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("it still exists")
			}
			return nil
		})
	}
	c.pod(t, "pod", "node", func(p *corev1.Pod) {
		p.Status.PodIP, p.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	}, "c")
}

// open sends a request over a new connection.
func (c *cluster) open(t *testing.T, q question) net.Conn {
	t.Helper()
	conn := proctest.DialTLS(t, fmt.Sprintf("127.0.0.1:%d", c.port), &tls.Config{InsecureSkipVerify: true})
	fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", q.line, admin, strings.ReplaceAll(q.lines, "|", "\r\n"))
	return conn
}

// TestStalledKubeletsCostLittle checks that kubelets and pods that stop responding at any point do not affect other
// requests. Once the client has disconnected, they cost the server nothing.
func TestStalledKubeletsCostLittle(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	serving := &tls.Config{Certificates: []tls.Certificate{c.serving(t)}}
	for name, stalled := range map[string]struct {
		says   string
		deaf   bool
		config *tls.Config
	}{
		"before TLS":       {"", true, nil},
		"before responses": {"", false, serving},
		"within heads":     {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SP", false, serving},
		"after heads":      {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", false, serving},
		"within errors":    {"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000\r\n\r\nno", false, serving},
		"within bodies":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", false, serving},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{deaf: stalled.deaf, hold: true, says: stalled.says}
			c.enemy(t, s, stalled.config)
			before := c.goroutines(t)
			for _, q := range ways(s.port) {
				before := s.count()
				conn := c.open(t, q)
				proctest.Eventually(t, q.String()+" arrives", func() error {
					if s.count() == before {
						return fmt.Errorf("no")
					}
					return nil
				})
				if _, err := c.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node").DoRaw(t.Context()); err != nil {
					t.Error(err)
				}
				conn.Close()
			}
			proctest.Eventually(t, "the kubelet has no connections", func() error { return none(s.open()) })
			c.restores(t, before)
		})
	}
}

// TestEndlessHeadersAreGivenUp checks that the server stops reading an endless header before it takes much memory.
func TestEndlessHeadersAreGivenUp(t *testing.T) {
	t.Parallel()
	// The peak of the resident memory is 330 to 410 MiB, which includes the garbage of all these responses. A response
	// that was read without a limit would take gigabytes.
	const most = 640 << 20
	c := newCluster(t)
	serving := &tls.Config{Certificates: []tls.Certificate{c.serving(t)}}
	line := "X-Line: " + strings.Repeat("x", 1000) + "\r\n"
	for name, says := range map[string][2]string{
		"heads":        {"HTTP/1.1 101 Switching Protocols\r\n", strings.Repeat(line, 100)},
		"lines":        {"HTTP/1.1 101 Switching Protocols\r\nX-Line: ", strings.Repeat("x", 100_000)},
		"status lines": {"HTTP/1.1 200 ", strings.Repeat("x", 100_000)},
		"hints":        {"", "HTTP/1.1 103 Early Hints\r\n" + strings.Repeat(line, 20) + "\r\n"},
		"errors":       {"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n", "10000\r\n" + strings.Repeat("x", 0x10000) + "\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{first: says[0], says: says[1], repeat: true}
			c.enemy(t, s, serving)
			for _, q := range ways(s.port) {
				if name == "errors" && !strings.Contains(q.lines, "v5.") || name == "hints" && q.lines == "" && !strings.Contains(q.line, "/log") {
					continue // forwarded as it arrives, until the client stops
				}
				conn := c.open(t, q)
				_, err := io.Copy(io.Discard, conn)
				if os.IsTimeout(err) {
					t.Errorf("the response to %s does not end", q)
				}
				conn.Close()
				if peak := c.memory(t, "VmHWM"); peak > most {
					t.Fatalf("%s took %d MiB", q, peak>>20)
				}
			}
			proctest.Eventually(t, "the kubelet has no connections", func() error { return none(s.open()) })
		})
	}
}

// memory returns a field of /proc/PID/status of the server.
func (s *server) memory(t *testing.T, field string) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	for text := range strings.Lines(string(raw)) {
		if rest, is := strings.CutPrefix(text, field+":"); is {
			fmt.Sscan(rest, &kib)
		}
	}
	return kib << 10
}

// TestRedirectsAreNotFollowed checks that the server does not follow a backend's redirect: the client receives the
// redirect, or an error.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	elsewhere := &script{says: "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"}
	elsewhere.serve(t, &tls.Config{Certificates: []tls.Certificate{c.serving(t)}})
	for _, code := range []string{"301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"} {
		s := &script{says: fmt.Sprintf("HTTP/1.1 %s\r\nLocation: https://%s:%d/\r\nContent-Length: 0\r\n\r\n", code, needOutward(t), elsewhere.port)}
		c.enemy(t, s, &tls.Config{Certificates: []tls.Certificate{c.serving(t)}})
		for _, q := range ways(s.port) {
			conn := c.open(t, q)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Errorf("%s: error %v", q, err)
				continue
			}
			if resp.StatusCode == http.StatusOK {
				t.Errorf("%s: %s", q, resp.Status)
			}
			conn.Close()
		}
	}
	if n := elsewhere.count(); n > 0 {
		t.Errorf("the server followed redirects %d times", n)
	}
}
