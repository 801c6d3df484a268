package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/larder-io/larder/internal/proctest"
)

// everything returns all objects that p serves, as JSON without resourceVersion, except events and objects of servers.
// It waits until the resources of the discovery document are served, because discovery has a deleted one for a moment.
func everything(t *testing.T, p *process) (all map[string]string) {
	t.Helper()
	proctest.Eventually(t, "the resources of the discovery document are served", func() (err error) {
		all, err = listEverything(t.Context(), p.config())
		return err
	})
	return all
}

func listEverything(ctx context.Context, config *rest.Config) (map[string]string, error) {
	found, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	client, all := dynamic.NewForConfigOrDie(config), make(map[string]string)
	for _, list := range found {
		version, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" || r.Name == "leases" || r.Name == "componentstatuses" {
				continue
			}
			items, err := client.Resource(version.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w", r.Name, version, err)
			}
			for _, item := range items.Items {
				item.SetResourceVersion("")
				text, err := json.Marshal(item.Object)
				if err != nil {
					return nil, err
				}
				all[fmt.Sprintf("%s/%s %s/%s", version, r.Name, item.GetNamespace(), item.GetName())] = string(text)
			}
		}
	}
	return all, nil
}

// saved calls save and returns the state of p at that time. While the state changes, it tries again, because the
// server's controllers may still be active when a test begins.
func saved(t *testing.T, p *process, save func()) (state map[string]string) {
	t.Helper()
	proctest.Eventually(t, "nothing changes while the state is saved", func() error {
		state = everything(t, p)
		save()
		return same(everything(t, p), state)
	})
	return state
}

// checkpoint sends a POST request to an endpoint of checkpoints.
func (p *process) checkpoint(path string) {
	p.t.Helper()
	if err := p.client().Discovery().RESTClient().Post().AbsPath("/larder/checkpoints/" + path).Do(p.t.Context()).Error(); err != nil {
		p.t.Fatal(err)
	}
}

// definition returns a CRD and one of its objects, in YAML.
func definition(plural, kind string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.x.io}
spec:
  group: x.io
  scope: Namespaced
  names: {plural: %[1]s, singular: %[3]s, kind: %[2]s}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, plural, kind, strings.ToLower(kind))
}

// TestResetRestoresACheckpoint changes a server's state in many ways and resets it, several times. All objects must be
// as before, and informers must get each change without a relist.
func TestResetRestoresACheckpoint(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--checkpoints", "--token-auth-file", tokens(t))
	k := newKubectl(t, p.kubeconfig(), "default")
	run := func(args ...string) string { return larder(t, append(args, "--kubeconfig", p.kubeconfig())...) }
	k.must(t, definition("boxes", "Box"), "apply", "-f", "-")
	k.must(t, "", "wait", longWait, "--for=condition=established", "crd/boxes.x.io")
	proctest.Eventually(t, "boxes are served", func() error {
		if out := k.run("{apiVersion: x.io/v1, kind: Box, metadata: {name: kept}, spec: {a: 1}}", "apply", "-f", "-"); !strings.Contains(out, "kept") {
			return errors.New(out)
		}
		return nil
	})
	k.must(t, "", "create", "namespace", "kept")
	k.must(t, "", "-n", "kept", "create", "configmap", "kept", "--from-literal=a=b")
	k.must(t, "", "create", "service", "nodeport", "kept", "--tcp=80")
	want := saved(t, p, func() {
		if out := run("checkpoint", "clean"); !regexp.MustCompile(`^checkpoint clean: \d+ objects at revision \d+\n$`).MatchString(out) {
			t.Fatal(out)
		}
	})
	followers := []*follower{
		follow(t, p, "default", runtime.ContentTypeJSON, false),
		follow(t, p, "kept", runtime.ContentTypeProtobuf, false),
	}
	for round := range 3 {
		var added strings.Builder
		for i := range 20 {
			fmt.Fprintf(&added, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: new-%d, finalizers: [x.io/stuck]}}\n", i)
		}
		k.must(t, added.String(), "create", "-f", "-")
		k.must(t, "", "delete", "configmap", "new-0", "--wait=false")
		k.must(t, "", "-n", "kept", "patch", "configmap", "kept", "-p", `{"data":{"a":"c"}}`)
		k.must(t, "", "delete", "box", "kept")
		k.must(t, "", "delete", "service", "kept")
		k.must(t, "", "create", "service", "nodeport", "new", "--tcp=80")
		k.must(t, "", "create", "clusterrole", "new", "--verb=get", "--resource=pods")
		k.must(t, definition("bags", "Bag"), "apply", "-f", "-")
		k.must(t, "", "wait", longWait, "--for=condition=established", "crd/bags.x.io")
		proctest.Eventually(t, "bags are served", func() error {
			if out := k.run("{apiVersion: x.io/v1, kind: Bag, metadata: {name: new, finalizers: [x.io/stuck]}}", "create", "-f", "-"); !strings.Contains(out, "created") {
				return errors.New(out)
			}
			return nil
		})
		k.must(t, "", "delete", "namespace", "kept", "--wait=false")
		if round == 2 {
			k.must(t, "", "delete", "crd", "boxes.x.io", "--wait=false")
		}
		if out := run("reset", "clean"); !regexp.MustCompile(`^reset to clean: \d+ deleted, [1-9] restored, [1-9] changed\n! warning: the controller that empties the namespaces kept is not part of this server`).MatchString(out) {
			t.Fatal(out)
		}
		proctest.Eventually(t, fmt.Sprintf("everything is as before round %d", round), func() error {
			return same(everything(t, p), want) // custom resources are served a moment after their CRDs are back
		})
	}
	followers[0].await(t, nil, 3*20)
	followers[1].await(t, nil, 0)
	for _, f := range followers {
		for _, key := range f.informer.GetStore().ListKeys() {
			if want["v1/configmaps "+key] == "" {
				t.Errorf("the informer still has %s", key)
			}
		}
	}
	if status, err := p.status("/larder/checkpoints", "alice-token"); status != 403 {
		t.Errorf("a list of checkpoints without the right to it: status %d, error %v, want 403", status, err)
	}
	for _, test := range []struct{ args, want string }{
		{"checkpoint", "clean"},
		{"checkpoint --forget clean", ""},
		{"checkpoint --forget clean", `! larder: checkpoints.larder "clean" not found` + "\n(exit status 1)\n"},
		{"reset clean", `! larder: checkpoints.larder "clean" not found` + "\n(exit status 1)\n"},
		{"checkpoint Clean", "! larder: the name of a checkpoint: "},
	} {
		if out := run(strings.Fields(test.args)...); !strings.Contains(out, test.want) || test.want == "" && out != "" {
			t.Errorf("%s: %q, want %q", test.args, out, test.want)
		}
	}
}

// TestCheckpointsAreOffByDefault checks that a server without --checkpoints does not serve them.
func TestCheckpointsAreOffByDefault(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync")
	out := larder(t, "checkpoint", "clean", "--kubeconfig", p.kubeconfig())
	if want := "! larder: the server could not find the requested resource\n(exit status 1)\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// TestResetRestoresAccessDecisions checks that after a reset the restored objects decide: webhooks that a test has
// added are not called, and roles that it has deleted apply. Version 1.35 has no gate AtomicFIFO, so the stores of
// informers do not tell their revisions.
func TestResetRestoresAccessDecisions(t *testing.T) {
	for _, version := range []string{"1.36", "1.35"} {
		t.Run(version, func(t *testing.T) { testResetRestoresAccessDecisions(t, version) })
	}
}

func testResetRestoresAccessDecisions(t *testing.T, version string) {
	p := serve(t, "--unsafe-no-fsync", "--checkpoints", "--token-auth-file", tokens(t), "--emulated-version", version)
	admin, alice, ctx := p.client(), p.as("alice-token"), t.Context()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: role.ObjectMeta,
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}}
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func() error {
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}}
		_, err := alice.CoreV1().ConfigMaps("default").Create(ctx, made, metav1.CreateOptions{})
		return err
	}
	nowhere, none := "https://127.0.0.1:1/", admissionv1.SideEffectClassNone
	unreachable := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "unreachable"}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "unreachable.x.io", ClientConfig: admissionv1.WebhookClientConfig{URL: &nowhere}, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{"CREATE"}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
	}}}
	proctest.Eventually(t, "alice may create", create)
	p.checkpoint("clean")
	for range 10 {
		if _, err := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, unreachable, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		proctest.Eventually(t, "the unreachable webhook makes writes fail", func() error {
			if err := create(); !apierrors.IsInternalError(err) {
				return fmt.Errorf("create: error %v", err)
			}
			return nil
		})
		if err := admin.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		proctest.Eventually(t, "alice may not create", func() error {
			if err := create(); !apierrors.IsForbidden(err) {
				return fmt.Errorf("create: error %v", err)
			}
			return nil
		})
		p.checkpoint("clean/reset")
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResetRestoresNodesAccess checks that after a reset a node may read what its restored pods need.
func TestResetRestoresNodesAccess(t *testing.T) {
	p := serve(t, "--unsafe-no-fsync", "--checkpoints", "--token-auth-file", tokens(t), "--authorization-mode=Node,RBAC")
	k, node := newKubectl(t, p.kubeconfig(), "default"), p.as("n1-token")
	k.must(t, `
{apiVersion: v1, kind: Secret, metadata: {name: a}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {nodeName: n1, volumes: [{name: a, secret: {secretName: a}}], containers: [{name: a, image: a}]}}
`, "create", "-f", "-")
	read := func() error {
		_, err := node.CoreV1().Secrets("default").Get(t.Context(), "a", metav1.GetOptions{})
		return err
	}
	proctest.Eventually(t, "the node may read the secret", read)
	p.checkpoint("clean")
	for range 50 {
		if err := p.client().CoreV1().Pods("default").Delete(t.Context(), "a", *metav1.NewDeleteOptions(0)); err != nil {
			t.Fatal(err)
		}
		proctest.Eventually(t, "the node may not read the secret", func() error {
			if err := read(); !apierrors.IsForbidden(err) {
				return fmt.Errorf("get: error %v", err)
			}
			return nil
		})
		p.checkpoint("clean/reset")
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
}
