package cluster

import (
	"context"
	"fmt"
	"os"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/larder-io/larder/cmd/larder/internal/cluster/programs"
	"github.com/larder-io/larder/cmd/larder/internal/server/pki"
)

// users holds the user names of the programs. Every server has default roles for the first two. authorizeKwok creates
// the role of kwok.
var users = map[string]string{
	programs.ControllerManager: "system:kube-controller-manager",
	programs.Scheduler:         "system:kube-scheduler",
	programs.Kwok:              kwokRole,
}

// kwokRole is the name of kwok's user, of its role and of their binding.
const kwokRole = "larder:kwok"

func (c *Cluster) kubeconfig(program string) string { return c.file(program + ".kubeconfig") }

// writeFiles writes the files that the programs read.
func (c *Cluster) writeFiles(url string, trust []byte) error {
	authority, err := pki.Load(c.file("pki"))
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	for name, user := range users {
		certPEM, keyPEM, err := authority.IssueClient(user)
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		if err := pki.WriteKubeconfig(c.kubeconfig(name), url, trust, certPEM, keyPEM); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
	}
	if err := os.WriteFile(c.file("kwok.yaml"), []byte(kwokConfig), 0o600); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := os.MkdirAll(c.file("logs"), 0o700); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// kwokConfig makes kwok simulate only the nodes that are created here.
const kwokConfig = `apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  manageAllNodes: false
  manageNodesWithAnnotationSelector: ` + fakeAnnotation + "=" + fakeValue + `
  nodeLeaseDurationSeconds: 40
  nodeLeaseParallelism: 4
  nodePlayStageParallelism: 4
  podPlayStageParallelism: 4
  enablePodsOnNodeSyncStreamWatch: true
`

// authorizeKwok grants kwok the rights that it needs, a subset of its own manifest's (kwok kustomize/rbac/role.yaml).
func (c *Cluster) authorizeKwok(ctx context.Context, client kubernetes.Interface) error {
	rule := func(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: kwokRole}, Rules: []rbacv1.PolicyRule{
		rule("", []string{"nodes"}, "get", "list", "watch"),
		rule("", []string{"nodes/status", "pods/status"}, "patch", "update"),
		rule("", []string{"pods"}, "delete", "get", "list", "patch", "update", "watch"),
		rule("", []string{"events"}, "create", "patch", "update"),
		rule("events.k8s.io", []string{"events"}, "create", "patch", "update"),
		rule("coordination.k8s.io", []string{"leases"}, "create", "get", "list", "patch", "update", "watch"),
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: kwokRole},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: kwokRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: kwokRole}},
	}
	_, err := client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("cluster: role of kwok: %w", err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cluster: role of kwok: %w", err)
	}
	return nil
}
