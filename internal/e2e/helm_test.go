package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/larder-io/larder/internal/proctest"
)

// helm runs helm commands against one server.
type helm struct {
	binary, kubeconfig, home string
}

// run runs a command and returns its output, and its exit status if it failed.
func (h *helm) run(args ...string) string {
	var out bytes.Buffer
	cmd := exec.Command(h.binary, append([]string{"--namespace", "shop"}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+h.home, "KUBECONFIG="+h.kubeconfig)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&out, "(%v)\n", err)
	}
	return out.String()
}

// jobsDone is the status of a successful job.
const jobsDone = `{"status":{"startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:00:01Z","succeeded":1,"uncountedTerminatedPods":{},"conditions":[` +
	`{"type":"SuccessCriteriaMet","status":"True","lastTransitionTime":"2026-01-01T00:00:01Z"},{"type":"Complete","status":"True","lastTransitionTime":"2026-01-01T00:00:01Z"}]}}`

// completeJobs completes jobs instead of their controller, until the test ends.
func completeJobs(t *testing.T, p *process) {
	t.Helper()
	jobs := p.client().BatchV1().Jobs("shop")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pace := time.NewTicker(50 * time.Millisecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			list, err := jobs.List(ctx, metav1.ListOptions{})
			if err == nil {
				for _, job := range list.Items {
					_, _ = jobs.Patch(ctx, job.Name, types.MergePatchType, []byte(jobsDone), metav1.PatchOptions{}, "status") // the job may be complete or deleted
				}
			}
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// TestHelmInstallsAndUpgradesAChart installs a chart with a CRD, objects of many kinds and hooks. It upgrades the chart
// with server-side apply, in conflict with another manager, rolls it back and deletes it.
func TestHelmInstallsAndUpgradesAChart(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	k := newKubectl(t, p.kubeconfig(), "shop")
	k.must(t, "", "create", "namespace", "shop")
	completeJobs(t, p)
	h := &helm{binary: buildClient(t, "helm", "helm.sh/helm/v4/cmd/helm"), kubeconfig: p.kubeconfig(), home: t.TempDir()}
	const chart, timeout = "testdata/chart", longWait
	config := func(want string) {
		t.Helper()
		const fields = `jsonpath={.data.color} {.data.revision} {.data.deployments} {.data.found}`
		if got := k.run("", "get", "configmap", "shop-config", "-o", fields); got != want {
			t.Errorf("the ConfigMap has %q, want %q", got, want)
		}
	}
	does := func(want string, args ...string) {
		t.Helper()
		if got := h.run(args...); !strings.Contains(got, want) {
			t.Errorf("helm %q: %s\nwant %s", args, got, want)
		}
	}
	does("STATUS: deployed\nREVISION: 1\nDESCRIPTION: Install complete\n", "install", "shop", chart, timeout)
	config("red 1 yes kube-system")
	does(`"revision":"1"`, "list", "-o", "json")
	does("==> v1/Shelf\nNAME   AGE\nshop ", "status", "shop")
	does("# Source: shop/templates/app.yaml\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: shop-sa}\n", "get", "manifest", "shop")
	does("cannot reuse a name that is still in use", "install", "shop", chart)
	does("STATUS: deployed\nREVISION: 2\n", "upgrade", "shop", chart, timeout, "--set=color=blue,extra=true")
	config("blue 2 yes kube-system")
	k.must(t, "", "get", "secret", "shop-extra")
	if got := k.run("", "get", "shelf", "shop", "--show-managed-fields", "-o", "jsonpath={.spec} {.metadata.managedFields[*].manager} {.metadata.managedFields[*].operation}"); got != `{"color":"blue","width":1} helm Apply` {
		t.Errorf("the custom resource: %s", got)
	}
	k.must(t, "", "patch", "configmap", "shop-config", "--field-manager=someone", "--type=merge", `--patch={"data":{"color":"green"}}`)
	does(`Apply failed with 1 conflict: conflict with "someone" using v1: .data.color`, "upgrade", "shop", chart, timeout, "--set=color=violet")
	config("green 2 yes kube-system")
	does("STATUS: deployed\nREVISION: 4\n", "upgrade", "shop", chart, timeout, "--set=color=violet", "--force-conflicts")
	config("violet 4 yes kube-system")
	does("Rollback was a success!", "rollback", "shop", "1", timeout)
	config("red 1 yes kube-system") // as rendered by the first revision
	if out := k.run("", "get", "secret", "shop-extra"); !strings.Contains(out, "NotFound") {
		t.Errorf("a secret that the first revision does not have: %s", out)
	}
	does(`release "shop" uninstalled`, "uninstall", "shop", timeout)
	proctest.Eventually(t, "only hooks are left", func() error {
		want := strings.Fields("configmap/shop-post-delete configmap/shop-post-install configmap/shop-post-rollback configmap/shop-post-upgrade configmap/shop-pre-delete configmap/shop-pre-install configmap/shop-pre-rollback configmap/shop-pre-upgrade")
		out := k.run("", "get", "configmaps,services,deployments,roles,shelves,secrets,jobs", "-o", "name")
		if got := strings.Fields(strings.ReplaceAll(out, "configmap/kube-root-ca.crt\n", "")); strings.Join(got, " ") != strings.Join(want, " ") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
