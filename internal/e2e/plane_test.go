package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/larder-io/larder/internal/proctest"
	"github.com/larder-io/larder/internal/proctest/testcert"
)

// plane is servers of one etcd with the same flags. They may run different programs.
type plane struct {
	t    *testing.T
	url  string // etcd's
	args []string

	stock, larder string // the programs; "" means those under test
}

// newPlane starts an etcd and creates the files that the servers share.
func newPlane(t *testing.T, args ...string) *plane {
	t.Helper()
	return &plane{t: t, url: serveEtcd(t), args: append(planeFiles(t), args...)}
}

// planeFiles creates certificates and keys, and returns the flags that name them.
func planeFiles(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	ca, proxies := testcert.New(t, "cluster"), testcert.New(t, "front proxies")
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	caFile, proxiesFile := write("ca.crt", ca.PEM()), write("proxies.crt", proxies.PEM())
	pem, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key := write("sa.key", string(pem))
	serving := ca.Sign(t, "kube-apiserver", nil, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		c.DNSNames, c.IPAddresses = []string{"kubernetes.default.svc", "localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	})
	certFile, keyFile := testcert.Write(t, dir, "serving", serving)
	proxyCert, proxyKey := testcert.Write(t, dir, "proxy", proxies.Sign(t, "front-proxy-client", nil, nil))
	return []string{
		"--tls-cert-file=" + certFile, "--tls-private-key-file=" + keyFile, "--client-ca-file=" + caFile, "--peer-ca-file=" + caFile,
		"--requestheader-client-ca-file=" + proxiesFile, "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + proxyCert, "--proxy-client-key-file=" + proxyKey,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file=" + key, "--service-account-key-file=" + key,
		"--token-auth-file=" + tokens(t), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--etcd-compaction-interval=0",
		"--endpoint-reconciler-type=none",
	}
}

// arg returns the value of a flag of all servers.
func (p *plane) arg(name string) string {
	p.t.Helper()
	for _, arg := range p.args {
		if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
			return value
		}
	}
	p.t.Fatalf("the servers have no --%s", name)
	return ""
}

// member is one of the servers.
type member struct {
	*proctest.Process
	t      *testing.T
	port   int
	client *http.Client
}

// member returns a server that is not started yet: kube-apiserver, or Larder under that name. host is the server's host
// name; "" means this machine's name.
func (p *plane) member(stock bool, host string, port int, args ...string) *member {
	p.t.Helper()
	binary, name := cmp.Or(p.stock, *stockBinary), "stock"
	if !stock {
		binary, name = filepath.Join(p.t.TempDir(), "kube-apiserver"), "larder"
		if err := os.Symlink(cmp.Or(p.larder, binaries.larder), binary); err != nil {
			p.t.Fatal(err)
		}
	}
	all := append([]string{"--etcd-servers=" + p.url, "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + p.t.TempDir()}, p.args...)
	all = append(all, args...)
	if !stock { // kube-apiserver always publishes the advertised address to its peers
		all = append(all, "--advertise-address=192.0.2.1", "--peer-advertise-ip=127.0.0.1", "--peer-advertise-port="+strconv.Itoa(port)) // reserved for documentation by RFC 5737
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 100} // the test's own server
	p.t.Cleanup(transport.CloseIdleConnections)
	return &member{t: p.t, port: port, client: &http.Client{Transport: transport}, Process: proctest.New(p.t, name+" "+host, func() *exec.Cmd {
		if host == "" {
			return exec.Command(binary, all...)
		}
		return onHost(host, binary, all...)
	})}
}

// onHost returns a command that runs with a host name.
func onHost(host, binary string, args ...string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", append([]string{"-c", `echo "$0" > /proc/sys/kernel/hostname && exec "$@"`, host, binary}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUTS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
	}
	return cmd
}

// start runs the server and waits until it is ready.
func (m *member) start() *member {
	m.t.Helper()
	if err := m.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.Eventually(m.t, "is ready", func() error {
		if code, body := m.ask(http.MethodGet, "/readyz", "", nil); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	return m
}

func (m *member) url() string { return "https://127.0.0.1:" + strconv.Itoa(m.port) }

func (m *member) config() *rest.Config {
	return &rest.Config{Host: m.url(), BearerToken: "root-token", TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// ask sends a request as the administrator. Without a response, the code is 0.
func (m *member) ask(method, path, body string, header http.Header) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), proctest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, m.url()+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header = header.Clone()
	if req.Header == nil {
		req.Header = make(http.Header)
	}
	for name, value := range map[string]string{"Authorization": "Bearer root-token", "Content-Type": "application/json"} {
		if req.Header.Get(name) == "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(bytes.TrimSpace(text))
}
