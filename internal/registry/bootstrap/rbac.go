package bootstrap

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientretry "k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// ensureRBAC creates the roles and bindings of upstream's policy, and adds missing rules and subjects to
// existing ones. The steps follow kubernetes pkg/registry/rbac/rest, EnsureRBACPolicy.
func (c *Config) ensureRBAC(ctx context.Context) error {
	return retry(ctx, hookTimeout, func(ctx context.Context) error {
		if err := c.primeAggregated(ctx, bootstrappolicy.ClusterRolesToAggregate()); err != nil {
			return fmt.Errorf("aggregate cluster roles: %w", err)
		}
		if err := c.copySubjects(ctx, bootstrappolicy.ClusterRoleBindingsToSplit()); err != nil {
			return fmt.Errorf("split cluster role bindings: %w", err)
		}
		return inParallel(ctx, c.rbacTasks())
	})
}

// rbacTasks returns one task for each object of the policy.
func (c *Config) rbacTasks() []task {
	client, namespaces := c.Client.RbacV1(), c.Client.CoreV1().Namespaces()
	var tasks []task
	addRole := func(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) {
		options := reconciliation.ReconcileRoleOptions{Role: role, Confirm: true, Client: client}
		tasks = append(tasks, reconcile(options.Run))
	}
	addBinding := func(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) {
		options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Confirm: true, Client: client}
		tasks = append(tasks, reconcile(options.Run))
	}
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		addRole(reconciliation.ClusterRoleRuleOwner{ClusterRole: &o}, reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()})
	}
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		addBinding(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &o},
			reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()})
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, o := range roles {
			addRole(reconciliation.RoleRuleOwner{Role: &o}, reconciliation.RoleModifier{Client: client, NamespaceClient: namespaces})
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, o := range bindings {
			addBinding(reconciliation.RoleBindingAdapter{RoleBinding: &o},
				reconciliation.RoleBindingClientAdapter{Client: client, NamespaceClient: namespaces})
		}
	}
	return tasks
}

// reconcile repeats work while another server reconciles the same object.
func reconcile[T any](work func() (T, error)) task {
	return func(context.Context) error {
		return contended(func() error { _, err := work(); return err })
	}
}

// contended repeats work that fails because another server writes the same object.
func contended(work func() error) error {
	return clientretry.OnError(clientretry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsServiceUnavailable(err)
	}, work)
}

// primeAggregated copies roles of an old cluster to the names under which they are now aggregated, so
// that changes of users are kept.
func (c *Config) primeAggregated(ctx context.Context, renamed map[string]string) error {
	roles := c.Client.RbacV1().ClusterRoles()
	for from, to := range renamed {
		old, err := roles.Get(ctx, from, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && old.AggregationRule != nil { // users cannot change an aggregated role
			continue
		}
		if err != nil {
			return err
		}
		old.Name, old.ResourceVersion = to, ""
		if err := createMissing(ctx, roles, old); err != nil {
			return err
		}
	}
	return nil
}

// copySubjects copies the subjects of an older binding to the binding that was split off it.
func (c *Config) copySubjects(ctx context.Context, split map[string]rbacv1.ClusterRoleBinding) error {
	bindings := c.Client.RbacV1().ClusterRoleBindings()
	for from, template := range split {
		old, err := bindings.Get(ctx, from, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		binding := template.DeepCopy()
		binding.Subjects, binding.Labels, binding.Annotations = old.Subjects, old.Labels, old.Annotations
		if err := createMissing(ctx, bindings, binding); err != nil {
			return err
		}
	}
	return nil
}
