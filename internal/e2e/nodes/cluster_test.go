package nodes

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// cluster is a server, the credentials for it, and its kubelets.
type cluster struct {
	pki
	dir, tokens string
	*server
	client kubernetes.Interface // the administrator's
}

// server is a process that serves a cluster's API.
type server struct {
	*proctest.Process
	name string
	port int
	args []string // the command, which may change between two starts
}

const (
	admin  = "admin-token"
	reader = "reader-token" // of a user who may get pods and their subresources, and create nothing
)

// newCluster starts Larder and waits until it is ready.
func newCluster(t testing.TB, args ...string) *cluster {
	t.Helper()
	return newClusterOf(t, newPKI(t), args...)
}

func newClusterOf(t testing.TB, p *pki, args ...string) *cluster {
	t.Helper()
	c := &cluster{pki: *p, dir: t.TempDir()}
	c.tokens = filepath.Join(c.dir, "tokens.csv")
	write(t, c.tokens, admin+",admin,admin,system:masters\n"+reader+",reader,reader,\nnobody-token,nobody,nobody,\nfine-token,fine,fine,\ncreator-token,creator,creator,\n")
	testcert.Write(t, c.dir, "kubelet-client", c.servers.Sign(t, "kube-apiserver", nil, nil))
	write(t, filepath.Join(c.dir, "kubelets.crt"), c.kubelets.PEM())
	c.server = c.start(t, "larder", func(port int) []string {
		return append([]string{*larder, "serve", "--data-dir", c.data(), "--unsafe-no-fsync"}, append(c.common(port), args...)...)
	})
	c.client = c.clientset(t, c.server, admin)
	c.prepare(t)
	return c
}

func (c *cluster) data() string { return filepath.Join(c.dir, "data") }

// common returns flags of both servers. This package tests the kubelet flags.
func (c *cluster) common(port int) []string {
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--token-auth-file=" + c.tokens,
		"--kubelet-client-certificate=" + filepath.Join(c.dir, "kubelet-client.crt"), "--kubelet-client-key=" + filepath.Join(c.dir, "kubelet-client.key"),
		"--kubelet-certificate-authority=" + filepath.Join(c.dir, "kubelets.crt"),
	}
}

func (c *cluster) start(t testing.TB, name string, command func(port int) []string) *server {
	t.Helper()
	port := proctest.Port(t)
	s := &server{name: name, port: port, args: command(port)}
	s.Process = proctest.New(t, name, func() *exec.Cmd { return exec.Command(s.args[0], s.args[1:]...) })
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.checkEnd(t) })
	client := c.clientset(t, s, admin)
	s.Eventually(t, "is ready", func() error {
		return client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error()
	})
	return s
}

// restart stops Larder and starts it again, with more flags.
func (s *server) restart(t testing.TB, args ...string) {
	t.Helper()
	if err := s.Terminate(t); err != nil {
		t.Error(err)
	}
	s.args = append(s.args, args...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.Await(t, "ready after")
}

// startStock starts kube-apiserver on Larder's etcd.
func (c *cluster) startStock(t testing.TB) *server {
	t.Helper()
	key := filepath.Join(c.data(), "pki", "sa.key")
	return c.start(t, "stock", func(port int) []string {
		return append([]string{
			*stockBinary, "--etcd-servers=unix://" + filepath.Join(c.data(), "etcd", "sock", "etcd"), "--cert-dir=" + filepath.Join(c.dir, "stock"),
			"--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-signing-key-file=" + key, "--service-account-key-file=" + key, "--endpoint-reconciler-type=none", "--advertise-address=192.0.2.1", "--allow-privileged",
		}, c.common(port)...)
	})
}

// checkEnd stops the server and checks that its output has no panic and no violated invariant.
func (s *server) checkEnd(t testing.TB) {
	if err := s.Terminate(t); err != nil {
		t.Errorf("the exit of %s: %v", s.name, err)
	}
	const most = 6000
	out := s.Output()
	for _, bad := range []string{"DATA RACE", "Request panicked", "Stream panicked", "Connection panicked", "panicked: true", "panic:", "invariant violated"} {
		if at := strings.Index(out, bad); at >= 0 && s.name == "larder" {
			t.Errorf("%s printed %s", s.name, out[at:min(at+most, len(out))])
		}
	}
}

func (s *server) url() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// config returns the configuration of a client with a token.
func (s *server) config(token string) *rest.Config {
	return &rest.Config{Host: s.url(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// clientset returns a client of s, whose connections are closed at the end of the test.
func (c *cluster) clientset(t testing.TB, s *server, token string) kubernetes.Interface {
	t.Helper()
	transport, err := rest.TransportFor(s.config(token))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	t.Cleanup(client.CloseIdleConnections)
	set, err := kubernetes.NewForConfigAndClient(s.config(token), client)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// prepare creates the objects that pods need, and the rights of the reader.
func (c *cluster) prepare(t testing.TB) {
	t.Helper()
	created(t, func(ctx context.Context) error {
		_, err := c.client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		return err
	})
}

func created(t testing.TB, create func(context.Context) error) {
	t.Helper()
	if err := create(t.Context()); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// node creates a node with an address and a port.
func (c *cluster) node(t testing.TB, name, address string, port int, features ...string) {
	t.Helper()
	created(t, func(ctx context.Context) error {
		_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	})
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	node.Status.DeclaredFeatures = features
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod creates a running pod on a node, with a container for each name.
func (c *cluster) pod(t testing.TB, name, node string, edit func(*corev1.Pod), containers ...string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, name := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "i", Stdin: true})
	}
	if edit != nil {
		edit(pod)
	}
	status := pod.Status
	made, err := c.client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status = status
	made.Status.Phase = corev1.PodRunning
	if _, err := c.client.CoreV1().Pods("default").UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// terminalPod creates a node with a kubelet, and a running pod whose container c does nothing.
func (c *cluster) terminalPod(t testing.TB, name string, edit func(*kubelet)) *kubelet {
	t.Helper()
	k := newKubelet(t, &c.pki, edit)
	var features []string
	if k.declares {
		features = []string{"ExtendWebSocketsToKubelet"}
	}
	c.node(t, "node-"+name, "127.0.0.1", k.port, features...)
	k.run(t, "default/"+name+"/c", "cat")
	c.pod(t, name, "node-"+name, nil, "c")
	return k
}
