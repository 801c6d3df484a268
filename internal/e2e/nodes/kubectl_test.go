package nodes

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/larder-io/larder/internal/proctest"
)

// kubectl returns a kubectl command for s, with additional environment variables.
func (c *cluster) kubectl(t testing.TB, s *server, env []string, args ...string) *exec.Cmd {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--server", s.url(), "--token", admin, "--insecure-skip-tls-verify", "-n", "default"}, args...)
	cmd := exec.Command(executable, args...)
	cmd.Env = append(os.Environ(), append(env, kubectlVariable+"=1", "KUBECONFIG=", "HOME="+c.dir)...)
	return cmd
}

// run runs a command and returns its output and exit code.
func run(cmd *exec.Cmd, stdin io.Reader) (out, errs string, code int) {
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &o, &e
	_ = cmd.Run()
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// protocols are the environment variables that select kubectl's protocol.
var protocols = map[string][]string{
	"WebSocket": nil,
	"SPDY":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
}

// TestKubectl checks exec, cp, port-forward, attach, logs and get --raw of kubectl, over WebSockets and SPDY.
func TestKubectl(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.terminalPod(t, "p", nil)
	k := c.terminalPod(t, "declares", func(k *kubelet) { k.declares = true })
	for name, env := range protocols {
		for _, pod := range []string{"p", "declares"} {
			t.Run(name+" "+pod, func(t *testing.T) {
				kubectl := func(args ...string) *exec.Cmd { return c.kubectl(t, c.server, env, args...) }
				out, errs, code := run(kubectl("exec", "-i", pod, "--", "sh", "-c", "cat; echo no >&2; exit 5"), strings.NewReader("typed"))
				if out != "typed" || !strings.HasPrefix(errs, "no\n") || code != 5 {
					t.Errorf("exec: %q, %q, %d", out, errs, code)
				}
				copyFiles(t, kubectl, pod)
				forward(t, kubectl, pod)
			})
		}
	}
	t.Run("attach", func(t *testing.T) {
		for name, env := range protocols {
			k := c.terminalPod(t, "attached-"+strings.ToLower(name), nil)
			k.run(t, "default/attached-"+strings.ToLower(name)+"/c", "sed", "-u", "s/^/heard /")
			out, errs, _ := run(c.kubectl(t, c.server, env, "attach", "-i", "-q", "attached-"+strings.ToLower(name)), strings.NewReader("one\ntwo\n"))
			if out != "heard one\nheard two\n" {
				t.Errorf("%s: %q, %q", name, out, errs)
			}
			out, errs, code := run(c.kubectl(t, c.server, env, "logs", "-f", "attached-"+strings.ToLower(name)), nil)
			if out != "heard one\nheard two\n" || code != 0 {
				t.Errorf("%s: logs %q, %q, %d", name, out, errs, code)
			}
		}
	})
	t.Run("get --raw", func(t *testing.T) {
		c.node(t, "out", needOutward(t), k.port)
		out, errs, _ := run(c.kubectl(t, c.server, nil, "get", "--raw", "/api/v1/nodes/out/proxy/some/path?a=b"), nil)
		if out != "GET /some/path?a=b as kube-apiserver\n" {
			t.Errorf("output %q, errors %q", out, errs)
		}
	})
}

// copyFiles copies a directory to a container and back.
func copyFiles(t *testing.T, kubectl func(...string) *exec.Cmd, pod string) {
	t.Helper()
	dir := t.TempDir()
	here, there, back := filepath.Join(dir, "here"), filepath.Join(dir, "there"), filepath.Join(dir, "back")
	if err := os.Mkdir(here, 0o700); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(noise(3 << 20))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(here, "large"), string(raw))
	write(t, filepath.Join(here, "empty"), "")
	for _, args := range [][]string{{"cp", here, pod + ":" + there}, {"cp", pod + ":" + there, back}} {
		if out, errs, code := run(kubectl(args...), nil); code != 0 {
			t.Fatalf("%q: %q %q", args, out, errs)
		}
	}
	for name, want := range map[string]string{"large": string(raw), "empty": ""} {
		got, err := os.ReadFile(filepath.Join(back, name))
		if err != nil || string(got) != want {
			t.Errorf("%s came back with %d bytes of %d, error %v", name, len(got), len(want), err)
		}
	}
}

var forwarding = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> `)

// forward sends concurrent requests to a pod's ports, and checks that the end of one direction is forwarded.
func forward(t *testing.T, kubectl func(...string) *exec.Cmd, pod string) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		heard, _ := io.ReadAll(req.Body)
		w.Write(heard)
	}))
	defer web.Close()
	sum := digester(t)
	webPort, sumPort := web.Listener.Addr().(*net.TCPAddr).Port, sum.Addr().(*net.TCPAddr).Port
	process := proctest.New(t, "kubectl port-forward", func() *exec.Cmd {
		return kubectl("port-forward", "--address", "127.0.0.1", pod, fmt.Sprintf(":%d", webPort), fmt.Sprintf(":%d", sumPort))
	})
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer process.Kill()
	var at [][]string
	process.Eventually(t, "forwards", func() error {
		if at = forwarding.FindAllStringSubmatch(process.Output(), -1); len(at) < 2 {
			return fmt.Errorf("%s", process.Output())
		}
		return nil
	})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			want := strings.Repeat(fmt.Sprintf("request %d\n", i), 10000)
			resp, err := client.Post("http://"+at[0][1], "text/plain", strings.NewReader(want))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); string(got) != want {
				return fmt.Errorf("%d bytes came back, error %v", len(got), err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	digestThrough(t, at[1][1])
}

// digester is a server that reads to the end and responds with the digest.
func digester(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				stop := context.AfterFunc(ctx, func() { conn.Close() })
				defer stop()
				sum := sha256.New()
				_, _ = io.Copy(sum, conn)
				fmt.Fprintf(conn, "%x", sum.Sum(nil))
			})
		}
	})
	t.Cleanup(func() { l.Close(); cancel(); serving.Wait() })
	return l
}

// digestThrough sends many bytes and then closes its direction only. The digest in the response proves that all bytes
// arrived.
func digestThrough(t *testing.T, address string) {
	t.Helper()
	const size = 20 << 20
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := sha256.New()
	if _, err := io.Copy(io.MultiWriter(conn, want), noise(size)); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != hex.EncodeToString(want.Sum(nil)) {
		t.Errorf("digest %s, error %v", got, err)
	}
}
