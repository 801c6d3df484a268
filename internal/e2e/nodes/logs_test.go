package nodes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// TestLogs checks the parameters of logs, and that logs are followed.
func TestLogs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	const key = "default/p/c"
	k.run(t, key, "sh", "-c", "echo first life")
	proctest.Eventually(t, "the first run ends", func() error { return k.over(key) })
	k.run(t, key, "sh", "-c", "echo one; echo two; echo three; cat")
	stdin := func(text string) {
		k.mu.Lock()
		defer k.mu.Unlock()
		io.WriteString(k.containers[key].stdin, text)
	}
	printed := func(n int) {
		proctest.Eventually(t, "lines are printed", func() error {
			lines, _, _ := k.containers[key].state(0)
			return none(n - len(lines))
		})
	}
	printed(3)
	stdin("four\n")
	printed(4)
	mark := time.Now().Truncate(time.Second).Add(-time.Minute)
	k.containers[key].age(3, mark.Add(-time.Nanosecond))
	get := func(o *corev1.PodLogOptions) string {
		o.Container = "c"
		text, err := c.client.CoreV1().Pods("default").GetLogs("p", o).DoRaw(t.Context())
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	for _, test := range []struct {
		name, want string
		o          corev1.PodLogOptions
	}{
		{"all", "one\ntwo\nthree\nfour\n", corev1.PodLogOptions{}},
		{"previous", "first life\n", corev1.PodLogOptions{Previous: true}},
		{"tail", "three\nfour\n", corev1.PodLogOptions{TailLines: ptr.To[int64](2)}},
		{"limit", "one\nt", corev1.PodLogOptions{LimitBytes: ptr.To[int64](5)}},
		{"since", "four\n", corev1.PodLogOptions{SinceTime: &metav1.Time{Time: mark}}},
		{"unverified", "one\ntwo\nthree\nfour\n", corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}},
	} {
		if got := get(&test.o); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	if got := get(&corev1.PodLogOptions{Timestamps: true, TailLines: ptr.To[int64](1)}); !strings.HasSuffix(got, "Z four\n") {
		t.Errorf("log with timestamps: %q", got)
	}

	before := c.goroutines(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Container: "c", Follow: true, TailLines: ptr.To[int64](1)}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(stream)
	for i := range 5 {
		want := "four\n"
		if i > 0 {
			want = fmt.Sprintf("line %d\n", i)
			stdin(want)
		}
		if got, err := in.ReadString('\n'); got != want {
			t.Fatalf("followed log: %q, error %v, want %q", got, err, want)
		}
	}
	cancel()
	c.settles(t, k, before)

	stream, err = c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Container: "c", Follow: true, TailLines: ptr.To[int64](1)}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k.containers[key].stop()
	if rest, err := io.ReadAll(stream); string(rest) != "line 4\n" || err != nil {
		t.Errorf("rest of the followed log: %q, error %v", rest, err)
	}
}

// over returns an error while the container's own process is running.
func (k *kubelet) over(key string) error {
	if _, ended, _ := k.containers[key].state(0); !ended {
		return fmt.Errorf("it is running")
	}
	return nil
}

// TestLargeLogIsStreamed checks that a log of any length is sent while it arrives.
func TestLargeLogIsStreamed(t *testing.T) {
	t.Parallel()
	const lines = 2_000_000
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	k.run(t, "default/p/c", "seq", fmt.Sprint(lines))
	proctest.Eventually(t, "everything is printed", func() error { return k.over("default/p/c") })
	stream, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{Container: "c"}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for in := bufio.NewScanner(stream); in.Scan(); {
		if n++; in.Text() != fmt.Sprint(n) {
			t.Fatalf("line %d is %q", n, in.Text())
		}
	}
	if n != lines {
		t.Errorf("the log has %d lines", n)
	}
}

// TestKubeletsAreVerifiedByCertificate checks that kubelets and the server verify each other's certificates.
func TestKubeletsAreVerifiedByCertificate(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	right := c.terminalPod(t, "p", nil)
	foreign := newPKI(t)
	k := newKubelet(t, &pki{kubelets: foreign.kubelets, servers: c.servers}, nil)
	strict := newKubelet(t, &pki{kubelets: c.kubelets, servers: foreign.servers}, nil)
	for name, k := range map[string]*kubelet{"foreign": k, "strict": strict} {
		c.node(t, name, "127.0.0.1", k.port)
		k.run(t, "default/"+name+"/c", "echo", "secret")
		proctest.Eventually(t, "the log is printed", func() error { return k.over("default/" + name + "/c") })
		c.pod(t, name, name, nil, "c")
	}
	log := func(pod string, o *corev1.PodLogOptions) (string, error) {
		text, err := c.client.CoreV1().Pods("default").GetLogs(pod, o).DoRaw(t.Context())
		return string(text), err
	}
	if text, err := log("foreign", &corev1.PodLogOptions{}); err == nil || !strings.Contains(text, "x509: certificate signed by unknown authority") {
		t.Errorf("a kubelet with a certificate of another CA: %q, error %v", text, err)
	}
	if text, err := log("foreign", &corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}); text != "secret\n" {
		t.Errorf("the same kubelet with insecureSkipTLSVerifyBackend: %q, error %v", text, err)
	}
	if text, err := log("strict", &corev1.PodLogOptions{}); err == nil || !strings.Contains(text, "remote error: tls: ") {
		t.Errorf("a kubelet that does not trust this server's CA: %q, error %v", text, err)
	}
	if n := len(strict.takeRequests()) + len(right.takeRequests()); n != 0 {
		t.Errorf("got %d requests at the wrong kubelets, want 0", n)
	}
}

// TestPreferredKubeletAddressIsUsed checks that requests go to the node's address of the most preferred type, at the
// node's port or --kubelet-port.
func TestPreferredKubeletAddressIsUsed(t *testing.T) {
	t.Parallel()
	var port int
	var c *cluster
	p := newPKI(t)
	k := newKubelet(t, p, nil)
	port = k.port
	c = newClusterOf(t, p, "--kubelet-preferred-address-types=ExternalDNS,InternalIP,Hostname", fmt.Sprintf("--kubelet-port=%d", port))
	k.run(t, "default/p/c", "echo", "here")
	proctest.Eventually(t, "the log is printed", func() error { return k.over("default/p/c") })
	c.node(t, "n", "127.0.0.1", 0)
	c.pod(t, "p", "n", nil, "c")
	nobody := "192.0.2.255"
	for name, test := range map[string]struct {
		addresses []corev1.NodeAddress
		port      int
		want      string
	}{
		"the default port":               {[]corev1.NodeAddress{{Type: "InternalIP", Address: "127.0.0.1"}}, 0, "here\n"},
		"a preferred type":               {[]corev1.NodeAddress{{Type: "Hostname", Address: nobody}, {Type: "InternalIP", Address: "127.0.0.1"}}, 0, "here\n"},
		"the most preferred type":        {[]corev1.NodeAddress{{Type: "InternalIP", Address: nobody}, {Type: "ExternalDNS", Address: "localhost"}}, port, "here\n"},
		"an IPv6 address":                {[]corev1.NodeAddress{{Type: "InternalIP", Address: "::1"}}, 0, "here\n"},
		"no address of a preferred type": {[]corev1.NodeAddress{{Type: "ExternalIP", Address: "127.0.0.1"}}, 0, "no preferred addresses found; known addresses: [{ExternalIP 127.0.0.1}]"},
		"a port without a listener":      {[]corev1.NodeAddress{{Type: "InternalIP", Address: "127.0.0.1"}}, proctest.Port(t), "connection refused"},
	} {
		if name == "an IPv6 address" && !hasIPv6() {
			t.Logf("%s is not tried: this machine has no IPv6 loopback address", name)
			continue
		}
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.Addresses, node.Status.DaemonEndpoints.KubeletEndpoint.Port = test.addresses, int32(test.port)
		if _, err := c.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		text, err := c.client.CoreV1().Pods("default").GetLogs("p", &corev1.PodLogOptions{}).DoRaw(t.Context())
		if got := string(text) + fmt.Sprint(err); !strings.Contains(got, test.want) {
			t.Errorf("%s: got %s, want %q", name, got, test.want)
		}
	}
}

// hasIPv6 reports whether this machine has an IPv6 loopback address.
func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err == nil {
		l.Close()
	}
	return err == nil
}

// TestClientCertificateIsReplaced checks that new connections to kubelets use a client certificate that was replaced on
// disk.
func TestClientCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	k := c.terminalPod(t, "p", nil)
	c.node(t, "out", needOutward(t), k.port)
	seen := func() string {
		text, err := c.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/out/proxy/who").DoRaw(t.Context())
		return string(text) + fmt.Sprint(err)
	}
	if got := seen(); !strings.Contains(got, "GET /who as kube-apiserver\n") {
		t.Fatal(got)
	}
	testcert.Write(t, c.dir, "kubelet-client", c.servers.Sign(t, "renewed", nil, nil))
	proctest.Eventually(t, "the new certificate is used", func() error {
		k.server.CloseClientConnections() // connections with the old certificate
		if got := seen(); !strings.Contains(got, "GET /who as renewed\n") {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}
