package bootstrap

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	clientretry "k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// ensureRBAC makes the roles and bindings that upstream's policy names, and adds to
// those that exist what they lack. The policy and the rules of reconciling are
// upstream's; the order of steps is that of kubernetes pkg/registry/rbac/rest,
// EnsureRBACPolicy.
func (c *Config) ensureRBAC(ctx context.Context) error {
	return retry(ctx, hookTimeout, func(ctx context.Context) error {
		if err := c.primeAggregated(ctx, bootstrappolicy.ClusterRolesToAggregate()); err != nil {
			return fmt.Errorf("aggregate cluster roles: %w", err)
		}
		if err := c.primeSplit(ctx, bootstrappolicy.ClusterRoleBindingsToSplit()); err != nil {
			return fmt.Errorf("split cluster role bindings: %w", err)
		}
		tasks, err := c.rbacTasks(ctx)
		if err != nil {
			return err
		}
		return inParallel(ctx, tasks)
	})
}

// rbacTasks returns one task for each object of the policy. Existing objects are listed once: on most starts
// all exist, and there is nothing to do.
func (c *Config) rbacTasks(ctx context.Context) ([]task, error) {
	client, namespaces := c.Client.RbacV1(), c.Client.CoreV1().Namespaces()
	clusterRoles, err := client.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	tasks := roleTasks(nil, bootstrappolicy.ClusterRoles(), clusterRoles.Items, clusterRole,
		reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()})
	tasks = roleTasks(tasks, bootstrappolicy.ControllerRoles(), clusterRoles.Items, clusterRole,
		reconciliation.ClusterRoleModifier{Client: client.ClusterRoles()})
	clusterBindings, err := client.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	tasks = bindingTasks(tasks, bootstrappolicy.ClusterRoleBindings(), clusterBindings.Items, clusterRoleBinding,
		reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()})
	tasks = bindingTasks(tasks, bootstrappolicy.ControllerRoleBindings(), clusterBindings.Items, clusterRoleBinding,
		reconciliation.ClusterRoleBindingClientAdapter{Client: client.ClusterRoleBindings()})
	for namespace, wanted := range bootstrappolicy.NamespaceRoles() {
		roles, err := client.Roles(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		tasks = roleTasks(tasks, wanted, roles.Items, role,
			reconciliation.RoleModifier{Client: client, NamespaceClient: namespaces})
	}
	for namespace, wanted := range bootstrappolicy.NamespaceRoleBindings() {
		bindings, err := client.RoleBindings(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		tasks = bindingTasks(tasks, wanted, bindings.Items, roleBinding,
			reconciliation.RoleBindingClientAdapter{Client: client, NamespaceClient: namespaces})
	}
	return tasks, nil
}

// The four kinds as upstream's reconciliation sees them.
func clusterRole(o *rbacv1.ClusterRole) reconciliation.RuleOwner {
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}
}

func role(o *rbacv1.Role) reconciliation.RuleOwner { return reconciliation.RoleRuleOwner{Role: o} }

func clusterRoleBinding(o *rbacv1.ClusterRoleBinding) reconciliation.RoleBinding {
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}
}

func roleBinding(o *rbacv1.RoleBinding) reconciliation.RoleBinding {
	return reconciliation.RoleBindingAdapter{RoleBinding: o}
}

// roleTasks appends a task for each wanted role. existing are all of its namespace.
func roleTasks[T any](
	tasks []task, wanted, existing []T, adapt func(*T) reconciliation.RuleOwner, client reconciliation.RuleOwnerModifier,
) []task {
	known := make(map[string]reconciliation.RuleOwner, len(existing))
	for i := range existing {
		o := adapt(&existing[i])
		known[o.GetName()] = o
	}
	for i := range wanted {
		o := adapt(&wanted[i])
		options := reconciliation.ReconcileRoleOptions{
			Role: o, Confirm: true, Client: &listedRole{RuleOwnerModifier: client, listed: known[o.GetName()]}}
		tasks = append(tasks, reconcile(func() error {
			_, err := options.Run()
			return err
		}))
	}
	return tasks
}

// bindingTasks appends a task for each wanted binding. existing are all of its
// namespace.
func bindingTasks[T any](
	tasks []task, wanted, existing []T, adapt func(*T) reconciliation.RoleBinding, client reconciliation.RoleBindingModifier,
) []task {
	known := make(map[string]reconciliation.RoleBinding, len(existing))
	for i := range existing {
		o := adapt(&existing[i])
		known[o.GetName()] = o
	}
	for i := range wanted {
		o := adapt(&wanted[i])
		options := reconciliation.ReconcileRoleBindingOptions{
			RoleBinding: o, Confirm: true, Client: &listedBinding{RoleBindingModifier: client, listed: known[o.GetName()]}}
		tasks = append(tasks, reconcile(func() error {
			_, err := options.Run()
			return err
		}))
	}
	return tasks
}

// listedRole answers the first Get of an object from a list, and later ones, after a
// conflict with another writer, from the server. Nil listed means that there is none.
type listedRole struct {
	reconciliation.RuleOwnerModifier
	listed reconciliation.RuleOwner
	asked  bool
}

// Get implements reconciliation.RuleOwnerModifier.
func (l *listedRole) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	if l.asked {
		return l.RuleOwnerModifier.Get(namespace, name)
	}
	l.asked = true
	if l.listed == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("roles"), name)
	}
	return l.listed, nil
}

// listedBinding is listedRole for bindings.
type listedBinding struct {
	reconciliation.RoleBindingModifier
	listed reconciliation.RoleBinding
	asked  bool
}

// Get implements reconciliation.RoleBindingModifier.
func (l *listedBinding) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	if l.asked {
		return l.RoleBindingModifier.Get(namespace, name)
	}
	l.asked = true
	if l.listed == nil {
		return nil, apierrors.NewNotFound(rbacv1.Resource("rolebindings"), name)
	}
	return l.listed, nil
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
func (c *Config) primeAggregated(ctx context.Context, renamed map[string]string) error {
	roles := c.Client.RbacV1().ClusterRoles()
	for from, to := range renamed {
		if err := primeRole(ctx, roles, from, to); err != nil {
			return err
		}
	}
	return nil
}

func primeRole(ctx context.Context, roles rbacclient.ClusterRoleInterface, from, to string) error {
	if _, err := roles.Get(ctx, to, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	old, err := roles.Get(ctx, from, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if old.AggregationRule != nil {
		return nil // aggregated already: it holds no changes of its own
	}
	old.Name, old.ResourceVersion = to, ""
	_, err = roles.Create(ctx, old, metav1.CreateOptions{})
	return ignoreExists(err)
}

// primeSplit gives a binding that was split off an older one the subjects of that.
func (c *Config) primeSplit(ctx context.Context, split map[string]rbacv1.ClusterRoleBinding) error {
	bindings := c.Client.RbacV1().ClusterRoleBindings()
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
