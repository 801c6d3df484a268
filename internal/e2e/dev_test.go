package e2e_test

import (
	"strings"
	"testing"

	"github.com/larder-io/larder/internal/proctest"
)

// TestDevDoesWhatTheReadmeSays checks that the first commands of the README work with `larder dev`, also immediately
// after the server has logged that it is ready.
func TestDevDoesWhatTheReadmeSays(t *testing.T) {
	p := newProcess(t, "--unsafe-no-fsync")
	p.command = "dev"
	for _, when := range []string{"at first", "after a restart"} {
		p.start()
		p.awaitReady()
		k := newKubectl(t, p.kubeconfig(), "default")
		k.must(t, "", "run", "once", "--image=nginx")
		k.must(t, "", "delete", "pod", "once")
		k.must(t, "", "create", "namespace", "demo")
		k.namespace = "demo"
		k.must(t, "", "create", "deployment", "web", "--image=nginx")
		// The service account is created a moment after its namespace.
		proctest.Eventually(t, "a pod is created "+when, func() error { return k.try("run", "once", "--image=nginx") })
		if out := k.must(t, "", "get", "deployments,pods"); !strings.Contains(out, "deployment.apps/web   0/1") || strings.Count(out, "pod/") != 1 {
			t.Errorf("the namespace has\n%s", out)
		}
		k.must(t, "", "delete", "namespace", "demo", "--timeout", proctest.Patience.String())
		if out := k.must(t, "", "get", "deployments,pods,serviceaccounts"); !strings.Contains(out, "No resources found") {
			t.Errorf("objects left %s:\n%s", when, out)
		}
		if err := p.Terminate(t); err != nil {
			t.Error(err)
		}
		if out := p.Output(); strings.Contains(out, "] ") || strings.Contains(out, "late:") || !strings.HasSuffix(out, "stopped\n") {
			t.Errorf("unexpected %s in the output:\n%s", when, out)
		}
	}
}

// TestDevWarnsBesideAControllerManager checks that the test controllers warn if a kube-controller-manager also runs.
func TestDevWarnsBesideAControllerManager(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	k := newKubectl(t, p.kubeconfig(), "kube-system")
	k.must(t, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kube-controller-manager"},
		"spec": {"holderIdentity": "host_1", "leaseDurationSeconds": 3600, "renewTime": "2999-01-01T00:00:00.000000Z"}}`, "create", "-f", "-")
	if err := p.Terminate(t); err != nil {
		t.Fatal(err)
	}
	p.args = append(p.args, "--test-controllers")
	p.start()
	p.awaitReady()
	if want := "warning: kube-controller-manager host_1 also runs in this cluster"; !strings.Contains(p.Output(), want) {
		t.Errorf("no %q in\n%s", want, p.Output())
	}
}
