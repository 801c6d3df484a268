package bootstrap

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientretry "k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// ensureRBAC makes the roles and bindings that upstream's policy names, and adds to
// those that exist what they lack. The policy and the rules of reconciling are
// upstream's; the order of steps is that of kubernetes pkg/registry/rbac/rest,
// EnsureRBACPolicy.
func (b *Bootstrap) ensureRBAC(ctx context.Context) error {
	return retry(ctx, patience, func(ctx context.Context) error {
		if err := b.primeAggregated(ctx, bootstrappolicy.ClusterRolesToAggregate()); err != nil {
			return fmt.Errorf("aggregate cluster roles: %w", err)
		}
		if err := b.primeSplit(ctx, bootstrappolicy.ClusterRoleBindingsToSplit()); err != nil {
			return fmt.Errorf("split cluster role bindings: %w", err)
		}
		return inParallel(ctx, append(b.roleTasks(), b.bindingTasks()...))
	})
}

func (b *Bootstrap) roleTasks() []task {
	rbac, namespaces := b.config.Client.RbacV1(), b.config.Client.CoreV1().Namespaces()
	var tasks []task
	add := func(role reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier) {
		options := reconciliation.ReconcileRoleOptions{Role: role, Client: client, Confirm: true}
		tasks = append(tasks, reconcile(func() error {
			_, err := options.Run()
			return err
		}))
	}
	clusterRoles := append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...)
	for i := range clusterRoles {
		add(reconciliation.ClusterRoleRuleOwner{ClusterRole: &clusterRoles[i]},
			reconciliation.ClusterRoleModifier{Client: rbac.ClusterRoles()})
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for i := range roles {
			add(reconciliation.RoleRuleOwner{Role: &roles[i]},
				reconciliation.RoleModifier{Client: rbac, NamespaceClient: namespaces})
		}
	}
	return tasks
}

func (b *Bootstrap) bindingTasks() []task {
	rbac, namespaces := b.config.Client.RbacV1(), b.config.Client.CoreV1().Namespaces()
	var tasks []task
	add := func(binding reconciliation.RoleBinding, client reconciliation.RoleBindingModifier) {
		options := reconciliation.ReconcileRoleBindingOptions{RoleBinding: binding, Client: client, Confirm: true}
		tasks = append(tasks, reconcile(func() error {
			_, err := options.Run()
			return err
		}))
	}
	clusterBindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	for i := range clusterBindings {
		add(reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &clusterBindings[i]},
			reconciliation.ClusterRoleBindingClientAdapter{Client: rbac.ClusterRoleBindings()})
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for i := range bindings {
			add(reconciliation.RoleBindingAdapter{RoleBinding: &bindings[i]},
				reconciliation.RoleBindingClientAdapter{Client: rbac, NamespaceClient: namespaces})
		}
	}
	return tasks
}

// reconcile repeats work while another server reconciles the same object.
func reconcile(work func() error) task {
	return func(context.Context) error {
		return clientretry.OnError(clientretry.DefaultBackoff, func(err error) bool {
			return apierrors.IsConflict(err) || apierrors.IsServiceUnavailable(err)
		}, work)
	}
}

// primeAggregated copies roles of an old cluster to the names under which they are
// now aggregated, so that what was changed in them is kept.
func (b *Bootstrap) primeAggregated(ctx context.Context, renamed map[string]string) error {
	roles := b.config.Client.RbacV1().ClusterRoles()
	for from, to := range renamed {
		if _, err := roles.Get(ctx, to, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			if err != nil {
				return err
			}
			continue
		}
		role, err := roles.Get(ctx, from, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if role.AggregationRule != nil {
			return nil // aggregated already: it holds no changes of its own
		}
		role.Name, role.ResourceVersion = to, ""
		if _, err := roles.Create(ctx, role, metav1.CreateOptions{}); ignoreExists(err) != nil {
			return err
		}
	}
	return nil
}

// primeSplit gives a binding that was split off an older one the subjects of that.
func (b *Bootstrap) primeSplit(ctx context.Context, split map[string]rbacv1.ClusterRoleBinding) error {
	bindings := b.config.Client.RbacV1().ClusterRoleBindings()
	for from, template := range split {
		old, err := bindings.Get(ctx, from, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if _, err := bindings.Get(ctx, template.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			if err != nil {
				return err
			}
			continue
		}
		binding := template.DeepCopy()
		binding.Subjects, binding.Labels, binding.Annotations = old.Subjects, old.Labels, old.Annotations
		if _, err := bindings.Create(ctx, binding, metav1.CreateOptions{}); ignoreExists(err) != nil {
			return err
		}
	}
	return nil
}
