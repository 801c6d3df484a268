package e2e_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli/flag"

	"github.com/larder-io/larder/internal/e2e/e2etest"
	"github.com/larder-io/larder/internal/proctest"
)

// privileged creates a pod like those of network plugins and kube-proxy.
func privileged(t *testing.T, client kubernetes.Interface) error {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "network"}}
	if _, err := client.CoreV1().ServiceAccounts("kube-system").Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "network-"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "network", HostNetwork: true, HostPID: true,
			Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}},
		},
	}
	made, err := client.CoreV1().Pods("kube-system").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.Labels = map[string]string{"changed": "yes"}
	_, err = client.CoreV1().Pods("kube-system").Update(t.Context(), made, metav1.UpdateOptions{})
	return err
}

// TestDefaults checks that the server is safe without flags: only this machine can reach it, and only the administrator
// has rights. Network plugins of a new cluster must be able to run.
func TestDefaults(t *testing.T) {
	port, dir := strconv.Itoa(proctest.Port(t)), filepath.Join(t.TempDir(), "data")
	p := proctest.New(t, "the server", func() *exec.Cmd {
		return exec.Command(binaries.larder, "serve", "--data-dir", dir, "--secure-port", port, "--unsafe-no-fsync")
	})
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.Await(t, "ready after")
	if c, err := net.Dial("tcp", "127.0.0.2:"+port); err == nil {
		c.Close()
		t.Error("the server listens on more addresses than 127.0.0.1")
	}
	config := e2etest.Config(t, filepath.Join(dir, "admin.kubeconfig"))
	admin, nobody := kubernetes.NewForConfigOrDie(config), kubernetes.NewForConfigOrDie(rest.AnonymousClientConfig(config))
	if _, err := nobody.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an anonymous request: %v", err)
	}
	if err := privileged(t, admin); err != nil {
		t.Errorf("a privileged pod: %v", err)
	}
	if e, err := admin.CoreV1().Endpoints("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an unreachable address is published: %v, error %v", e, err)
	}
}

var exported = regexp.MustCompile(`export KUBECONFIG='?([^'\n]+)`)

// TestServersLeaveNoFilesOverExternalEtcd checks that servers with an external etcd can share a working directory, and
// leave no files there or, after they have exited, elsewhere.
func TestServersLeaveNoFilesOverExternalEtcd(t *testing.T) {
	store := serve(t, "--unsafe-no-fsync")
	work, temp := t.TempDir(), t.TempDir()
	var servers []*proctest.Process
	for i := range 2 {
		port := strconv.Itoa(proctest.Port(t))
		p := proctest.New(t, fmt.Sprintf("server %d", i), func() *exec.Cmd {
			cmd := exec.Command(binaries.larder, "serve", "--etcd-servers", "unix://"+filepath.Join(store.dir, "etcd", "sock", "etcd"), "--secure-port", port)
			cmd.Dir, cmd.Env = work, append(os.Environ(), "TMPDIR="+temp)
			return cmd
		})
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		servers = append(servers, p)
	}
	for i, p := range servers {
		p.Await(t, "ready after")
		p.Await(t, "export KUBECONFIG=")
		found := exported.FindStringSubmatch(p.Output())
		if found == nil {
			t.Fatalf("no kubeconfig in %s", p.Output())
		}
		put(t, kubernetes.NewForConfigOrDie(e2etest.Config(t, found[1])), "default", fmt.Sprintf("by-%d", i))
	}
	for _, p := range servers {
		if err := p.Terminate(t); err != nil {
			t.Errorf("%v\n%s", err, p.Output())
		}
	}
	empty(t, work)
	empty(t, temp)
}

func empty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s is left in %s", entry.Name(), dir)
	}
}

// suites returns all values that --tls-cipher-suites accepts.
func suites() string {
	return strings.Join(append(flag.PreferredTLSCipherNames(), flag.InsecureTLSCipherNames()...), ",")
}

// servesSuites checks that the server's generated certificate works with every cipher suite that kube-apiserver's works
// with, except suites that need an ECDSA key.
func servesSuites(t *testing.T, port int) {
	t.Helper()
	for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if slices.Contains(suite.SupportedVersions, tls.VersionTLS13) || strings.Contains(suite.Name, "ECDSA") {
			continue
		}
		conn, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
			&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite.ID}})
		if err != nil {
			t.Errorf("%s: %v", suite.Name, err)
			continue
		}
		conn.Close()
	}
}

// TestDefaultsUnderTheNameKubeAPIServer checks that under the name kube-apiserver, the server has kube-apiserver's
// defaults and writes only files that flags name. It must be healthy with durations of 0, which kube-apiserver accepts.
func TestDefaultsUnderTheNameKubeAPIServer(t *testing.T) {
	name := filepath.Join(t.TempDir(), "kube-apiserver")
	if err := os.Symlink(binaries.larder, name); err != nil {
		t.Fatal(err)
	}
	store := serve(t, "--unsafe-no-fsync")
	work, temp, certs := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "certs")
	port := proctest.Port(t)
	etcd := "--etcd-servers=unix://" + filepath.Join(store.dir, "etcd", "sock", "etcd")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = work, append(os.Environ(), "TMPDIR="+temp)
		return cmd
	}
	for _, test := range []struct {
		want string
		args []string
	}{
		{"--etcd-servers", nil},
		{"--service-account-signing-key-file and --service-account-issuer are required flags", []string{etcd}},
		{`"kube-apiserver" does not take any arguments`, []string{"serve"}},
	} {
		if out, err := command(test.args...).CombinedOutput(); err == nil || !strings.Contains(string(out), test.want) {
			t.Errorf("%v: error %v, want %q in\n%s", test.args, err, test.want, out)
		}
	}
	help, err := command("--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"families will be used. (default 0.0.0.0)", `(default "/var/run/kubernetes")`, "Defaults to AlwaysAllow if"} {
		if !bytes.Contains(bytes.Join(bytes.Fields(help), []byte(" ")), []byte(want)) {
			t.Errorf("the help lacks %q", want)
		}
	}

	p := &process{t: t, dir: store.dir, port: port}
	p.Process = proctest.New(t, "kube-apiserver", func() *exec.Cmd {
		return command(etcd, "--secure-port", strconv.Itoa(port), "--bind-address=127.0.0.1", "--cert-dir", certs,
			"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file", filepath.Join(store.dir, "pki", "sa.key"),
			"--token-auth-file", tokens(t),
			"--tls-cipher-suites", suites(),
			"--etcd-healthcheck-timeout=0s", "--etcd-readycheck-timeout=0s", "--etcd-compaction-interval=0s", "--etcd-count-metric-poll-period=0s",
			"--etcd-db-metric-poll-interval=0s", "--storage-initialization-timeout=0s", "--livez-grace-period=0s", "--kubelet-timeout=0s",
			"--shutdown-delay-duration=0s", "--shutdown-watch-termination-grace-period=0s", "--authentication-token-webhook-cache-ttl=0s",
			"--authorization-webhook-cache-authorized-ttl=0s", "--authorization-webhook-cache-unauthorized-ttl=0s",
			"--service-account-max-token-expiration=0s", "--audit-log-batch-max-wait=0s", "--audit-webhook-batch-max-wait=0s",
			"--audit-webhook-initial-backoff=0s")
	})
	p.start()
	p.awaitReady()
	for token, want := range map[string]int{"alice-token": 200, "": 401} {
		if got, err := p.status("/api/v1/nodes", token); got != want || err != nil {
			t.Errorf("token %q: status %d, error %v, want %d", token, got, err, want)
		}
	}
	servesSuites(t, port)
	alice := &rest.Config{Host: p.url(), BearerToken: "alice-token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if err := privileged(t, kubernetes.NewForConfigOrDie(alice)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "disallowed by cluster policy") {
		t.Errorf("a privileged pod: %v", err)
	}
	if err := p.Terminate(t); err != nil {
		t.Errorf("%v\n%s", err, p.Output())
	}
	empty(t, work)
	empty(t, temp)
	for _, file := range []string{"apiserver.crt", "apiserver.key"} {
		if _, err := os.Stat(filepath.Join(certs, file)); err != nil {
			t.Error(err)
		}
	}
}
