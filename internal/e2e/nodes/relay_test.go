package nodes

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/larder-io/larder/internal/proctest"
)

// TestKubectlThroughRelay checks that kubectl works with a relay that serves the cluster below a path prefix.
func TestKubectlThroughRelay(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.terminalPod(t, "p", nil)
	kubeconfig := filepath.Join(c.dir, "west.kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"upstream": {Server: c.url(), InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"relay": {Token: admin}},
		Contexts:  map[string]*clientcmdapi.Context{"upstream": {Cluster: "upstream", AuthInfo: "relay"}}, CurrentContext: "upstream",
	}, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := c.start(t, "relay", func(port int) []string {
		return []string{*larder, "relay", "--upstream", "west=" + kubeconfig, "--secure-port", strconv.Itoa(port)}
	})
	kubectl := func(env []string, args ...string) *exec.Cmd {
		return c.kubectl(t, r, env, append([]string{"--server", r.url() + "/clusters/west"}, args...)...)
	}
	succeeds := func(stdin, want string, args ...string) {
		t.Helper()
		if out, errs, code := run(kubectl(nil, args...), strings.NewReader(stdin)); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%q: %q, %q, %d; want %q", args, out, errs, code, want)
		}
	}
	const object = "{apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: %s}}"
	succeeds(fmt.Sprintf(object, "b"), "configmap/c created", "apply", "-f", "-")
	watching := proctest.New(t, "kubectl get -w", func() *exec.Cmd {
		return kubectl(nil, "get", "configmaps", "c", "-w", "-o", `jsonpath={.data.a}{"\n"}`)
	})
	if err := watching.Start(); err != nil {
		t.Fatal(err)
	}
	defer watching.Kill()
	shows := func(want string) {
		t.Helper()
		watching.Eventually(t, "shows "+want, func() error {
			if out := watching.Output(); !strings.Contains(out, want) {
				return fmt.Errorf("%q", out)
			}
			return nil
		})
	}
	shows("b\n")
	succeeds(fmt.Sprintf(object, "changed"), "configmap/c serverside-applied", "apply", "--server-side", "--force-conflicts", "-f", "-")
	shows("changed\n")
	succeeds("", "KIND:       ConfigMap", "explain", "configmaps")
	succeeds("", "configmaps", "api-resources")
	succeeds("", "yes", "auth", "can-i", "delete", "pods")
	succeeds("", "Name:             p\n", "describe", "pod", "p")
	for name, env := range protocols {
		t.Run(name, func(t *testing.T) {
			out, errs, code := run(kubectl(env, "exec", "-i", "p", "--", "sh", "-c", "cat; echo no >&2; exit 5"), strings.NewReader("typed"))
			if out != "typed" || !strings.HasPrefix(errs, "no\n") || code != 5 {
				t.Errorf("exec: %q, %q, %d", out, errs, code)
			}
			forward(t, func(args ...string) *exec.Cmd { return kubectl(env, args...) }, "p")
			pod := "attached-" + strings.ToLower(name)
			k := c.terminalPod(t, pod, nil)
			k.run(t, "default/"+pod+"/c", "sed", "-u", "s/^/heard /")
			if out, errs, _ := run(kubectl(env, "attach", "-i", "-q", pod), strings.NewReader("one\n")); out != "heard one\n" {
				t.Errorf("attach: %q, %q", out, errs)
			}
			if out, errs, code := run(kubectl(env, "logs", "-f", pod), nil); out != "heard one\n" || code != 0 {
				t.Errorf("logs: %q, %q, %d", out, errs, code)
			}
		})
	}
}
