package e2e_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// wiretap is a proxy between clients and a server that records the negotiated protocols. It offers the server what the
// client offers, and returns the server's choice to the client.
type wiretap struct {
	net.Listener
	server string

	mu      sync.Mutex
	records []string // guarded by mu: the protocol and the first line of each connection, and upgrades
}

// newWiretap listens until the test ends.
func newWiretap(t *testing.T, server string) *wiretap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wiretap{Listener: l, server: server}
	config, _ := testcert.Loopback(t)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				w.pass(c, config)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	return w
}

// pass forwards the bytes of a connection until either side closes it.
func (w *wiretap) pass(c net.Conn, config *tls.Config) {
	var onward *tls.Conn
	negotiate := func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		var err error
		onward, err = tls.Dial("tcp", w.server, &tls.Config{InsecureSkipVerify: true, NextProtos: hello.SupportedProtos}) // the test's own server
		if err != nil {
			return nil, err
		}
		chosen := config.Clone()
		chosen.NextProtos = nil
		if spoken := onward.ConnectionState().NegotiatedProtocol; spoken != "" {
			chosen.NextProtos = []string{spoken}
		}
		return chosen, nil
	}
	client := tls.Server(c, &tls.Config{GetConfigForClient: negotiate})
	err := client.Handshake()
	if onward != nil {
		defer onward.Close()
	}
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		defer client.Close()
		_, _ = io.Copy(client, onward)
	})
	w.listen(client, onward)
	onward.Close()
	back.Wait()
}

// listen forwards the client's bytes, and records the first ones.
func (w *wiretap) listen(client, onward *tls.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if n > 0 {
			w.note(client.ConnectionState().NegotiatedProtocol, buffer[:n])
			if _, err := onward.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// note records the protocol and the first line of a connection, or an upgrade.
func (w *wiretap) note(protocol string, sent []byte) {
	head, _, _ := bytes.Cut(sent, []byte("\r\n\r\n"))
	line, rest, _ := strings.Cut(string(head), "\r\n")
	switch {
	case strings.HasPrefix(string(sent), http2.ClientPreface[:16]):
	case !strings.HasSuffix(line, " HTTP/1.1"):
		return
	}
	records := strings.TrimSpace(protocol + " " + line)
	for _, field := range strings.Split(rest, "\r\n") {
		if name, value, _ := strings.Cut(field, ":"); strings.EqualFold(name, "Upgrade") {
			records += " upgrade:" + value
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, records)
}

// take returns the records since the last call.
func (w *wiretap) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	records := w.records
	w.records = nil
	return records
}

// TestKubectlUsesHTTP2 checks that kubectl uses HTTP/2 for requests and watches if the server offers it, and HTTP/1.1
// for connections that are upgraded.
func TestKubectlUsesHTTP2(t *testing.T) {
	t.Parallel()
	const preface, upgrade = "h2 PRI * HTTP/2.0", " HTTP/1.1 upgrade: "
	for _, server := range []struct{ args, speaks string }{{"--http2-max-streams-per-connection=0", preface}, {"--disable-http2-serving", "http/1.1 GET "}} {
		p := serve(t, "--unsafe-no-fsync", "--token-auth-file", tokens(t), server.args)
		w := newWiretap(t, fmt.Sprintf("127.0.0.1:%d", p.port))
		k := newKubectl(t, "", "default")
		command := func(args ...string) *exec.Cmd {
			return k.command(append([]string{"--server=https://" + w.Addr().String(), "--token=root-token", "--insecure-skip-tls-verify"}, args...)...)
		}
		check := func(what string, least int, ok func(string) bool) {
			t.Helper()
			records, n := w.take(), 0
			for _, s := range records {
				if ok(s) {
					n++
				} else {
					t.Errorf("%s: %s for %s", server.args, s, what)
				}
			}
			if n < least {
				t.Errorf("%s: %s sent %q", server.args, what, records)
			}
		}
		whole := func(s string) bool { return strings.HasPrefix(s, server.speaks) }
		for _, args := range [][]string{
			{"create", "serviceaccount", "default"}, {"get", "nodes,pods,services", "-A"}, {"create", "configmap", "first"}, {"run", "p", "--image=i"},
		} {
			if out, err := command(args...).CombinedOutput(); err != nil && !strings.Contains(string(out), "already exists") {
				t.Fatalf("kubectl %q: %v %s", args, err, out)
			}
			if server.speaks == preface {
				check("kubectl "+args[0], 1, whole)
			}
		}
		w.take()
		watch := proctest.New(t, "kubectl", func() *exec.Cmd {
			return command("get", "configmaps", "-w", "--output-watch-events", "--field-selector", "metadata.name!=kube-root-ca.crt")
		})
		if err := watch.Start(); err != nil {
			t.Fatal(err)
		}
		watch.Eventually(t, "prints the existing object", func() error {
			if out := watch.Output(); !strings.Contains(out, "first") {
				return errors.New(out)
			}
			return nil
		})
		newKubectl(t, p.kubeconfig(), "default").must(t, "", "create", "configmap", "second")
		watch.Eventually(t, "prints the change", func() error {
			if out := watch.Output(); !strings.Contains(out, "second") {
				return errors.New(out)
			}
			return nil
		})
		watch.Kill()
		check("kubectl get -w", 1, whole)

		// The pod has no node, so the request fails after the server has read it.
		out, err := command("exec", "p", "--", "true").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "does not have a host assigned") {
			t.Errorf("kubectl exec: %v %s", err, out)
		}
		upgrades := 0
		check("kubectl exec", 2, func(s string) bool {
			if strings.Contains(s, upgrade) && strings.Contains(s, "/pods/p/exec?") && !strings.HasPrefix(s, "h2") {
				upgrades++
				return strings.HasSuffix(s, "websocket") || strings.HasSuffix(s, "SPDY/3.1")
			}
			return whole(s)
		})
		if upgrades == 0 {
			t.Error("kubectl exec did not request an upgrade")
		}
	}
}
